"""Who sends what to whom in a pipeline order: found once per schedule and shape, shared by all plans that use it.

An action covers atoms of work: (microbatch, part).  The forward of a chunk feeds, atom by atom, the forward of the next chunk, its
backward the backward of the chunk before.  Atoms that go together from one action to one action are one message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.program.ragged import ranges
from simulator.remembered import kept
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["Messages", "Pattern", "atoms_of", "extreme"]

Ints = NDArray[np.int64]


class Messages(NamedTuple):
    """Of an order.

    Args:
        source, target: [messages] the action that sends, the action that waits for it; sorted by source.
        link: [messages] index into `links`.
        links: (sending rank, receiving rank, part of a whole microbatch's activations, chunk in front of which messages are as large).
        local_source, local_target: the same for neighbours on one rank, where nothing is sent.
    """

    source: Ints
    target: Ints
    link: Ints
    links: tuple[tuple[int, int, float, int], ...]
    local_source: Ints
    local_target: Ints


class Pattern:
    """Arrays over the actions of an order, numbered as there, and its messages: each found when it is first asked for."""

    def __init__(self, order: PipelineOrder, placement: Placement) -> None:
        self._order, self._placement = order, placement
        self._messages: dict[tuple[int, ...], Messages] = {}

    @kept
    def rank(self) -> Ints:
        """[actions] where each runs."""
        offsets = self._order.rank_offsets
        return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

    @kept
    def lane(self) -> Ints:
        """[actions] where each runs."""
        return self._placement.lane_of[self._order.microbatch].astype(np.int64)

    def messages(self, boundaries: tuple[int, ...] = ()) -> Messages:
        """Return who sends what to whom.

        Args:
            boundaries: as `State.boundaries`.
        """
        if boundaries not in self._messages:
            self._messages[boundaries] = _messages_of(self._order, self._placement, self.rank, boundaries)
        return self._messages[boundaries]

    @kept
    def last_backward(self) -> NDArray[np.bool_]:
        """[actions] whether it completes its chunk's gradients on its lane."""
        return extreme(self._order, self.home, (1, 3), last=True)

    @kept
    def first_forward(self) -> NDArray[np.bool_]:
        """[actions] whether it is its chunk's first forward on its lane."""
        return extreme(self._order, self.home, (0,), last=False)

    @property
    def home(self) -> Ints:
        """[actions] a number for the chunk and the lane of each."""
        numbers: Ints = self.lane * self._placement.chunks + self._order.chunk
        return numbers


def _messages_of(order: PipelineOrder, placement: Placement, rank: Ints, boundaries: tuple[int, ...]) -> Messages:
    source, target, share = _messages(order, placement.rank_of.shape[1])
    here, there = rank[source], rank[target]
    remote = here != there
    ranks = len(order.rank_offsets) - 1
    fractions, which = (
        np.unique(share[remote], return_inverse=True) if remote.any() else (np.ones(1), np.zeros(0, np.int64))
    )
    code = (here[remote] * ranks + there[remote]) * len(fractions) + which
    if boundaries:  # a message goes through the one in front of the later of its two chunks
        crossed = np.maximum(order.chunk[source], order.chunk[target])[remote].astype(np.int64)
        code = code * len(boundaries) + np.array(boundaries)[crossed]
    present = np.flatnonzero(np.bincount(code, minlength=1)) if len(code) else np.zeros(0, np.int64)
    lookup = np.zeros(int(code.max()) + 1 if len(code) else 1, np.int64)
    lookup[present] = np.arange(len(present))
    links = tuple(_link(int(c), ranks, fractions, max(1, len(boundaries))) for c in present)
    return Messages(
        source=source[remote],
        target=target[remote],
        link=lookup[code],
        links=links,
        local_source=source[~remote],
        local_target=target[~remote],
    )


def _link(code: int, ranks: int, fractions: NDArray[np.float64], boundaries: int) -> tuple[int, int, float, int]:
    """What a number of a link says."""
    code, boundary = divmod(code, boundaries)
    pair, which = divmod(code, len(fractions))
    return pair // ranks, pair % ranks, float(fractions[which]), boundary


def extreme(order: PipelineOrder, home: Ints, kinds: tuple[int, ...], last: bool) -> NDArray[np.bool_]:
    """Mark the last (or first) action of these kinds of each home."""
    where = np.flatnonzero(np.isin(order.kind, kinds))
    where = where if last else where[::-1]
    found = np.full(int(home.max(initial=-1)) + 1, -1, np.int64)
    found[home[where]] = where
    mask = np.zeros(len(order.kind), bool)
    mask[found[found >= 0]] = True
    return mask


def _messages(order: PipelineOrder, chunks: int) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """(sending action, waiting action, share of a microbatch) for every pair of neighbours, sorted by the sender."""
    kind, chunk = order.kind, order.chunk.astype(np.int64)
    action, atom, atoms, grain = atoms_of(order)
    found = []
    for kinds, step in (((0,), 1), ((1, 2), -1)):
        mine = np.isin(kind[action], kinds)
        table = np.full((chunks, atoms), -1, np.int64)
        table[chunk[action[mine]], atom[mine]] = action[mine]
        feeds = mine & (chunk[action] + step >= 0) & (chunk[action] + step < chunks)
        sender = action[feeds]
        waiter = table[chunk[sender] + step, atom[feeds]]
        known = waiter >= 0
        found.append((sender[known], waiter[known]))
    sender, waiter = (np.concatenate(columns) for columns in zip(*found, strict=True))
    by_sender = np.argsort(sender, kind="stable")
    sender, waiter = sender[by_sender], waiter[by_sender]
    if len(action) == len(kind):
        return sender, waiter, np.full(len(sender), 1.0 / grain)
    fresh = np.ones(len(sender), bool)
    fresh[1:] = (sender[1:] != sender[:-1]) | (waiter[1:] != waiter[:-1])
    starts = np.flatnonzero(fresh)
    return sender[fresh], waiter[fresh], np.diff(np.append(starts, len(sender))) / grain


def atoms_of(order: PipelineOrder) -> tuple[Ints, Ints, int, int]:
    """Return actions expanded to atoms: (action of each atom, atom number, how many atoms there are, atoms per microbatch)."""
    microbatch = order.microbatch.astype(np.int64)
    most = int((microbatch + order.count).max(initial=0))
    if (order.count == 1).all() and (order.parts == 1).all():
        return np.arange(len(microbatch)), microbatch, most, 1
    grain = int(np.lcm.reduce(np.unique(order.parts).astype(np.int64)))
    each = order.count.astype(np.int64) * (grain // order.parts.astype(np.int64))
    action = np.repeat(np.arange(len(microbatch)), each)
    first = microbatch * grain + order.part.astype(np.int64) * (grain // order.parts.astype(np.int64))
    return action, ranges(first, each), most * grain, grain
