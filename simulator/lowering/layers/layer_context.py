"""What the rows of a layer on one GPU depend on beside its operators: where its tensors lie, number formats, kernels, groups of ranks."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from simulator.lowering.layers.division import Division, divide
from simulator.lowering.resolve.expert_rules import Groups
from simulator.partition.layout import Layout
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.experts import EXPERT
from simulator.remembered import hashed_once
from simulator.workload.graph import Dim, Kernel
from simulator.workload.graph import Product as ProductOp
from simulator.workload.operator import KernelStyle, Operator
from simulator.workload.precision import Precision

__all__ = ["ExpertExchange", "LayerContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """How ranks that share experts exchange rows.

    `kind`: as in `Plan.expert_exchange`; `sorts`: whether rows that arrive are sorted by expert (several experts, from several ranks);
    `count`: experts of a layer; `imbalance`: rows of the hottest rank over the mean.
    """

    kind: str = "all_to_all"
    sorts: bool = False
    count: int = 0
    imbalance: float = 1.0


@hashed_once
@dataclass(frozen=True, kw_only=True)
class LayerContext:
    """One layer on one GPU.

    Args:
        layout: where its tensors lie.
        groups: mesh axes of the program behind those of the layout.
        precision, style: number formats and kernels.
        tokens, hidden: of a microbatch on the ranks that share it.
        experts: how their ranks exchange rows.
        exchange: how ranks that share sequences see each other's tokens (`Plan.context_parallel_kind`); `inner`: of them, those that deal
            heads out.
        overlaps: whether tensor-parallel collectives run beside products where the framework can.
        splits: pieces in which products are cut for that.
        gradient_bytes: of a gradient as it is kept.
        copies_to_reduce: whether every microbatch's gradients are copied to where they are reduced from, not added up before.
        taken: share of the microbatches whose gradients are taken as they are made, for there are none yet.
        bucketed: share of them whose gradients are copied into buckets and back.
        copied: collectives of sequences that a copy puts in order: before they are scattered, behind their gather.
        padded: how many times as large sequences are as they are gathered and scattered, their ranks' parts padded.
        fetches: ranks from whose parts hooks fetch the weights of every module; 0 = there are no hooks.
        attended: keys that a query may see, where sequences are packed documents: those of its own; 0 = all.
    """

    layout: Layout
    groups: Groups
    precision: Precision
    style: KernelStyle
    tokens: int
    hidden: int
    experts: ExpertExchange
    exchange: str = "ring"
    inner: int = 1
    overlaps: bool = False
    splits: int = 1
    gradient_bytes: float = 4.0
    copies_to_reduce: bool = False
    taken: float = 0.0
    bucketed: float = 0.0
    copied: tuple[str, ...] = ()
    padded: float = 1.0
    fetches: int = 0
    attended: float = 0.0
    _divisions: dict[tuple[int, tuple[int, int, int, int]], tuple[Operator, Division]] = field(
        default_factory=dict, compare=False
    )
    _moved: dict[int, tuple[Kernel, tuple[float, ...]]] = field(default_factory=dict, compare=False)

    @property
    def tensor(self) -> int:
        """Ranks of tensor parallelism."""
        return self.layout.tensor_ranks

    @property
    def sends_rows(self) -> bool:
        """Whether ranks have different experts, and send one another rows."""
        return self.layout.ranks(EXPERT) > 1

    @property
    def dtype(self) -> str:
        """Number format of activations."""
        return self.precision.compute

    @property
    def e(self) -> float:
        """Bytes of an activation's element."""
        return float(self.precision.element)

    @property
    def stream_bytes(self) -> float:
        """Bytes of the residual stream, undivided."""
        return self.tokens * self.hidden * self.e

    @functools.cached_property
    def joined(self) -> Layout:
        """The layout of what tensor-parallel ranks have gathered."""
        return self.layout.without(TENSOR)

    def ways(self, dims: tuple[Dim, ...], joined: bool = False) -> float:
        """How many times as much as this rank holds there is of an activation of these dimensions, or of one that is gathered."""
        return (self.joined if joined else self.layout).ways(dims)

    def group(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Mesh axes of the program behind some of the layout's."""
        return tuple(a for axis in axes for a in (self.groups.tensor if axis == TENSOR else (axis,)))

    def division(self, o: Operator) -> Division:
        """How a product is divided; errors as of `divide`."""
        key = id(o.op), o.shape
        if key not in self._divisions:
            layout = self.joined if isinstance(o.op, ProductOp) and o.op.joined else self.layout
            self._divisions[key] = o, divide(layout, o)  # who holds the operator keeps its id from being used again
        return self._divisions[key][1]

    def moved_ways(self, op: Kernel) -> tuple[float, ...]:
        """How many ways each tensor that a kernel moves is divided; one number where all are divided alike."""
        if id(op) not in self._moved:
            ways = [1.0 if op.whole else self.ways(moved.dims, moved.joined) for moved in op.moves]
            self._moved[id(op)] = op, tuple(ways[:1] if all(each == ways[0] for each in ways) else ways)
        return self._moved[id(op)][1]
