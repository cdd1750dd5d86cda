"""How a product is divided over ranks: its shape on one of them, and the collectives around it and around its gradients.

All of it follows from the layout (`simulator/partition/propagate.py`).  A product of experts leaves its sums to the exchange of rows.
Gradients of weights that other ranks hold too are added up once a step; those that ranks have parts of are scattered as they are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.errors import LayoutError
from simulator.partition.layout import Layout, Placement, Shard
from simulator.partition.propagate import run_along, seen_as_made, wanted
from simulator.partition.redistribute import Move, divided, redistribute
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.experts import EXPERT, EXPERT_ROWS, EXPERT_TENSOR, ROWS
from simulator.workload.graph import Dim, Product, Tensor, einsum
from simulator.workload.operator import Operator

__all__ = ["Around", "Division", "Hop", "divide", "hops", "tensor_collective"]


_BATCH, _ROWS, _COLUMNS, _DEPTH = range(4)
"""Places of a product's sizes (batch, m, n, k)."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A collective of the ranks of a mesh axis.

    Args:
        ways: how many times as large as its message the tensor is that it is about: other axes divide that, too.
        ranks: of the axis.
    """

    collective: str
    axis: str
    ways: int
    ranks: int


Hops = tuple[Hop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a layout does with a product of tensors with dimensions of certain names.

    Args:
        roles: (mesh axis, place in (batch, m, n, k)) of what axes divide.
        experts: whether each row meets the weights of one of several experts.
        columns, rows: whether what tensor parallelism (or that of experts) divides are its columns, or its depth.
        gathers, weights: collectives that bring its left and its right operand to where it runs, backward too; `sums`: those of its output.
        gathers_back: those of the output's gradient; `sums_back`: of the left operand's; `scatters`: of the weight's.
        terms: axes whose ranks have a term each of what these leave of it.
    """

    roles: tuple[tuple[str, int], ...]
    experts: bool = False
    columns: bool = False
    rows: bool = False
    gathers: Hops = ()
    weights: Hops = ()
    sums: Hops = ()
    gathers_back: Hops = ()
    sums_back: Hops = ()
    scatters: Hops = ()
    terms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A product on one rank.

    Args:
        shape: (batch, m, n, k) there.
        widths: columns of each separate product there.
        around: what is divided of it, and the collectives around it.
    """

    shape: tuple[int, int, int, int]
    widths: tuple[int, ...]
    around: Around


def divide(layout: Layout, o: Operator) -> Division:
    """Return how a product is divided.

    Raises:
        LayoutError: its right operand is divided where every rank needs all of it.
    """
    op = o.op
    if not isinstance(op, Product):
        raise TypeError(f"operation {op.label!r} is no product")
    left, right, out = next(op.pairs)
    seen, left = left, seen_as_made(layout, left, o.sources[0])
    out = seen_as_made(layout, out, left.view(*left.dims[len(seen.dims) :]))
    if not op.matrices:
        _check_right(layout, op, right, o.sources[1])
    around = _around(layout, left, right, out, o.sources[0])
    shape = _local(layout, o, around)
    widths = tuple(width * shape[2] // o.shape[2] for width in o.widths)
    if any(layout.shared(t.dims, TENSOR) > 1 for t in op.outputs if op.matrices):
        widths = _unlike_widths(layout, o, op)
        shape = (*shape[:2], sum(widths), shape[3])
    return Division(shape=shape, widths=widths, around=around)


def _around(layout: Layout, left: Tensor, right: Tensor, out: Tensor, made: Tensor) -> Around:
    """What is divided of a product of these, and the collectives around it: by the names of their dimensions, whatever their sizes.

    Args:
        made: the left operand as it was made, perhaps with dimensions of other names, which lie elsewhere.
    """
    key = right.role, *(tuple(_name(d) for d in t.dims) for t in (left, right, out, made))
    if key not in layout.known:
        layout.known[key] = _derived(layout, left, right, out, made)
    found: Around = layout.known[key]
    return found


def _derived(layout: Layout, left: Tensor, right: Tensor, out: Tensor, made: Tensor) -> Around:
    along = run_along(layout, left, right, out)
    of_left, of_right, of_out = ({_name(d) for d in t.dims} for t in (left, right, out))
    experts = bool(of_right - of_left - of_out)
    names = {_name(along[axis]) for axis in ((EXPERT_TENSOR,) if experts else layout.tensor) if axis in along}
    roles = tuple(
        (axis, _role(_name(dim), of_left, of_right, of_out))
        for axis, dim in along.items()
        if axis not in (EXPERT, EXPERT_ROWS)
    )
    columns, rows = bool(names & (of_right - of_left)), bool(names & (of_right & of_left) - of_out)
    if experts:
        return Around(roles=roles, experts=True, columns=columns, rows=rows)
    several = {a: d for a, d in along.items() if layout.ranks(a) > 1}
    lie = _as_made(layout, left, made), layout.placed(right), layout.placed(out)
    gathers = [
        hops(layout, at, redistribute(at, wanted(several, t))) for at, t in zip(lie, (left, right, out), strict=True)
    ]
    terms = [wanted(several, t, True) for t in (left, right, out)]
    sums = [hops(layout, held, redistribute(held, at)) for held, at in zip(terms, lie, strict=True)]
    return Around(
        roles=roles,
        columns=columns,
        rows=rows,
        gathers=gathers[0],
        weights=gathers[1],
        sums=sums[2],
        gathers_back=gathers[2],
        sums_back=sums[0],
        scatters=tuple(hop for hop in sums[1] if hop.collective != "all_reduce"),
        terms=tuple(hop.axis for hop in sums[1] if hop.collective == "all_reduce"),
    )


def _as_made(layout: Layout, seen: Tensor, made: Tensor) -> dict[str, Placement]:
    """Return where an operand lies: as it was made, where a dimension has another name now."""
    old = [d.name for d in made.dims if d.name not in {s.name for s in seen.dims}]
    new = [d.name for d in seen.dims if d.name not in {m.name for m in made.dims}]
    if not new or len(old) != len(new):
        return layout.placed(seen)
    now = dict(zip(old, new, strict=True))
    lies = layout.placed(made).items()
    return {axis: Shard(now.get(at.dim, at.dim)) if isinstance(at, Shard) else at for axis, at in lies}


def hops(layout: Layout, held: Mapping[str, Placement], moves: tuple[Move, ...]) -> Hops:
    """Return the collectives of the tensor-parallel ranks among some changes of a tensor's placement."""
    ranks = {axis: layout.ranks(axis) for axis in layout.tensor}
    return tuple(
        Hop(
            move.collective,
            move.axis,
            ways * (ranks[move.axis] if move.collective == "all_to_all" else 1),
            ranks[move.axis],
        )
        for move, ways in divided(held, moves, ranks)
        if move.collective and move.axis in ranks
    )


def _role(name: str, of_left: set[str], of_right: set[str], of_out: set[str]) -> int:
    """Which size of (batch, m, n, k) a dimension belongs to."""
    if name in of_left & of_right:
        return _BATCH if name in of_out else _DEPTH
    return _COLUMNS if name in of_right else _ROWS


def _unlike_widths(layout: Layout, o: Operator, op: Product) -> tuple[int, ...]:
    """Columns of each separate product on one rank, where outputs are divided in unlike ways."""
    outputs = [
        (einsum(*pair)[2], layout.parts(d, TENSOR)) for pair in op.pairs if (d := layout.along(pair[2].dims)[TENSOR])
    ]
    mine = iter(columns // parts for columns, parts in outputs)
    return tuple(sum(itertools.islice(mine, n)) for n in op.kernels or (len(outputs),))


def _check_right(layout: Layout, op: Product, seen: Tensor, made: Tensor) -> None:
    """Refuse a right operand that is divided by what the product does not see, such as keys by their tokens: nobody gathers it."""
    whole = seen_as_made(layout, seen, made)
    lost = [d.name for d in whole.dims[len(seen.dims) :]]
    if lost and layout.tensor_ranks > 1:
        axes = " and ".join(repr(axis) for axis in layout.tensor)
        raise LayoutError(
            f"layout {layout.name!r} divides {' and '.join(lost)} of {seen.name!r} on mesh axis {axes}, of which operation "
            f"{op.label!r} needs all on every rank. Way out: sequence_parallel = false, or a layout that divides heads."
        )


def tensor_collective(moves: tuple[Move, ...]) -> str:
    """Return the collective of the tensor-parallel ranks among some changes of placement; "" for none."""
    return next((move.collective for move in moves if move.axis == TENSOR), "")


def _local(layout: Layout, o: Operator, around: Around) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of the forward product on one rank."""
    sizes = list(o.shape)
    if around.experts:
        dealt, b = layout.ranks(EXPERT), o.shape[_BATCH]
        fullest = layout.ways(tuple(d for d in o.op.inputs[0].dims if d.name == ROWS))
        sizes[_ROWS] = max(1, round(o.shape[_ROWS] / fullest * dealt / b))
        sizes[_BATCH] = b // dealt
    padded = tuple(d for d in o.op.inputs[0].dims if d.name in layout.pads)
    for axis, role in around.roles:
        sizes[role] = (
            round(sizes[role] / layout.ways(padded)) if padded and role == _ROWS else sizes[role] // layout.ranks(axis)
        )
        if role in (_BATCH, _ROWS):
            sizes[role] = max(1, sizes[role])
    b, m, n, k = sizes
    return b, m, n, k


def _name(dim: Dim) -> str:
    return dim.serves or dim.name
