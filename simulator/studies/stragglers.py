"""What the parts of a cluster that differ cost a step: the job again without each, and without all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simulator.hardware.parts import Part
from simulator.job import Job
from simulator.report.prediction import Prediction
from simulator.report.ranks import critical_seconds, straggler
from simulator.report.table import Section, Table, percent
from simulator.simulation import simulate_job
from simulator.units import show

__all__ = ["PartCost", "Stragglers", "find_stragglers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """A part of the cluster and the step without it: were it like the rest.

    Args:
        name: the part in words; "all parts" for all of them together.
        step_time: of the step without it [s].
        costs: what the part adds to the step [s]; below zero if the step is quicker with it.
    """

    name: str
    step_time: float
    costs: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stragglers:
    """Who sets the pace of a step whose ranks differ, and what it would bring to make them like the rest.

    Args:
        prediction: the step.
        rank: of the program, whose work is the largest part of the longest chain.
        share: that part of the step.
        parts: what each part costs, the dearest first.
    """

    prediction: Prediction
    rank: int
    share: float
    parts: tuple[PartCost, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `stragglers` of `dtsim explain --json`."""
        kind = self.prediction.ranks[self.rank]
        return {
            "slowest": {
                "pipeline_rank": kind.pipeline_rank,
                "replicas": kind.replicas,
                "gpus": list(kind.gpus),
                "part_of_longest_chain": self.share,
            },
            "parts": [{"part": p.name, "step_time_without_s": p.step_time, "costs_s": p.costs} for p in self.parts],
        }

    def section(self) -> Section:
        """Return who sets the pace, to read."""
        kind, now = self.prediction.ranks[self.rank], self.prediction.step_time
        rows = tuple((p.name, show(p.step_time, "s"), show(p.costs, "s"), percent(p.costs / now)) for p in self.parts)
        return Section(
            title=f"who sets the pace: pipeline rank {kind.pipeline_rank} of replicas {kind.replicas} "
            f"({' and '.join(kind.gpus)}), {percent(self.share)} of the longest chain",
            table=Table(headings=("were it like the rest", "step", "it costs", ""), rows=rows),
        )


def find_stragglers(job: Job, prediction: Prediction, engine: str = "compiled") -> Stragglers | None:
    """Return who sets the pace and what each part costs; None when all ranks are alike.

    Args:
        job: as predicted.
        prediction: its prediction.
        engine: the engine for the steps without a part.
    """
    if not prediction.ranks:
        return None
    parts = job.cluster.parts
    found = []
    for number, part in enumerate(parts):
        rest = (*parts[:number], *parts[number + 1 :])
        found.append(_cost(part.text, job, prediction, rest, engine))
    found.sort(key=lambda p: -p.costs)
    if len(parts) > 1:
        found.append(_cost("all parts", job, prediction, (), engine))
    chain, rank = critical_seconds(prediction), straggler(prediction)
    return Stragglers(
        prediction=prediction, rank=rank, share=float(chain[rank]) / prediction.step_time, parts=tuple(found)
    )


def _cost(name: str, job: Job, prediction: Prediction, parts: tuple[Part, ...], engine: str) -> PartCost:
    other = simulate_job(replace(job, cluster=replace(job.cluster, parts=parts)), engine).step_time
    return PartCost(name=name, step_time=other, costs=prediction.step_time - other)
