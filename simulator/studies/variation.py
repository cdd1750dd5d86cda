"""Steps that vary: a job with noise run many times, how long its steps take, and which cause makes the slow ones slow.

Each step draws its noise anew.  To see what a cause adds, the same steps run again without it, with the same random numbers
for all others; so the difference is that cause's alone, and a few dozen steps tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs.ranks import Priced, price_ranks
from simulator.engine import run
from simulator.engine.noise import Draws, NoisyStep, draw, no_effect, step_times
from simulator.engine.sampled import Chain, SampledEngine
from simulator.errors import PlanError, SpecError, check_seed, refuse
from simulator.hardware.jitter import Jitter
from simulator.job import Job
from simulator.lowering import lower_resolved, resolve_on
from simulator.program.program import COMPUTE, Program
from simulator.program.replicas import replica_mesh
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["DEFAULT_SAMPLES", "Variation", "described_noise", "vary"]

DEFAULT_SAMPLES = 100
_MOST_SAMPLES = 100_000
_EXACT_ROWS, _WIDE_STEP = 10_000_000, 50_000
"""Rows of all steps together up to which interference is simulated anew in every step (a few seconds); in a step of the second
size a row costs twice as much, for the streams of a wide world do not fit the caches."""
_MOST_CELLS = 80_000_000
"""Rows of all replicas of a step that noise is drawn for: two GB of them."""
_SELDOM = 10
"""Steps for which the rows of one count, where nothing slows anything without noise: interference is then the exception."""
_SHOWN = 5
_TAIL = 0.95
_ACTS_ON = {
    "messages": "messages between pipeline ranks, but the plan has one pipeline rank",
    "collectives": "collectives, but the plan has none",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variation:
    """Step times of a job with noise.

    Args:
        jitter: what varies.
        seed: of the random numbers.
        quiet: the step without noise [s].
        times: [samples] seconds.
        without: cause -> [samples] seconds of the same steps with the cause turned off.
        ranks: ((pipeline rank, replica), part of the slowest steps in which it computed on the longest chain), largest first.
        links: (name, part of the slowest steps that such a link took on the longest chain), largest first.
        frozen: whether interference is that of the step without noise.
    """

    jitter: Jitter
    seed: int
    quiet: float
    times: NDArray[np.float64]
    without: dict[str, NDArray[np.float64]]
    ranks: tuple[tuple[tuple[int, int], float], ...]
    links: tuple[tuple[str, float], ...]
    frozen: bool

    def quantile(self, part: float) -> float:
        """Return the time that this part of the steps does not exceed [s]."""
        return float(np.quantile(self.times, part))

    def adds(self, cause: str, part: float) -> float:
        """Return how much sooner this part of the steps would be done without a cause [s]."""
        return self.quantile(part) - float(np.quantile(self.without[cause], part))

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `jitter` of `dtsim run --json`."""
        causes = sorted(self.without, key=lambda cause: -self.adds(cause, _TAIL))
        return {
            "samples": len(self.times),
            "seed": self.seed,
            "step_time_s": {
                "p50": self.quantile(0.5),
                "p95": self.quantile(_TAIL),
                "mean": float(self.times.mean()),
                "least": float(self.times.min()),
                "most": float(self.times.max()),
                "without_noise": self.quiet,
            },
            "causes": [
                {"cause": cause, "adds_to_p50_s": self.adds(cause, 0.5), "adds_to_p95_s": self.adds(cause, _TAIL)}
                for cause in causes
            ],
            "slowest_ranks": [
                {"pipeline_rank": rank, "replica": replica, "part_of_step": part}
                for (rank, replica), part in self.ranks
            ],
            "slowest_links": [{"name": name, "part_of_step": part} for name, part in self.links],
            "interference": "as in the step without noise" if self.frozen else "simulated in every step",
            "described": self.jitter.model_dump(exclude_defaults=True),
        }

    def section(self) -> Section:
        """Return the variation to read."""
        p50, p95 = self.quantile(0.5), self.quantile(_TAIL)
        rows = tuple(
            (
                cause,
                show(self.adds(cause, 0.5), "s"),
                show(self.adds(cause, _TAIL), "s"),
                percent(self.adds(cause, _TAIL) / p95),
            )
            for cause in sorted(self.without, key=lambda cause: -self.adds(cause, _TAIL))
        )
        ranks = [f"pipeline rank {rank} of replica {replica} ({percent(part)})" for (rank, replica), part in self.ranks]
        links = [f"{name} ({percent(part)})" for name, part in self.links]
        below = [f"longest chain of the slowest steps, by who computes: {', '.join(ranks)}"]
        below += [f"by collective or message: {', '.join(links)}"] if links else []
        below += ["interference is that of the step without noise (a large world)"] if self.frozen else []
        return Section(
            title=f"with noise: half of the steps within {show(p50, 's')}, 95 % within {show(p95, 's')}",
            lines=(f"without noise {show(self.quiet, 's')}; {len(self.times)} steps, seed {self.seed}",),
            table=Table(headings=("cause", "adds to p50", "adds to p95", ""), rows=rows),
            below=tuple(below),
        )


def vary(
    job: Job,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    engine: str = "compiled",
    say: Callable[[str], None] | None = None,
) -> Variation:
    """Return the step times of a job with the noise that it describes.

    Args:
        job: with a jitter.
        samples: steps.
        seed: the same seed gives the same steps.
        engine: "compiled" or "simpy".
        say: told the progress.

    Raises:
        SpecError: the job describes no noise, the number of samples or the seed cannot be, or a step has more rows than memory holds.
        PlanError: noise is described of what the plan does not have.
    """
    jitter = described_noise(job, samples, seed)
    resolved = resolve_on(job.workload, job.plan, job.cluster)
    if len(resolved.step_kinds) > 1:
        kinds = ", ".join(kind.name for kind in resolved.step_kinds)
        refuse(
            "noise is drawn for steps of one kind",
            f"gradient_exchange = {resolved.exchange.name!r} has several ({kinds})",
            "gradient_exchange = 'all_reduce', or leave jitter out",
        )
    if resolved.steps > 1:
        refuse(
            "noise is drawn for steps that end before the next one begins",
            f"with schedule = {resolved.schedule.name!r}, gradient_exchange = {resolved.exchange.name!r} and post_validation = "
            f"{str(resolved.post_validation).lower()} they run into each other",
            "schedule = 'one_f_one_b' with gradient_exchange = 'all_reduce', or leave jitter out",
        )
    program = lower_resolved(job.workload, resolved)
    priced = price_ranks(program, job.cluster)
    trace = run(priced.program, priced.prices)
    step = _noisy(priced, program)
    for cause in no_effect(step, jitter):
        raise PlanError(f"jitter.{cause} varies {_ACTS_ON[cause]}. Way out: leave jitter.{cause} out")
    causes = [*jitter.causes, *(["parts"] if priced.unfolded else [])]
    size = program.size * step.mesh.count
    if size > _MOST_CELLS:
        raise SpecError(
            f"noise is drawn for every row of every replica, {_MOST_CELLS:,} of them at most, but a step has {program.size:,} rows in "
            f"{step.mesh.count:,} replicas. Way out: fewer GPUs, or fewer microbatches of a replica"
        )
    stretch = priced.stretch(trace)
    steps = samples * (1 + len(causes)) if (stretch > 1.0).any() else _SELDOM
    exact = engine != "compiled" or size * steps * (1.0 + size / _WIDE_STEP) <= _EXACT_ROWS
    frozen = step if exact else replace(step, stretch=stretch)
    runs = {"": SampledEngine(frozen, engine, exact)}
    if priced.unfolded:
        plain = price_ranks(program, replace(job.cluster, parts=()))
        alike = _noisy(plain, program)
        if not exact:
            alike = replace(alike, stretch=plain.stretch(run(plain.program, plain.prices)))
        runs["parts"] = SampledEngine(alike, engine, exact)
    times, without, chains = _run(runs, causes, lambda sample: draw(step, jitter, seed, sample), samples, say)
    ranks, links = _blame(step, times, chains)
    return Variation(
        jitter=jitter,
        seed=seed,
        quiet=trace.makespan,
        times=times,
        without=without,
        ranks=ranks,
        links=links,
        frozen=not exact and priced.prices.interferes,
    )


def _run(
    runs: dict[str, SampledEngine],
    causes: Sequence[str],
    drawn: Callable[[int], Draws],
    samples: int,
    say: Callable[[str], None] | None,
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]], list[Chain]]:
    """Run every step with all causes, then without each; `runs` has the engine of all ("") and of those that need their own."""
    times, chains = np.zeros(samples), []
    without = {cause: np.zeros(samples) for cause in causes}
    for sample in range(samples):
        draws = drawn(sample)
        noisy = step_times(runs[""].step, draws)
        times[sample] = runs[""].makespan(noisy)
        chains.append(runs[""].chain(noisy))
        del noisy
        runs[""].forget()
        for cause in causes:
            other = runs.get(cause, runs[""])
            less = step_times(other.step, draws, off=() if cause == "parts" else (cause,))
            without[cause][sample] = other.makespan(less)
            del less
            other.forget()
        if say is not None and (sample + 1) % max(1, samples // 10) == 0:
            say(f"{sample + 1} of {samples} steps with noise")
    return times, without, chains


def described_noise(job: Job, samples: int = DEFAULT_SAMPLES, seed: int = 0) -> Jitter:
    """Return the noise of a job, before anything is simulated.

    Raises:
        SpecError: the job describes none, or the number of samples or the seed cannot be.
    """
    if job.jitter is None or not job.jitter.causes:
        raise SpecError(
            f"job {job.name!r} describes no noise, so all its steps are equal. Way out: a table [jitter] in the job, or --set "
            "such as jitter.compute=0.02 (sigma of the time of an action); noise is never assumed"
        )
    if isinstance(samples, bool) or not 1 <= samples <= _MOST_SAMPLES:
        raise SpecError(f"samples must be from 1 to {_MOST_SAMPLES}, but is {samples}")
    check_seed(seed)
    return job.jitter


def _noisy(priced: Priced, program: Program) -> NoisyStep:
    mesh = replica_mesh(program)
    class_of = priced.class_of if len(priced.class_of) else np.zeros(mesh.count, np.int64)
    return NoisyStep(program=program, mesh=mesh, class_of=class_of, prices=priced.prices, item_of=priced.item_of)


def _blame(step: NoisyStep, times: NDArray[np.float64], chains: list[Chain]) -> tuple[Any, Any]:
    """Mean parts of the slowest steps' longest chains, by rank and by link."""
    slow = np.flatnonzero(times >= np.quantile(times, _TAIL))
    ranks: Counter[tuple[int, int]] = Counter()
    links: Counter[str] = Counter()
    for sample in slow.tolist():
        chain, scale = chains[sample], 1.0 / (times[sample] * len(slow))
        computes = step.program.kind[chain.row] == COMPUTE
        owners = step.program.rank[chain.row]
        for rank, replica, seconds in zip(
            owners[computes].tolist(), chain.replica[computes].tolist(), chain.seconds[computes].tolist(), strict=True
        ):
            ranks[rank, replica] += seconds * scale
        for row, seconds in zip(chain.row[~computes].tolist(), chain.seconds[~computes].tolist(), strict=True):
            links[step.program.items[int(step.program.item[row])].name] += seconds * scale
    return tuple(ranks.most_common(_SHOWN)), tuple(links.most_common(_SHOWN))
