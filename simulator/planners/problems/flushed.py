"""A pipeline that drains at the end of every step, by the time of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

from simulator.errors import SpecError
from simulator.planners.problems.pipeline import Level, Pipeline, make_pipeline
from simulator.workload.cost_graph import CostGraph

__all__ = ["Flushed", "make_flushed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Flushed(Pipeline):
    """A pipeline by the time of a step.

    Args:
        microbatches: of a step.
    """

    microbatches: int = 1
    objective: ClassVar[str] = "time per step"
    drains: ClassVar[bool] = True
    schedule: ClassVar[str] = "one_f_one_b"

    @property
    def lower_bound(self) -> float:
        """All devices busy all the time."""
        return self.microbatches * float(self.work[-1]) / self.devices

    @property
    def one_device(self) -> float:
        """s per step of all on one device."""
        return self.microbatches * float(self.work[-1])


Kind = TypeVar("Kind", bound=Flushed)


def make_flushed(
    kind: type[Kind], graph: CostGraph, levels: tuple[Level, ...], microbatches: int, transfers: bool = True
) -> Kind:
    """Return the problem of cutting a graph into stages of a pipeline that drains.

    Args:
        kind: of problem.
        graph, levels, transfers: see `make_pipeline`; times and bytes are those of one microbatch.
        microbatches: of a step.

    Raises:
        SpecError: no microbatch; or as of `make_pipeline`.
    """
    if microbatches < 1:
        raise SpecError(f"a step has 1 microbatch or more, got {microbatches}")
    plain = make_pipeline(graph, levels, transfers)
    return kind(
        graph=plain.graph, levels=plain.levels, transfers=transfers, inputs=plain.inputs, microbatches=microbatches
    )
