"""An order of the user's own, from text: where its chunks live follows from who runs them."""

from __future__ import annotations

import numpy as np

from simulator.errors import ProgramError
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_check import check_order, covered_microbatches
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["placement_of", "read_order"]


def read_order(text: str) -> tuple[PipelineOrder, Placement, Shape]:
    """Return the order that `text` holds, where its chunks live, and its shape; every rule of an order is checked.

    Args:
        text: one line per rank, see `PipelineOrder.parse`; lines that begin with # are remarks.

    Returns:
        Order, placement, and shape (chunks per rank and lane).

    Raises:
        ProgramError: the text is no order, or the order breaks a rule; the message names line or action.

    >>> order, placement, shape = read_order("0F0,1F0,1B0,0B0")
    >>> placement.rank_of.tolist(), str(shape)
    ([[0, 0]], 'ranks=1, microbatches=1, chunks_per_rank=2')
    """
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    order = PipelineOrder.parse("\n".join(kept))
    placement = placement_of(order)
    check_order(order, placement, placement.microbatches)
    return order, placement, Shape(order.ranks, placement.microbatches, placement.chunks // order.ranks)


def placement_of(order: PipelineOrder) -> Placement:
    """Return the placement that an order implies: microbatches whose chunks run on the same ranks share a lane.

    Raises:
        ProgramError: a chunk of a microbatch has no forward or runs on two ranks, a rank runs nothing, or the ranks hold
            unequal numbers of chunks.
    """
    where, microbatch = covered_microbatches(order)
    chunks, microbatches = int(order.chunk.max()) + 1, int(microbatch.max()) + 1
    if chunks * microbatches > 4 * len(where) or chunks % order.ranks:
        raise ProgramError(
            f"an order runs every chunk for every microbatch, and ranks hold equally many: got {chunks} chunks, "
            f"{microbatches} microbatches and {order.ranks} ranks with {order.size} actions; number both from 0, chunks "
            "over all ranks"
        )
    home = np.full((microbatches, chunks), -1, np.int64)
    home[microbatch, order.chunk[where]] = order.rank[where]
    for n in where[np.flatnonzero(home[microbatch, order.chunk[where]] != order.rank[where])[:1]]:
        action = order.action(int(n))
        raise ProgramError(
            f"a chunk of a microbatch runs on one rank: {action} stands on rank {order.rank[n]}, other actions of it on "
            f"rank {home[action.microbatch, action.chunk]}; move one"
        )
    for i, chunk in np.argwhere(home < 0)[:1]:
        raise ProgramError(f"every chunk runs every microbatch forward once: {chunk}F{i} is missing")
    lanes, first, lane_of = np.unique(home, axis=0, return_index=True, return_inverse=True)
    turn = np.argsort(first)
    if len(lanes) > 127 or any(len(set(np.bincount(lane, minlength=order.ranks))) > 1 for lane in lanes):
        raise ProgramError(
            f"every rank holds equally many chunks of each of up to 127 lanes: got {len(lanes)} lanes, the first on ranks "
            f"{lanes[turn[0]].tolist()}; give each rank as many chunks"
        )
    return Placement(lanes[turn].astype(np.int32), np.argsort(turn)[lane_of.ravel()].astype(np.int8))
