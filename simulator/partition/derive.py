"""What every operation of a graph that lies on a mesh computes on one rank, and the collectives around it, forward and backward.

    operation        on a rank                        between ranks, along every mesh axis
    component-wise   slices of its tensors            nothing
    reduction        reduces its slice                all_reduce where the axis divides a reduced dimension
    einsum           einsum of slices                 all_reduce of the result where it divides a contracted dimension
    look-up          rows of its part of the table    all_reduce of the result where it divides the table's rows
    attention        its queries, its heads           keys and values gathered where it divides the sequence
    window           its rows and its neighbours'     send_recv of the rows at the border where it divides the window's dimension
    exchange of rows -                                all_to_all where it divides the experts

Around them stand moves of what lies otherwise than it is needed (`operands.py`), and so collectives (`exchanges.py`).
Source: the operations of Mesh-TensorFlow, Shazeer et al., arXiv 1811.02084, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.partition.exchanges import Collective, collectives_of
from simulator.partition.halos import Halo, halos_of
from simulator.partition.layout import Layout
from simulator.partition.operands import Operand, experts_axes, operands_of, reduced_axes, same_dimension
from simulator.partition.placements import LaidOut, lay_out
from simulator.workload.graph import (
    Attention,
    Dim,
    Exchange,
    HostWait,
    Kernel,
    LayerGraph,
    Op,
    Product,
    Tensor,
    count,
    einsum,
)
from simulator.workload.windows import Windowed

__all__ = ["DerivedOp", "derive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOp:
    """One operation on one rank.

    Args:
        op: the operation.
        along: mesh axis -> the dimension of the operation that its ranks divide.
        operands: its inputs, weights and outputs.
        reduces: axes over which it finds sums or maxima on its way (statistics of a norm).
        shapes: (batch, m, n, k) of each product on a rank.
        flops, backward_flops: of a rank [FLOP].
        bytes, backward_bytes: that a rank reads and writes [B].
        collectives: all of them, in the order in which they run.
        halos: rows that it reads of its neighbours, kept for the backward as the input is.
    """

    op: Op
    along: Mapping[str, Dim]
    operands: tuple[Operand, ...]
    reduces: tuple[str, ...]
    shapes: tuple[tuple[int, int, int, int], ...]
    flops: float
    backward_flops: float
    bytes: float
    backward_bytes: float
    collectives: tuple[Collective, ...]
    halos: tuple[Halo, ...] = ()

    def part(self, role: str) -> tuple[Operand, ...]:
        """Its operands of one role."""
        return tuple(o for o in self.operands if o.role == role)


def derive(
    graph: LayerGraph, layout: Layout | LaidOut, gathers_again: bool | None = None, halos: bool = True
) -> tuple[DerivedOp, ...]:
    """Return the operations of a graph as one rank runs them.

    Args:
        layout: rules, or where each tensor lies.
        gathers_again: whether operands that were gathered are not kept, but gathered once more for the backward; None = as the
            layout says.
        halos: whether neighbours may send each other the rows at their borders; Mesh-TensorFlow's rules have none.

    Raises:
        LayoutError: a tensor cannot lie so.

    >>> from simulator.partition.layout import rule
    >>> from simulator.workload.counts import model_graph
    >>> from simulator.workload.model import load_model
    >>> layout = Layout("columns", (("cols", 8),), (rule("cols", "heads", "ffn"),))
    >>> for op in derive(model_graph(load_model("gpt3_13b"), "layer"), layout):
    ...     for c in op.collectives:
    ...         print(op.op.label, c.direction, c.kind)
    qkv backward all_reduce
    projection forward all_reduce
    mlp up backward all_reduce
    mlp down forward all_reduce
    """
    laid = lay_out(graph, layout) if isinstance(layout, Layout) else layout
    dealt = experts_axes(graph, laid)
    again = not laid.keeps_gathered if gathers_again is None else gathers_again
    return tuple(
        _derived(op, along, laid, dealt, again, halos) for op, along in zip(graph.ops, laid.along, strict=True)
    )


def _derived(
    op: Op,
    along: Mapping[str, Dim],
    laid: LaidOut,
    dealt: frozenset[str],
    gathers_again: bool,
    halos: bool,
) -> DerivedOp:
    operands = operands_of(op, along, laid, dealt, gathers_again)
    reduces = reduced_axes(op, along)
    borders = tuple(halos_of(op, operands, laid, halos))
    flops, backward, shapes = _flops(op, operands)
    moved, moved_back = _bytes(op, operands, along, laid)
    return DerivedOp(
        op=op,
        along=along,
        operands=operands,
        reduces=reduces,
        shapes=shapes,
        flops=flops,
        backward_flops=backward,
        bytes=moved,
        backward_bytes=moved_back,
        collectives=tuple(collectives_of(op, operands, reduces, laid, borders)),
        halos=borders,
    )


def _flops(op: Op, operands: tuple[Operand, ...]) -> tuple[float, float, tuple[tuple[int, int, int, int], ...]]:
    """FLOP forward and backward, and the shapes of its products."""
    local = {o.tensor: o.tensor.view(*o.used_shape) for o in operands}
    if isinstance(op, Product):
        shapes = tuple(_shape(op, *(local[t] for t in pair)) for pair in op.pairs)
        flops = sum(2.0 * math.prod(shape) for shape in shapes)
        return flops, 2.0 * flops, shapes
    if isinstance(op, Attention):
        q, v = local[op.inputs[0]], local[op.inputs[2]]
        flops = 2.0 * count(q.dims[:-1]) * op.keys * (q.dims[-1].size + v.dims[-1].size)
        return flops, 2.5 * flops, ()
    if isinstance(op, Windowed) and op.weights:
        flops = 2.0 * count(local[op.outputs[0]].dims) * count(local[op.weights[0]].dims[:-1])
        return flops, 2.0 * flops, ()
    return 0.0, 0.0, ()


def _shape(op: Product, left: Tensor, right: Tensor, out: Tensor) -> tuple[int, int, int, int]:
    batch, m, n, k = einsum(left, right, out)
    if op.of_experts:
        m = max(1, m // batch)
    return batch, m, n, k


def _bytes(op: Op, operands: tuple[Operand, ...], along: Mapping[str, Dim], laid: LaidOut) -> tuple[float, float]:
    """Bytes that a rank reads and writes, forward and backward."""
    if isinstance(op, Exchange | HostWait):
        return 0.0, 0.0
    if isinstance(op, Kernel) and op.moves:
        forward = backward = 0.0
        for moved in op.moves:
            ways = _ways(op, moved.dims, along, laid)
            forward += (moved.bytes("read") + moved.bytes("written")) / ways
            backward += sum(moved.bytes(f) for f in ("backward_read", "backward_written", "sums_read")) / ways
        return forward, backward
    forward = sum(count(o.used_shape) * o.tensor.element for o in operands)
    return forward, 2.0 * forward


def _ways(op: Kernel, dims: tuple[Dim, ...], along: Mapping[str, Dim], laid: LaidOut) -> float:
    """How many times as much of some dimensions there is as a rank has."""
    ways = 1.0
    for axis, divided in along.items():
        dim = same_dimension(op, dims, divided.name, Tensor("", (divided,), 0.0))
        if dim is not None:
            ranks = laid.ranks[axis]
            ways *= dim.size / sum(one.size / _parts(one, ranks) for one in dim.joins or (dim,))
    return ways


def _parts(dim: Dim, ranks: int) -> int:
    """Into how many parts ranks divide a dimension: of key/value heads that are fewer, several have the same."""
    return dim.size if dim.serves and dim.size < ranks else ranks
