"""From where a tensor lies to where it is wanted: which collective, and how much it moves.

    held         wanted       collective         bytes moved by all p ranks, of a tensor of T bytes
    Shard(i)     Shard(i)     none               0
    Shard(i)     Shard(j)     all_to_all         (p - 1) / p T
    Shard(i)     REPLICATE    all_gather         (p - 1) T
    PARTIAL      Shard(i)     reduce_scatter     (p - 1) T
    PARTIAL      REPLICATE    all_reduce         2 (p - 1) T
    REPLICATE    Shard(i)     none, a slice      0

Where a dimension lies on several axes, only the last of them can be gathered or exchanged, and only behind the last can another cut it:
a block that an earlier axis cut is not one piece of the whole.  So changes have an order, and some need two steps.

Source: the table of Yuan et al., OneFlow, arXiv 2110.15032, section 3.2 (boxing).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from simulator.errors import LayoutError
from simulator.partition.layout import PARTIAL, REPLICATE, Placement, Shard

__all__ = ["Move", "collective", "divided", "moved_bytes", "redistribute", "sizes"]


@dataclass(frozen=True, slots=True)
class Move:
    """A change of placement along one mesh axis.

    Args:
        axis: of the mesh.
        held, wanted: placements before and after.
    """

    axis: str
    held: Placement
    wanted: Placement

    @property
    def collective(self) -> str:
        """Name of the collective that makes it; "" where each rank cuts its part out of what it has."""
        return collective(self.held, self.wanted)


def collective(held: Placement, wanted: Placement) -> str:
    """Return the collective between two placements along an axis; "" for none.

    Raises:
        LayoutError: a sum is wanted in terms, which nobody has.

    >>> collective(PARTIAL, Shard("sequence")), collective(Shard("sequence"), Shard("heads")), collective(REPLICATE, Shard("ffn"))
    ('reduce_scatter', 'all_to_all', '')
    """
    if held == wanted:
        return ""
    if wanted == PARTIAL:
        raise LayoutError(f"a tensor that is {_said(held)} cannot be made a sum that is still to be added up")
    if held == PARTIAL:
        return "all_reduce" if wanted == REPLICATE else "reduce_scatter"
    if held == REPLICATE:
        return ""
    return "all_gather" if wanted == REPLICATE else "all_to_all"


def redistribute(held: Mapping[str, Placement], wanted: Mapping[str, Placement]) -> tuple[Move, ...]:
    """Return what brings a tensor from one placement to another; axes that are not named replicate.

    What costs nothing comes first, then what adds up or exchanges, then what gathers, so that as little as possible moves.  A dimension
    that goes from one axis to another is gathered along the one before the other cuts it.

    Args:
        held, wanted: placement by axis; axes of one dimension in the order in which they cut it.

    Raises:
        LayoutError: a sum is wanted in terms, which nobody has.

    >>> x, y = Shard("x"), Shard("y")
    >>> [(m.axis, m.collective) for m in redistribute({"rows": x, "depth": x, "cols": PARTIAL}, {"rows": x, "cols": x, "depth": y})]
    [('depth', 'all_to_all'), ('cols', 'reduce_scatter')]
    >>> [(m.axis, m.collective) for m in redistribute({"rows": x, "cols": x}, {"cols": x})]
    [('cols', 'all_gather'), ('rows', 'all_gather'), ('cols', '')]
    """
    now = {axis: place for axis, place in held.items() if place != REPLICATE}
    goal = {axis: place for axis, place in wanted.items() if place != REPLICATE}
    moves = []
    while list(now.items()) != list(goal.items()):
        move = _next(now, goal)
        if move is None:
            break  # the same placement, axes of different dimensions in another order
        moves.append(move)
        now.pop(move.axis, None)
        if move.wanted != REPLICATE:
            now[move.axis] = move.wanted
    return tuple(moves)


def _next(now: Mapping[str, Placement], goal: Mapping[str, Placement]) -> Move | None:
    """The first change on the way from one placement to another, None where they are the same."""
    for axis, wanted in goal.items():
        if axis not in now and isinstance(wanted, Shard) and _free(now, goal, axis, wanted.dim):
            return Move(axis, REPLICATE, wanted)
    leaving = [axis for axis, place in now.items() if not _stays(now, goal, axis, place)]
    for axis in leaving:
        wanted = goal.get(axis, REPLICATE)
        if wanted == PARTIAL or (isinstance(wanted, Shard) and _last(now, axis) and _free(now, goal, axis, wanted.dim)):
            return Move(axis, now[axis], wanted)
    for axis in sorted(leaving, key=lambda axis: now[axis] != PARTIAL):
        if now[axis] == PARTIAL and isinstance(goal.get(axis), Shard) and any(now[a] != PARTIAL for a in leaving):
            continue  # what stands in its way goes first
        if _last(now, axis):
            return Move(axis, now[axis], REPLICATE)
    for axis, wanted in goal.items():
        if axis not in now:
            return Move(axis, REPLICATE, wanted)
    return None


def _on(places: Mapping[str, Placement], dim: str) -> list[str]:
    """The axes that cut a dimension, in their order."""
    return [axis for axis, place in places.items() if isinstance(place, Shard) and place.dim == dim]


def _stays(now: Mapping[str, Placement], goal: Mapping[str, Placement], axis: str, place: Placement) -> bool:
    """Whether an axis has what it is to have already: of a dimension, with the same axes before it."""
    if not isinstance(place, Shard):
        return goal.get(axis) == place
    held, wanted = _on(now, place.dim), _on(goal, place.dim)
    n = held.index(axis) + 1
    return held[:n] == wanted[:n]


def _last(now: Mapping[str, Placement], axis: str) -> bool:
    """Whether an axis cut its dimension last, or has terms of a sum."""
    place = now[axis]
    return not isinstance(place, Shard) or _on(now, place.dim)[-1] == axis


def _free(now: Mapping[str, Placement], goal: Mapping[str, Placement], axis: str, dim: str) -> bool:
    """Whether an axis is the next to cut a dimension, all before it having done so."""
    held = [other for other in _on(now, dim) if other != axis]
    return [*held, axis] == _on(goal, dim)[: len(held) + 1]


def sizes(
    held: Mapping[str, Placement], moves: tuple[Move, ...], size: float, ranks: Mapping[str, int]
) -> Iterator[tuple[Move, float]]:
    """Return each change with the bytes that the ranks of its axis have of the tensor then, together: its message [B].

    Args:
        held: placement before.
        size: of the whole tensor [B].
        ranks: of each axis.

    >>> moves = redistribute({"rows": Shard("x"), "cols": Shard("y")}, {})
    >>> [(m.axis, b) for m, b in sizes({"rows": Shard("x"), "cols": Shard("y")}, moves, 64.0, {"rows": 2, "cols": 4})]
    [('rows', 16.0), ('cols', 64.0)]
    """
    for move, ways in divided(held, moves, ranks):
        yield move, size / ways


def divided(
    held: Mapping[str, Placement], moves: tuple[Move, ...], ranks: Mapping[str, int]
) -> Iterator[tuple[Move, int]]:
    """Return each change with how many ways the other axes divide the tensor then; arguments as of `sizes`."""
    cut = {axis for axis, place in held.items() if isinstance(place, Shard)}
    for move in moves:
        yield move, math.prod(ranks.get(axis, 1) for axis in cut - {move.axis})
        cut.discard(move.axis)
        if isinstance(move.wanted, Shard):
            cut.add(move.axis)


def moved_bytes(move: Move, size: float, ranks: int) -> float:
    """Return the bytes that a change moves in sum over all ranks of its axis.

    Args:
        size: of the whole tensor (as far as other axes do not divide it) [B].
        ranks: of the axis.
    """
    share = {"": 0.0, "all_to_all": 1.0 / ranks, "all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
    return share[move.collective] * (ranks - 1) * size


def _said(placement: Placement) -> str:
    return f"divided by {placement.dim}" if isinstance(placement, Shard) else "whole"
