"""From a job to the numbers of its run: how many of everything, what each failure does to the pace, what a checkpoint costs.

The step is simulated anew for whatever changes it: a slow component, fewer machines, noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.errors import SimulatorError, SpecError
from simulator.goodput.between_sites import OUTER_BYTES, Exchange, exchange_between
from simulator.goodput.checkpoints import CheckpointCost, checkpoint_bytes, checkpoint_cost
from simulator.goodput.run_model import CORRUPT, SLOW, STOP, Causes, RunModel
from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.cluster import Cluster
from simulator.hardware.parts import Part
from simulator.hardware.reliability import Failure, Reliability, Restart
from simulator.job import Job
from simulator.report.prediction import Prediction
from simulator.simulation import simulate_job
from simulator.units import in_unit, parse, show

__all__ = ["Described", "count_of", "describe_run"]

_EFFECTS = {"stop": STOP, "slow": SLOW, "corrupt": CORRUPT}
_NOISY_STEPS = 50
_PATIENCE = 100.0
"""A run that takes so many times as long as its steps counts as one that never ends."""
_MOST_TOKENS, _MOST_DAYS = parse("1 E tokens", "tokens"), parse("36500 d", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A job's run.

    Args:
        model: its numbers.
        prediction: of one undisturbed step.
        step: seconds of a step with the job's noise and the exchange between its sites, where it has any.
        exchange: between sites; None where there is one.
        tokens: to train on; None where the horizon ends the run.
        cost: of a checkpoint; None without any.
        automatic: whether the interval is to be found.
        assumptions: what was filled in, in words.
    """

    model: RunModel
    prediction: Prediction
    step: float
    tokens: float | None
    cost: CheckpointCost | None
    automatic: bool
    assumptions: tuple[str, ...]
    exchange: Exchange | None = None

    @property
    def sites(self) -> int:
        """How many."""
        return 1 if self.exchange is None else self.exchange.sites.count

    @property
    def tokens_per_step(self) -> int:
        """Of all sites together."""
        return self.prediction.tokens * self.sites


def count_of(failure: Failure, cluster: Cluster) -> int:
    """Return how many components of a kind a job has.

    >>> from simulator.hardware.cluster import load_cluster
    >>> count_of(Failure(component="host", mtbf=1.0), load_cluster("dgx_h100", 64))
    8
    """
    if failure.count is not None:
        return failure.count
    if failure.each == "domain":
        return -(-cluster.nodes // (failure.nodes or 1))
    counts = {
        "gpu": cluster.world_size,
        "nic": max(1, cluster.node.nics * cluster.nodes),
        "node": cluster.nodes,
        "job": 1,
    }
    return counts[failure.each or "job"]


def describe_run(
    job: Job, tokens: float | None, horizon: float | None, say: Callable[[str], None] = lambda text: None
) -> Described:
    """Return a job's run.

    Args:
        job: its tables [reliability] and [checkpoint] say what fails and how state is saved.
        tokens: to train on, or
        horizon: wall time [s]; one of the two.
        say: told the progress.

    Raises:
        SpecError: what is described cannot be, or does not say enough.
        PlanError: the plan cannot be, or has no part that is said to be slow.
    """
    _check(job, tokens, horizon)
    assumptions: list[str] = []
    prediction = simulate_job(job)
    if not prediction.fits:
        assumptions.append(
            f"the job does not fit its GPUs' memory: rank {prediction.fullest} needs {show(prediction.peak_memory, 'B')} of "
            f"{show(prediction.capacity, 'B')} (dtsim run says what would help); the run is told as if it did"
        )
    step = _noisy_step(job, prediction, assumptions)
    exchange = exchange_between(job.sites, job.workload.model.parameters, step) if job.sites else None
    sites, step = (exchange.sites.count, exchange.step) if exchange else (1, step)
    table = (job.reliability or Reliability()).resolved()
    if not table.failures:
        assumptions.append(
            "nothing fails: no failures are described. Way out: a table [reliability] and one [checkpoint], such as --set "
            "reliability.fleet=meta_llama3_2024 (dtsim list reliability) --set 'checkpoint.write=60 s'"
        )
    checkpoint, cost = _checkpoint(job, table, prediction, assumptions)
    causes = _causes(job, table, prediction.step_time, say, assumptions)
    if sites > 1 and table.elastic:
        raise SpecError("reliability.elastic is for one site: leave out the table [sites], or elastic")
    paces = _paces(job, table, prediction, say) if table.elastic else np.ones(1)
    steps = math.inf if tokens is None else float(math.ceil(tokens / (prediction.tokens * sites)))
    interval, automatic = 0.0, False
    if checkpoint is not None:
        automatic = checkpoint.interval == "auto"
        interval = math.inf if checkpoint.interval == "auto" else whole_steps(float(checkpoint.interval), step)
    near = cost is not None and cost.near >= 0.0
    persist = checkpoint.to_files_every if checkpoint is not None and near else None
    window = table.maintenance
    work = steps * step
    model = RunModel(
        work=work,
        horizon=math.inf if horizon is None else horizon,
        causes=causes,
        restart=_restart_time(table.restart, cost),
        interval=interval,
        stall=cost.stall if cost else 0.0,
        write=cost.write if cost else 0.0,
        drag=checkpoint.interference if checkpoint else 0.0,
        near=cost.near if cost else -1.0,
        far_every=max(1, round(persist / interval)) if persist and math.isfinite(interval) else 1,
        copies=checkpoint.copies if checkpoint else 2,
        spares=-1 if table.spares is None else table.spares,
        cold_spares=table.cold_spares,
        cold_start=table.cold_start,
        repair=table.repair or 0.0,
        crews=table.crews or 0,
        paces=paces,
        evict=table.evict,
        maintenance_every=window.every if window else math.inf,
        maintenance_length=window.length if window else 0.0,
        limit=_PATIENCE * work if math.isfinite(work) else math.inf,
    )
    return Described(
        model=model,
        prediction=prediction,
        step=step,
        tokens=tokens,
        cost=cost,
        automatic=automatic,
        assumptions=tuple(assumptions),
        exchange=exchange,
    )


def whole_steps(interval: float, step: float) -> float:
    """Return an interval as whole steps, at least one [s]."""
    return max(1, round(interval / step)) * step


def _check(job: Job, tokens: float | None, horizon: float | None) -> None:
    if tokens is not None and not 0 < tokens <= _MOST_TOKENS:
        raise SpecError(
            f"a run trains on more than 0 and at most {_MOST_TOKENS:g} tokens, but {tokens:g} were asked for"
        )
    if horizon is not None and not 0 < horizon <= _MOST_DAYS:
        raise SpecError(
            f"a run lasts more than 0 and at most 36,500 days, but {in_unit(horizon, 'd', 's'):g} days were asked for"
        )
    if (tokens is None) == (horizon is None):
        raise SpecError("a run ends after so many tokens or after so many days: give one of them")


def _noisy_step(job: Job, prediction: Prediction, assumptions: list[str]) -> float:
    """Mean time of a step with the job's noise: over weeks nothing of its spread is left but the mean."""
    if job.jitter is None or not job.jitter.causes:
        return prediction.step_time
    from simulator.studies.variation import vary

    step = float(vary(job, _NOISY_STEPS).times.mean())
    assumptions.append(
        f"steps take {show(step, 's')} on average with the noise of [jitter], {show(prediction.step_time, 's')} without"
    )
    return step


def _checkpoint(
    job: Job, table: Reliability, prediction: Prediction, assumptions: list[str]
) -> tuple[Checkpoint | None, CheckpointCost | None]:
    checkpoint = job.checkpoint
    if checkpoint is None:
        if not table.failures:
            return None, None
        raise SpecError(
            f"job {job.name!r} describes failures but no checkpoints, so every failure would lose all work. Way out: a table "
            "[checkpoint], such as --set 'checkpoint.interval=\"auto\"' --set 'checkpoint.write=\"60 s\"' (or checkpoint.bandwidth)"
        )
    every = checkpoint.to_files_every
    if every is not None and checkpoint.persist is None:
        assumptions.append(
            f"the file system gets a checkpoint every {in_unit(every, 'h', 's'):g} h (checkpoint.persist)"
        )
    if every is not None and checkpoint.persist_write == "auto" and checkpoint.bandwidth is None:
        assumptions.append(
            "it takes all the time until the next to get it (checkpoint.persist_write, checkpoint.bandwidth)"
        )
    size = checkpoint_bytes(job, prediction)
    if job.sites is not None and job.sites.local_steps > 1:
        size += OUTER_BYTES * job.workload.model.parameters
    return checkpoint, checkpoint_cost(checkpoint, job.cluster, size)


def _restart_time(restart: float | Restart | None, cost: CheckpointCost | None) -> float:
    if restart is None:
        return 0.0
    if isinstance(restart, Restart):
        return restart.fixed + (cost.load if cost is not None and restart.load == "auto" else 0.0)
    return float(restart)


def _causes(job: Job, table: Reliability, quiet: float, say: Callable[[str], None], assumptions: list[str]) -> Causes:
    """Every way of failing as numbers; a step is simulated for each that is slow."""
    if table.failures and table.detection is None and any(f.detection is None for f in table.failures):
        assumptions.append("failures are noticed at once (reliability.detection)")
    if table.failures and table.restart is None:
        assumptions.append("a restart takes no time (reliability.restart)")
    paces: dict[tuple[tuple[str, float], ...], float] = {}
    columns: dict[str, list[Any]] = {name: [] for name in Causes.__dataclass_fields__}
    for failure in table.failures:
        key = tuple(sorted(failure.slower.items()))
        if key and key not in paces:
            say(f"a step with {', '.join(f'{name} {value:g}' for name, value in key)} on one GPU ...")
            paces[key] = quiet / _slow_step(job, failure)
        columns["name"].append(failure.component)
        columns["effect"].append(_EFFECTS[failure.effect])
        copies = job.sites.count if job.sites and failure.count is None and failure.each != "job" else 1
        columns["count"].append(copies * count_of(failure, job.cluster))
        columns["scale"].append(failure.mtbf / math.gamma(1.0 + 1.0 / failure.shape))
        columns["shape"].append(failure.shape)
        columns["age"].append(failure.age)
        columns["detection"].append(table.detection or 0.0 if failure.detection is None else failure.detection)
        columns["lasts"].append(math.inf if failure.lasts is None else failure.lasts)
        columns["pace"].append(min(1.0, paces.get(key, 1.0)))
        columns["nodes"].append(min(failure.takes, job.cluster.nodes))
    whole = ("effect", "count", "nodes")
    arrays: dict[str, Any] = {
        name: np.array(values, np.int64 if name in whole else np.float64)
        for name, values in columns.items()
        if name != "name"
    }
    return Causes(name=tuple(columns["name"]), **arrays)


def _slow_step(job: Job, failure: Failure) -> float:
    """Seconds of a step in which the first GPU is slow; of a host the first machine, of a domain its machines."""
    last = min(failure.nodes or 1, job.cluster.nodes) - 1 if failure.each == "domain" else 0
    whom = {"nodes": ((0, last),)} if failure.each in ("node", "domain") else {"ranks": ((0, 0),)}
    described: dict[str, Any] = {**whom, **failure.slower, "reason": failure.component}
    part = Part(**described)
    return simulate_job(replace(job, cluster=replace(job.cluster, parts=(*job.cluster.parts, part)))).step_time


def _paces(job: Job, table: Reliability, prediction: Prediction, say: Callable[[str], None]) -> np.ndarray[Any, Any]:
    """[machines missing] useful work per time, over that of the whole job: replicas that are left, and their own step."""
    replicas = int(prediction.provenance["data_parallel"])
    each = job.cluster.world_size // replicas
    paces, known = [1.0], {replicas: 1.0}
    for missing in range(1, table.elastic + 1):
        left = (job.cluster.nodes - missing) * job.cluster.node.gpus
        count = left // each if left > 0 else 0
        while count and count * each > job.cluster.node.gpus and count * each % job.cluster.node.gpus:
            count -= 1
        if count not in known:
            known[count] = 0.0
            if count:
                say(f"a step with {count} of {replicas} replicas ...")
                known[count] = count / replicas * prediction.step_time / _step_with(job, count, replicas, each)
        if not known[count]:
            raise SpecError(
                f"reliability.elastic = {table.elastic}: with {missing} of {job.cluster.nodes} machines missing no replica of "
                f"{each} GPUs is left. Way out: elastic = {missing - 1}"
            )
        paces.append(known[count])
    return np.array(paces)


def _step_with(job: Job, count: int, replicas: int, each: int) -> float:
    """Seconds of a step of fewer replicas, each with as many sequences as before."""
    batch = job.workload.global_batch_size * count // replicas
    smaller = replace(
        job,
        workload=replace(job.workload, global_batch_size=batch),
        plan=job.plan.model_copy(update={"data_parallel": count}),
        cluster=job.cluster.resized(count * each),
    )
    try:
        return simulate_job(smaller).step_time
    except SimulatorError as error:
        raise SpecError(
            f"reliability.elastic: the job cannot go on with {count} of {replicas} replicas: {error}"
        ) from None
