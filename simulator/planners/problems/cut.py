"""A graph of costs that is cut into stages, which end at ideals: sets of nodes that hold whatever their members read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.errors import refuse
from simulator.planners.base import Problem
from simulator.planners.down_sets import ideals_of, subsets
from simulator.workload.cost_graph import CostGraph

__all__ = ["Cut"]

Plan = TypeVar("Plan")


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut(Problem[Plan]):
    """Stages of a graph.

    Class attributes:
        drains: whether a step ends with a flush.
        most_states: ideals that a graph may have; work grows with them.
        cut: what is cut, in words; `instead`: what to do where a graph has more.
    """

    graph: CostGraph
    drains: ClassVar[bool] = False
    most_states: ClassVar[int]
    cut: ClassVar[str]
    instead: ClassVar[str]

    @cached_property
    def states(self) -> NDArray[np.bool_]:
        """(states, nodes) the ideals of the graph, small ones first: where stages may end.

        Raises:
            PlanError: there are too many.
        """
        pairs = [(edge.source, edge.target) for edge in self.graph.edges]
        found = ideals_of(len(self.graph.nodes), pairs, self.most_states)
        if found is None:
            refuse(
                f"{self.cut} cut between at most {self.most_states:,} ideals",
                f"graph {self.graph.name!r} has more",
                self.instead,
            )
        return found

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """(states, states) whether the first is a smaller ideal inside the second."""
        return subsets(self.states)
