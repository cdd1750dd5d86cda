"""From where a tensor lies to where it is wanted: which collective, and how much it moves.

    held         wanted       collective         bytes moved by all p ranks, of a tensor of T bytes
    Shard(i)     Shard(i)     none               0
    Shard(i)     Shard(j)     all_to_all         (p - 1) / p T
    Shard(i)     REPLICATE    all_gather         (p - 1) T
    PARTIAL      Shard(i)     reduce_scatter     (p - 1) T
    PARTIAL      REPLICATE    all_reduce         2 (p - 1) T
    REPLICATE    Shard(i)     none, a slice      0

Source: the table of Yuan et al., OneFlow, arXiv 2110.15032, section 3.2 (boxing).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.errors import LayoutError
from simulator.partition.layout import PARTIAL, REPLICATE, Placement, Shard

__all__ = ["Move", "collective", "moved_bytes", "redistribute"]


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
    """Return what brings a tensor from one placement to another, axis by axis; axes that are not named replicate.

    Sums are made and parts are gathered before anything is cut, so that no dimension is divided twice on the way.
    """
    axes = dict.fromkeys((*held, *wanted))
    moves = [Move(a, held.get(a, REPLICATE), wanted.get(a, REPLICATE)) for a in axes]
    changed = [move for move in moves if move.held != move.wanted]
    return tuple(sorted(changed, key=lambda move: move.held == REPLICATE))


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
