"""What the passes hand on: items and effects that grow pass by pass, and the structure of rows, until `emit` joins them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.cut import Cut
from simulator.lowering.steps.pattern import Pattern
from simulator.lowering.steps.structure import Step, Structure, extended
from simulator.program.program import Block, Effect, Item, Link, Tensor
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.workload.workload import Workload

__all__ = ["State"]

Ints = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class State:
    """The program under construction."""

    workload: Workload
    resolved: ResolvedPlan
    chunks: tuple[Chunk, ...]
    costs: dict[str, LayerCost]
    structure: Structure
    scaled_costs: Callable[[int, int, int, float], dict[str, LayerCost]]
    """(count, part, parts, weight) of an action -> costs of its layers, where it is not one whole microbatch."""

    boundaries: tuple[int, ...] = ()
    """Per chunk, the first one in front of which messages are as large as in front of it; () = all are."""

    items: list[Item] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    effects: dict[tuple[Tensor, ...], int] = field(default_factory=dict)
    stands: list[tuple[Step, tuple[Hashable, ...]]] = field(default_factory=list)
    """Steps that give rows their effects, when all rows are there."""
    resident: list[list[Tensor]] = field(default_factory=list)
    host: list[list[Tensor]] = field(default_factory=list)
    """Per rank: what one of its GPUs has put into host memory, at most."""

    drives: list[list[Tensor]] = field(default_factory=list)
    """Per rank: what one of its GPUs has put on its host's drives, at most."""
    fetched: dict[int, float] = field(default_factory=dict)
    """Per rank: bytes of the largest shard that comes from a drive."""

    group_weights: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """The weights of layers that go together; filled at first use by `parameters.group_held`."""
    on_ranks: Any = None
    """What lies on each rank; found at first use by `parameters`."""
    rank_weights: dict[int, Any] = field(default_factory=dict)
    """Weights of a rank, and of those of the same contents; filled at first use by `parameters.rank_held`."""

    issued: list[tuple[Ints, Ints]] = field(default_factory=list)
    """(copies, the compute row after which each is issued), pairwise."""
    down: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per rank: the copy after which its gradients are on the host; empty where they go there with the update."""

    # filled by `instances`
    scales: list[dict[str, LayerCost]] = field(default_factory=list)
    """Costs of layers at each size of an action."""
    occurring: dict[tuple[int, bool, int], set[int]] = field(default_factory=dict)
    """(kind of chunk, whether backward, size) -> the variants of the actions that occur."""
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Kinds of layers that are larger than a bucket of gradients: the kinds of their parts, as the backward runs them."""
    cuts: dict[tuple[int, str, int], Cut] = field(default_factory=dict)
    """How passes over chunks are cut: (kind of chunk, direction, variant) -> units or buckets, and segments."""

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.resolved.pipeline_parallel

    @property
    def placement(self) -> Placement:
        """Where chunks live."""
        return self.structure.placement

    @property
    def order(self) -> PipelineOrder:
        """The actions of all ranks."""
        return self.structure.order

    @property
    def pattern(self) -> Pattern:
        """Who sends what to whom."""
        return self.structure.pattern

    @property
    def updates(self) -> NDArray[np.bool_]:
        """Per action: whether an update follows it at once; empty where updates end the step."""
        return self.structure.updates

    @property
    def first_row(self) -> Ints:
        """Per action: its first compute row."""
        return self.structure.first_row

    @property
    def last_row(self) -> Ints:
        """Per action: its last compute row."""
        return self.structure.last_row

    def build(self, step: Step, *facts: Hashable) -> Any:
        """Add rows by a step that sees the rows before it and these facts alone; returns what the step returns."""
        self.structure = extended(self.structure, step, facts)
        return self.structure.result

    def stand(self, step: Step, *facts: Hashable) -> None:
        """Give rows effects by a step that adds none, after all rows: programs that differ in memory alone share their rows."""
        self.stands.append((step, facts))

    def mine(self) -> Structure:
        """Return the structure to add rows to that no other plan shares; steps that follow are not shared either."""
        if self.structure.shared:
            self.structure = self.structure.draft()
        return self.structure

    def add_item(self, item: Item) -> int:
        """Append an item; returns its number."""
        self.items.append(item)
        return len(self.items) - 1

    def link(self, what: str, name: str, message: float, dtype: str, group: tuple[str, ...], **more: Any) -> int:
        """Append a link; returns its item.

        Args:
            what: the collective, or kind of copy, with which its name begins.
            message, dtype, group, more: as in `Link`.
        """
        made = Link(name=f"{what} {name}", collective=what, message=message, dtype=dtype, group=group, **more)
        return self.add_item(made)

    def wait(self, rows: Any, on: Any) -> None:
        """As `Structure.wait`."""
        self.mine().wait(rows, on)

    def touch(self, edge: str, rows: Any, effects: Any) -> None:
        """As `Structure.touch`."""
        self.mine().touch(edge, rows, effects)

    def effect(self, tensors: tuple[Tensor, ...]) -> int:
        """Number of an effect with these tensors; -1 for none."""
        if not tensors:
            return -1
        return self.effects.setdefault(tensors, len(self.effects))

    def effect_list(self) -> tuple[Effect, ...]:
        """All effects, by number."""
        return tuple(Effect(tensors=t) for t in self.effects)
