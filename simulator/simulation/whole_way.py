"""simulate(): the whole way on one page.

workload + plan --lower--> Program --price(cluster)--> Prices --run--> Trace --measure--> Prediction
"""

from __future__ import annotations

from dataclasses import replace

from simulator.costs.ranks import price_ranks
from simulator.costs.tables import machine_of
from simulator.engine import run
from simulator.errors import ProgramError, SpecError, refuse
from simulator.hardware.cluster import Cluster
from simulator.job import Job
from simulator.lowering import ResolvedPlan, resolve_on
from simulator.lowering.layers.expand import layer_costs
from simulator.lowering.resolve.framework_rules import beyond_framework
from simulator.lowering.steps.bucket_parts import is_cut
from simulator.plan.plan import Plan
from simulator.program.calls import AttentionCall
from simulator.program.program import Program
from simulator.program.spec import verify
from simulator.report.fused_buckets import fused, ready_gradients
from simulator.report.mean_prediction import OneKind, mean_prediction
from simulator.report.prediction import Prediction, measure
from simulator.report.trained import trained_by
from simulator.simulation.formats import as_multiplied
from simulator.simulation.one_kind import simulate_kind
from simulator.simulation.own_pace import at_own_pace
from simulator.specs import files_as_they_are
from simulator.units import show
from simulator.workload.layer_kind import is_layer
from simulator.workload.workload import Workload

__all__ = ["simulate", "simulate_job", "simulate_program"]

ROUNDING = 1e-9
"""Sums of bytes are made in another order where a bucket is filled than where it was seen."""


@files_as_they_are()
def simulate(
    workload: Workload,
    plan: Plan,
    cluster: Cluster,
    engine: str = "compiled",
    assumptions: tuple[str, ...] = (),
    fold: bool = True,
) -> Prediction:
    """Return the prediction of one training step.

    Args:
        workload: what is trained.
        plan: how it is split.
        cluster: on what; its world size must be what the plan multiplies to.
        engine: "compiled" or "simpy".
        assumptions: what was filled in by whoever made the arguments; kept in the provenance.
        fold: False simulates every replica, also those that are alike; the same times come out (for tests, small worlds).

    Raises:
        PlanError: the plan cannot be.
        SpecError: the cluster's GPU cannot compute in the workload's precision.
        TypeError: an argument is a name of one, say.

    >>> from simulator.job import load_job
    >>> job = load_job("gpt3_175b")
    >>> prediction = simulate(job.workload, job.plan, job.cluster)
    >>> 5 < prediction.step_time < 60, prediction.fits
    (True, True)
    """
    for given, kind in ((workload, Workload), (plan, Plan), (cluster, Cluster)):
        if not isinstance(given, kind):
            way = " Way out: simulator.load_cluster(NAME, GPUS)" if kind is Cluster else ""
            raise TypeError(f"simulate takes a Workload, a Plan and a Cluster, not {given!r:.60}.{way}")
    resolved = resolve_on(workload, plan, cluster, tries=True)
    if resolved.exchange.one_process and cluster.nodes > 1:
        refuse(
            "one process has the GPUs of one node",
            f"gradient_exchange = {resolved.exchange.name!r} and {cluster.nodes} nodes of cluster {cluster.name!r}",
            f"cluster.gpus = {cluster.gpus_per_node}, or framework = 'pytorch_ddp'",
        )
    resolved = _fusing(workload, resolved, cluster, engine, fold)
    beyond = beyond_framework(resolved.framework, resolved.schedule, plan)
    noted = (
        *assumptions,
        *_small_bucket(workload, resolved, plan),
        *_torch_of_today(workload, resolved, plan, cluster),
        *([f"{beyond}: predicted as if it did"] if beyond else []),
        *(
            [f"framework {resolved.framework.name!r} runs stages with ranks of their own (no profile says so)"]
            if plan.stages
            else []
        ),
    )
    if resolved.exchange.stale and resolved.replicas > 1:
        return at_own_pace(workload, resolved, cluster, engine, noted, fold)
    return mean_prediction(
        tuple(
            OneKind(
                kind.name,
                kind.share,
                simulate_kind(workload, resolved.in_kind(kind), cluster, engine, noted, fold),
            )
            for kind in resolved.step_kinds
        )
    )


def _fusing(workload: Workload, resolved: ResolvedPlan, cluster: Cluster, engine: str, fold: bool) -> ResolvedPlan:
    """Say which gradients are reduced together where a thread takes what is ready: as it is in a step that reduces each by itself."""
    cycle = resolved.framework.cycle_time
    if not (cycle and resolved.overlap_gradients and resolved.zero_stage == 0 and resolved.pipeline_parallel == 1):
        return resolved
    each = simulate_kind(workload, replace(resolved, bucket_sizes=(1.0,)), cluster, engine, (), fold)
    ready = ready_gradients(each.program, each.trace)
    wide = resolved.gradient_bytes / resolved.reduce_bytes * (1.0 - ROUNDING)
    return replace(resolved, bucket_sizes=fused([(at, wide * size) for at, size in ready], cycle, resolved.bucket_size))


def simulate_program(program: Program, cluster: Cluster, engine: str = "compiled") -> Prediction:
    """Return the prediction of a step that is a program already, such as one that was recorded.

    Raises:
        ProgramError: it breaks a rule, is made for another number of ranks than the cluster has, or nothing in it takes time.
        SpecError: the cluster's GPU cannot compute in its number formats.
    """
    from simulator import __version__

    verify(program)
    world = program.world_size
    if world != cluster.world_size:
        raise ProgramError(
            f"a program runs on as many GPUs as its axes multiply to: {program.name!r} on {world}, but cluster {cluster.name!r} has "
            f"{cluster.world_size}. Way out: {world} GPUs"
        )
    program, noted = as_multiplied(program, cluster.gpu)
    priced = price_ranks(program, cluster)
    trace = run(priced.program, priced.prices, engine)
    facts = {
        "version": __version__,
        "cluster": priced.cluster.name,
        "gpu": priced.cluster.gpu.name,
        "framework": program.framework or "none",
        "program": program.name,
        "assumptions": noted,
    }
    trained = trained_by(priced.program)
    prediction = measure(trace, priced.program, priced.prices, trained, priced.cluster, facts, priced.ranks)
    if not prediction.step_time:
        raise ProgramError(
            f"a step takes time, but nothing of program {program.name!r} does. Way out: operators in its segments, or messages with bytes"
        )
    return prediction


def simulate_job(job: Job, engine: str = "compiled", fold: bool = True) -> Prediction:
    """Return the prediction of a job.

    Raises:
        TypeError: it is no job, but a name of one, say.
        SpecError: the job has neighbours: `simulator.studies.neighbours` finds what they leave it.
    """
    if not isinstance(job, Job):
        raise TypeError(f"simulate_job takes a Job, not {job!r:.60}. Way out: simulator.load_job(NAME)")
    if job.neighbours:
        raise SpecError(
            "neighbours are known to dtsim run and dtsim goodput (simulator.studies.neighbours): leave them out here"
        )
    prediction = simulate(job.workload, job.plan, job.cluster, engine, job.assumptions, fold)
    return replace(prediction, unknown=job.unknown) if job.unknown else prediction


def _small_bucket(workload: Workload, resolved: ResolvedPlan, plan: Plan) -> tuple[str, ...]:
    """What to say where layers are larger than the buckets asked for, and yet not cut."""
    if plan.bucket_size is None:
        return ()
    most = plan.bucket_size / resolved.gradient_bytes
    layers = {kind: cost for kind, cost in layer_costs(workload, resolved).items() if is_layer(kind)}
    whole = [kind for kind, cost in layers.items() if cost.trained > most and not is_cut(cost, most, resolved)]
    if not whole:
        return ()
    least = min(layers[kind].trained for kind in whole) * resolved.gradient_bytes
    return (
        f"gradients of {' and '.join(whole)} are reduced layer by layer at the finest: bucket_size = {show(plan.bucket_size, 'B')} "
        f"is less than the {show(least, 'B')} of a layer and has the effect of one",
    )


def _torch_of_today(workload: Workload, resolved: ResolvedPlan, plan: Plan, cluster: Cluster) -> tuple[str, ...]:
    """What to say where a release of PyTorch's attention is assumed, and one before it would take longer."""
    style, model = resolved.style, workload.model
    if plan.attention is not None or style.attention != "sdpa":
        return ()
    libraries = machine_of(cluster).attention.libraries
    repeated = style.repeats_keys and model.kv_heads < model.heads
    if libraries.get("sdpa") == libraries.get("sdpa_2025") and not repeated:
        return ()
    calls = (call for cost in layer_costs(workload, resolved).values() for call in cost.forward.call)
    if not any(isinstance(call, AttentionCall) for call in calls):
        return ()
    return ("attention = sdpa: that of PyTorch 2.11 or later (sdpa_2025: of releases before)",)
