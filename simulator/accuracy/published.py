"""Measured runs shipped with the simulator: one file of workloads/published per published table.

A file says once what all runs of the table share (workload, plan, cluster) and then, run by run, what differs and what was
measured; every run is a job as in workloads/jobs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from simulator.accuracy.attempt import how_predicted
from simulator.accuracy.scores import Outcome
from simulator.errors import SimulatorError
from simulator.hardware.run_residuals import run_kind
from simulator.job import Job, make_job
from simulator.simulation import simulate_job
from simulator.specs import Name, NamedSpec, Spec, load_named, names
from simulator.units import Seconds

__all__ = ["PublishedTable", "load_published", "published_jobs", "published_outcomes"]

Table = dict[str, Any]


class PublishedRun(Spec):
    """One run of a table: what differs from the others, and its measured step time."""

    case: Name
    step_time: Seconds
    workload: Table = Field(default_factory=dict)
    plan: Table = Field(default_factory=dict)
    cluster: Table = Field(default_factory=dict)


class PublishedTable(NamedSpec):
    """A published table: what its runs share, its runs, and where it was printed."""

    citation: Name
    workload: Table = Field(default_factory=dict)
    plan: Table = Field(default_factory=dict)
    cluster: Table = Field(default_factory=dict)
    runs: Annotated[list[PublishedRun], Field(min_length=1)]


@functools.lru_cache(maxsize=32)
def load_published(name: str) -> PublishedTable:
    """Return the published table of this name."""
    return load_named("published", name, PublishedTable)


def published_jobs(name: str) -> Iterator[tuple[str, Job]]:
    """Yield (case, job with its measured step time) for each run of a table.

    >>> [case for case, _ in published_jobs("korthikanti_table5")][:2]
    ['22B full', '22B selective']
    """
    table = load_published(name)
    for run in table.runs:
        parts = ("workload", "plan", "cluster")
        data: Table = {part: {**getattr(table, part), **getattr(run, part)} for part in parts}
        data["measured_step_time"] = f"{run.step_time!r} s"
        yield run.case, make_job(data, f"workloads/published/{name}.toml, run {run.case!r}", run.case)


def published_outcomes() -> Iterator[list[Outcome]]:
    """Yield the outcome of each shipped run, table by table."""
    for name in names("published"):
        citation = load_published(name).citation
        for case, job in published_jobs(name):
            yield [_outcome(f"{name}: {case}", citation, job)]


def _outcome(case: str, citation: str, job: Job) -> Outcome:
    axes = {"tp": job.plan.tensor_parallel, "pp": job.plan.pipeline_parallel}
    sweep = f"{citation} | {job.cluster.gpu.name} | {job.workload.model.name} | {job.cluster.world_size}"
    facts: dict[str, Any] = {
        "case_id": case,
        "quantity": "step_time_s",
        "group": citation,
        "measured": job.measured_step_time,
        "assumed": job.assumptions,
        "sweep": sweep,
        "kind": run_kind(axes, job.plan.zero_stage == 3, job.workload.model.experts > 0),
    }
    try:
        prediction = simulate_job(job)
    except SimulatorError as error:
        return Outcome(**facts, reason=str(error))
    return Outcome(
        **facts,
        predicted=prediction.step_time,
        low=prediction.low,
        high=prediction.high,
        **how_predicted(prediction),
        terms=tuple(prediction.breakdown.items()),
    )
