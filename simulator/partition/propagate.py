"""How a product runs on ranks: what each operand must be, what comes out, and the collectives around it, forward and backward.

Y = einsum(X, W) runs over the union of their dimensions, and a mesh axis divides at most one of these: as the layout's rules divide them
all, or, where it says so, as its result lies (`run_along`).  Along it

    an operand that has the dimension     is wanted in parts
    an operand that lacks it              is wanted whole
    a result that has it                  comes out in parts
    a result that lacks it                comes out as terms of a sum

Both gradients are einsums over the same dimensions, dX = einsum(dY, W) and dW = einsum(X, dY), so the same four lines say them.  For a
product Y[s, n] = X[s, k] W[k, n] and an axis that divides

    n (columns)   X whole; Y in parts              dX summed; dW in parts
    k (rows)      X in parts; Y summed             dY whole; dX and dW in parts
    s             X, Y in parts; W whole           dX in parts; dW summed

With two axes, results at rest and weights on both, these four lines are the algorithms SUMMA: Y[s, n] with s on rows and n on cols takes X
gathered along cols and W gathered along rows; dX is scattered and added along cols, dW along rows.

What a tensor is held as, and is to become, its layout says (`Layout.placed`); between the two stands `redistribute`.

Source of SUMMA: van de Geijn and Watts 1997, Concurrency: Practice and Experience 9(4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.partition.layout import PARTIAL, REPLICATE, Layout, Placement, Shard, kind_of
from simulator.partition.redistribute import Move, redistribute
from simulator.workload.graph import Dim, Tensor

__all__ = [
    "Steps",
    "einsum_steps",
    "look_up_along",
    "product_dims",
    "product_steps",
    "run_along",
    "seen_as_made",
    "wanted",
]


@dataclass(frozen=True, slots=True)
class Steps:
    """The changes of placement around one einsum: of its first operand, of its second, of its result."""

    first: tuple[Move, ...]
    second: tuple[Move, ...]
    result: tuple[Move, ...]


def product_dims(*tensors: Tensor) -> tuple[Dim, ...]:
    """The dimensions that an operation runs over: those of all its tensors, once each.

    >>> x, w = Tensor("x", (Dim("s", 2), Dim("k", 3)), 2.0), Tensor("w", (Dim("k", 3), Dim("n", 4)), 2.0)
    >>> [d.name for d in product_dims(x, w)]
    ['s', 'k', 'n']
    """
    found: dict[str, Dim] = {}
    for dim in (d for tensor in tensors for d in tensor.dims):
        found.setdefault(dim.serves or dim.name, dim)
    return tuple(found.values())


def run_along(layout: Layout, left: Tensor, right: Tensor, out: Tensor) -> Mapping[str, Dim]:
    """Return mesh axis -> the dimension of a product that it divides, axes of one rank too.

    Raises:
        LayoutError: two of its dimensions claim one axis.
    """
    return layout.along(out.dims if layout.output_stationary else product_dims(left, right, out))


def look_up_along(layout: Layout, table: Tensor, out: Tensor) -> dict[str, Dim]:
    """Return mesh axis -> what it divides of a look-up, which is a product of one-hot rows with the table.

    Tables stay: what divides the table divides the look-up, and what is left divides the rows that come out.
    """
    found = layout.axes(table.dims, kind_of(table))
    return found | {axis: d for axis, d in layout.axes(out.dims).items() if axis not in found}


def seen_as_made(layout: Layout, seen: Tensor, made: Tensor) -> Tensor:
    """Return a tensor as an operation sees it, with the dimensions by which it was divided when it was made and which the view lacks.

    So the first token of every sequence still lies where its sequence does; what is made of it lies there too.
    """
    known = layout.along(seen.dims)
    lost = [dim for axis, dim in layout.along(made.dims).items() if axis not in known]
    return seen.view(*seen.dims, *lost) if lost else seen


def wanted(along: Mapping[str, Dim], tensor: Tensor, result: bool = False) -> dict[str, Placement]:
    """Return how an operation that runs so wants an operand, or leaves its result.

    Args:
        along: mesh axis -> the dimension of the operation that it divides (`Layout.along` of `product_dims`).
    """
    names = {d.serves or d.name: d.name for d in tensor.dims}
    absent = PARTIAL if result else REPLICATE
    return {
        axis: Shard(names[d.serves or d.name]) if (d.serves or d.name) in names else absent for axis, d in along.items()
    }


def einsum_steps(layout: Layout, along: Mapping[str, Dim], first: Tensor, second: Tensor, result: Tensor) -> Steps:
    """Return what stands around result = einsum(first, second), all of which lie as the layout says before and after."""
    return Steps(
        redistribute(layout.placed(first), wanted(along, first)),
        redistribute(layout.placed(second), wanted(along, second)),
        redistribute(wanted(along, result, True), layout.placed(result)),
    )


def product_steps(layout: Layout, left: Tensor, right: Tensor, out: Tensor) -> tuple[Steps, Steps, Steps]:
    """Return what stands around a product, around the gradient of its left operand, and around that of its right one.

    Raises:
        LayoutError: two of its dimensions claim one axis.

    >>> from simulator.partition.layout import rule
    >>> x, w, y = (Tensor(n, (Dim(a, 8), Dim(b, 8)), 2.0) for n, a, b in (("x", "s", "k"), ("w", "k", "n"), ("y", "s", "n")))
    >>> layout = Layout("columns", (("tensor", 4),), (rule("tensor", "n"), rule("tensor", "s")))
    >>> forward, to_x, to_w = product_steps(layout, x, w, y)
    >>> forward.first[0].collective, to_x.result[0].collective, to_w.first[0].collective
    ('all_gather', 'reduce_scatter', 'all_gather')
    """
    along = {axis: dim for axis, dim in run_along(layout, left, right, out).items() if layout.ranks(axis) > 1}
    return (
        einsum_steps(layout, along, left, right, out),
        einsum_steps(layout, along, out, right, left),
        einsum_steps(layout, along, left, out, right),
    )
