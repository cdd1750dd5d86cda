"""simulate(): the whole way on one page.

workload + plan --lower--> Program --price(cluster)--> Prices --run--> Trace --measure--> Prediction
"""

from __future__ import annotations

from typing import Any

from simulator.costs.ranks import price_ranks
from simulator.engine import run
from simulator.hardware.cluster import Cluster
from simulator.hardware.parts import Part
from simulator.job import Job
from simulator.lowering import lower_settled, settle
from simulator.plan.plan import Plan
from simulator.program.spec import verify
from simulator.report.prediction import Prediction, measure
from simulator.workload.workload import Workload

__all__ = ["simulate", "simulate_job"]


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

    >>> from simulator.job import load_job
    >>> job = load_job("gpt3_175b")
    >>> prediction = simulate(job.workload, job.plan, job.cluster)
    >>> 5 < prediction.step_time < 60, prediction.fits
    (True, True)
    """
    settled = settle(workload, plan, cluster.world_size, f"cluster {cluster.name!r}")
    program = lower_settled(workload, settled)
    verify(program)
    priced = price_ranks(program, cluster, fold)
    trace = run(priced.program, priced.prices, engine)
    facts = _provenance(settled, priced.cluster, assumptions, cluster.parts)
    return measure(trace, priced.program, priced.prices, workload, priced.cluster, facts, priced.ranks)


def simulate_job(job: Job, engine: str = "compiled", fold: bool = True) -> Prediction:
    """Return the prediction of a job."""
    return simulate(job.workload, job.plan, job.cluster, engine, job.assumptions, fold)


def _provenance(
    settled: Any, cluster: Cluster, assumptions: tuple[str, ...], parts: tuple[Part, ...]
) -> dict[str, Any]:
    from simulator import __version__

    return {
        "version": __version__,
        "cluster": cluster.name,
        "gpu": cluster.gpu.name,
        "framework": settled.framework.name,
        "schedule": settled.schedule.name,
        "microbatches": settled.microbatches,
        "data_parallel": settled.data_parallel,
        "recompute": settled.recomputes.text,
        "attention": settled.style.attention,
        "assumptions": list(assumptions),
    } | ({"parts": [part.text for part in parts]} if parts else {})
