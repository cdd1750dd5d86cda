"""The rules that every order keeps: each part of each microbatch once, forward before backward, on its own rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.schedules.action import KINDS
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["check_order", "covered_microbatches"]


def check_order(order: PipelineOrder, placement: Placement, microbatches: int) -> None:
    """Check that every chunk runs every microbatch of its lane forward and then backward, once, on its own rank.

    A backward is one B, or one I and later one W.  Where a microbatch runs in parts, each part keeps the rule;
    where forward and backward have different parts, all of the forward comes before any of the backward.

    Raises:
        ProgramError: an action is missing, double, misplaced or too early; the message names it.
    """
    _check_range(order, placement, microbatches)
    where, microbatch = covered_microbatches(order)
    home = placement.rank_of[placement.lane_of[microbatch], order.chunk[where]]
    for n in np.flatnonzero(order.rank[where] != home)[:1]:
        action = order.action(int(where[n]))
        raise ProgramError(
            f"a chunk runs on the rank that holds it: {action} stands on rank {order.rank[where[n]]}, "
            f"but its lane has chunk {action.chunk} on rank {home[n]}; move it there"
        )
    first, last, parts = _places(order, where, microbatch, placement.chunks, microbatches)
    forward, whole, inputs, weights = (side >= 0 for side in last)
    _require_all(forward, "every chunk runs every microbatch forward once: {}F{} is missing")
    split = inputs | weights
    _require_all(~(split & whole), "a backward is B, or I and W: {}B{} stands beside its own I or W")
    _require_all(whole | inputs, "every forward has a backward: {0}B{1} (or {0}I{1}) is missing")
    _require_all(~split | weights, "a split backward is I and then W: {}W{} is missing")
    backward = np.where(split, 2, 1)[None]
    back_first = np.take_along_axis(first, backward, axis=0)[0]
    alike = parts[0] == np.take_along_axis(parts, backward, axis=0)[0]
    _require_all(alike | (back_first > last[0]), "a backward follows its forward: that of {}F{} is too early")
    _require_all(~split | (parts[2] == parts[3]), "I and W have the same parts: those of {}W{} differ")
    _check_parts(order, where, microbatch, placement.chunks, microbatches)


def _check_range(order: PipelineOrder, placement: Placement, microbatches: int) -> None:
    if order.ranks != placement.ranks or placement.microbatches != microbatches:
        raise ProgramError(
            f"order, placement and step agree: the order has {order.ranks} ranks, the placement {placement.ranks} "
            f"ranks and {placement.microbatches} microbatches, the step {microbatches}; make all three from one shape"
        )
    for name, column, size in (("kind", order.kind, len(KINDS)), ("chunk", order.chunk, placement.chunks)):
        for n in np.flatnonzero((column < 0) | (column >= size))[:1]:
            raise ProgramError(
                f"{name} lies in 0..{size - 1}: action {n} on rank {order.rank[n]} has {name} {column[n]}"
            )
    bad = (order.part < 0) | (order.part >= order.parts) | (order.count < 1) | ((order.count > 1) & (order.parts > 1))
    for n in np.flatnonzero(bad | ~(order.weight > 0))[:1]:
        raise ProgramError(
            f"an action is a part of a microbatch, counted from 0, or whole ones, with a weight above 0: action {n} on "
            f"rank {order.rank[n]} has count {order.count[n]}, part {order.part[n]} of {order.parts[n]}, weight "
            f"{order.weight[n]}"
        )
    end = order.microbatch.astype(np.int64) + order.count
    for n in np.flatnonzero((order.microbatch < 0) | (end > microbatches))[:1]:
        raise ProgramError(
            f"microbatches lie in 0..{microbatches - 1}: {order.action(n)} stands on rank {order.rank[n]}; "
            f"drop it, or give the step {int(end[n])} microbatches"
        )


def covered_microbatches(order: PipelineOrder) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return one entry per action and microbatch: the place of the action, and the microbatch."""
    places = np.arange(order.size)
    if order.size == 0 or order.count.max() == 1:
        return places, order.microbatch
    where = np.repeat(places, order.count)
    ahead = np.cumsum(order.count, dtype=np.int64) - order.count
    return where, (order.microbatch[where] + (np.arange(len(where)) - ahead[where])).astype(np.int32)


def _places(
    order: PipelineOrder, where: NDArray[np.int64], microbatch: NDArray[np.int32], chunks: int, microbatches: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int16]]:
    """Return [4, chunks, microbatches] first and last place (-1: none) and parts; refuse what is double or partial."""
    flat = (order.kind[where].astype(np.int64) * chunks + order.chunk[where]) * microbatches + microbatch
    cells = 4 * chunks * microbatches
    parts = np.zeros(cells, np.int16)
    parts[flat] = order.parts[where]
    for n in where[np.flatnonzero(parts[flat] != order.parts[where])[:1]]:
        raise ProgramError(
            f"the parts of a microbatch agree: {order.action(n)} stands beside another number of parts on rank "
            f"{order.rank[n]}; cut it one way"
        )
    slot = np.concatenate([[0], np.cumsum(parts)])
    fine = slot[flat] + order.part[where]
    place = np.full(int(slot[-1]), -1, np.int64)
    place[fine] = where
    for n in where[np.flatnonzero(place[fine] != where)[:1]]:
        raise ProgramError(f"every action runs once: {order.action(n)} stands twice on rank {order.rank[n]}; drop one")
    for k in np.flatnonzero(place < 0)[:1]:
        cell = int(np.searchsorted(slot, k, side="right")) - 1
        c, i = divmod(cell % (chunks * microbatches), microbatches)
        name = f"{c}{KINDS[cell // (chunks * microbatches)]}{i}.{k - slot[cell] + 1}/{parts[cell]}"
        raise ProgramError(f"every part of a microbatch runs once: {name} is missing")
    first, last = np.full(cells, -1, np.int64), np.full(cells, -1, np.int64)
    last[flat], first[flat[::-1]] = where, where[::-1]
    shape = (4, chunks, microbatches)
    return first.reshape(shape), last.reshape(shape), parts.reshape(shape)


def _check_parts(
    order: PipelineOrder, where: NDArray[np.int64], microbatch: NDArray[np.int32], chunks: int, microbatches: int
) -> None:
    """Check part by part that B or I follows F, where they are cut alike, and that W follows I."""
    most = int(order.parts.max())
    flat = (order.chunk[where].astype(np.int64) * microbatches + microbatch) * most + order.part[where]
    place = np.full((4, chunks * microbatches * most), -1, np.int64)
    parts = np.zeros((4, chunks * microbatches * most), np.int16)
    place[order.kind[where], flat] = where
    parts[order.kind[where], flat] = order.parts[where]

    def require(kind: int, before: int, message: str) -> None:
        bad = (parts[kind] == parts[before]) & (parts[kind] > 0) & (place[kind] < place[before])
        for k in np.flatnonzero(bad)[:1]:
            raise ProgramError(message.format(order.action(int(place[before if kind != 3 else 3, k]))))

    require(1, 0, "a backward follows its forward: that of {} is too early")
    require(2, 0, "a backward follows its forward: that of {} is too early")
    require(3, 2, "W follows I: {} is too early")


def _require_all(good: NDArray[np.bool_], message: str) -> None:
    for chunk, microbatch in np.argwhere(~good)[:1]:
        raise ProgramError(message.format(chunk, microbatch))
