"""Transfers of an algorithm, in two forms: one by one with the parts they carry, and as arrays for thousands of ranks.

A *phase* lists transfers; a *pattern* is the same as arrays without the parts: it says which ports are busy and for how
long, and that is all that time needs.  A *round* is a pattern and how many times it is repeated: a ring of 4,096 ranks
is one pattern, 8,190 times.  A *leg* sums rounds up: so many hops, such a share of the message through the busiest port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Leg", "Pattern", "Phase", "Round", "Transfer", "joined", "legs_of", "pattern_of", "piped", "turned"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Ranks that send at once to ranks that receive: one to one on plain wires, many where a switch adds or copies.

    Args:
        sources: who sends; the switch adds up what several send.
        destinations: who receives the same bytes.
        parts: numbers of the parts of the message that travel.
        fraction: their share of the message.
        combines: added to what the receiver holds; otherwise it replaces it.
    """

    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    parts: tuple[int, ...]
    fraction: float
    combines: bool = False

    def back(self) -> Transfer:
        """Return the same transfer the other way round, as a copy."""
        return Transfer(sources=self.destinations, destinations=self.sources, parts=self.parts, fraction=self.fraction)


Phase = tuple[Transfer, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pattern:
    """Flows that go at once, as columns.

    Args:
        fraction: [flows] share of the message.
        source: [sources] who sends; `source_flow` says in which flow.
        destination: [destinations] who receives; `destination_flow` says in which flow.
    """

    fraction: NDArray[np.float64]
    source: Numbers
    source_flow: Numbers
    destination: Numbers
    destination_flow: Numbers

    @staticmethod
    def pairs(source: ArrayLike, destination: ArrayLike, fraction: ArrayLike) -> Pattern:
        """Return flows from one rank to another each; flows between the same two become one.

        >>> Pattern.pairs([0, 0], [1, 1], 0.25).fraction
        array([0.5])
        """
        a, b = np.asarray(source, np.int64).reshape(-1), np.asarray(destination, np.int64).reshape(-1)
        share = np.broadcast_to(np.asarray(fraction, np.float64), a.shape)
        base = int(max(a.max(initial=0), b.max(initial=0))) + 1
        keys, where = np.unique(a * base + b, return_inverse=True)
        flows = np.arange(len(keys))
        return Pattern(
            fraction=np.bincount(where, share, len(keys)).astype(np.float64),
            source=keys // base,
            source_flow=flows,
            destination=keys % base,
            destination_flow=flows,
        )

    @property
    def paired(self) -> bool:
        """Whether every flow has one source and one destination."""
        return len(self.source) == len(self.fraction) == len(self.destination)


Round = tuple[Pattern, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A stretch of an algorithm: seconds = hops x alpha + message x max(inner / B_inner, outer / B_outer).

    Args:
        hops: how many transfers follow one another; alpha is the network's if `outer` > 0, else the inner link's.
        inner: messages through the busiest port inside a node, one direction.
        outer: messages through the busiest share of the network cards (one rank's), one direction.
    """

    hops: int
    inner: float
    outer: float


def pattern_of(phase: Sequence[Transfer]) -> Pattern:
    """Return a phase as arrays."""
    if all(len(t.sources) == len(t.destinations) == 1 for t in phase):
        ends = np.array([(t.sources[0], t.destinations[0]) for t in phase], np.int64).reshape(-1, 2)
        return Pattern.pairs(ends[:, 0], ends[:, 1], [t.fraction for t in phase])
    return Pattern(
        fraction=np.array([t.fraction for t in phase], np.float64),
        source=np.array([rank for t in phase for rank in t.sources], np.int64),
        source_flow=np.repeat(np.arange(len(phase)), [len(t.sources) for t in phase]),
        destination=np.array([rank for t in phase for rank in t.destinations], np.int64),
        destination_flow=np.repeat(np.arange(len(phase)), [len(t.destinations) for t in phase]),
    )


def joined(patterns: Sequence[Pattern], share: float = 1.0) -> Pattern:
    """Return all flows of the patterns at once, each with `share` of what it carries."""
    if len(patterns) == 1 and share == 1.0:
        return patterns[0]
    fraction = np.concatenate([p.fraction for p in patterns]) * share
    source = np.concatenate([p.source for p in patterns])
    destination = np.concatenate([p.destination for p in patterns])
    if all(p.paired for p in patterns):
        return Pattern.pairs(source, destination, fraction)
    starts = np.cumsum([0, *(len(p.fraction) for p in patterns[:-1])])
    return Pattern(
        fraction=fraction,
        source=source,
        source_flow=np.concatenate([p.source_flow + start for p, start in zip(patterns, starts, strict=True)]),
        destination=destination,
        destination_flow=np.concatenate(
            [p.destination_flow + start for p, start in zip(patterns, starts, strict=True)]
        ),
    )


def turned(pattern: Pattern, place: GroupPlacement) -> Pattern:
    """Return one copy of the pattern per rank of a node, copy c with the ranks of every node turned by c places.

    A ring leaves each node by one rank; its copies leave by all of them, as NCCL's channels do.  A group that lies
    unevenly on its nodes is left as it is.
    """
    per_node = place.ranks_per_node
    if place.nodes < 2 or per_node < 2 or place.ranks != place.nodes * per_node or not pattern.paired:
        return pattern

    def turn(ranks: Numbers, by: int) -> Numbers:
        return ranks - ranks % per_node + (ranks + by) % per_node

    return Pattern.pairs(
        np.concatenate([turn(pattern.source, c) for c in range(per_node)]),
        np.concatenate([turn(pattern.destination, c) for c in range(per_node)]),
        np.tile(pattern.fraction / per_node, per_node),
    )


def piped(rounds: Sequence[Round], chunks: int) -> tuple[Round, ...]:
    """Return the rounds of `chunks` equal chunks that follow each other through the phases."""
    phases = [pattern for pattern, repeat in rounds for _ in range(repeat)]
    out: list[Round] = []
    before: tuple[int, int] | None = None
    for step in range(len(phases) + chunks - 1):
        window = max(0, step - chunks + 1), min(step, len(phases) - 1) + 1
        if window == before:
            out[-1] = out[-1][0], out[-1][1] + 1
        else:
            out.append((joined(phases[slice(*window)], 1 / chunks), 1))
        before = window
    return tuple(out)


def legs_of(rounds: Sequence[Round], place: GroupPlacement, pipelined: bool, turns: bool) -> tuple[Leg, ...]:
    """Return the legs of the rounds on a node of ports and one network card per rank; of a pipeline: one leg for all.

    Between nodes a byte leaves by the card that has the place of its receiver (PXN), after one hop inside.
    """
    found = [(_busy(turned(pattern, place) if turns else pattern, place), repeat) for pattern, repeat in rounds]
    hops = sum(repeat for _, repeat in found)
    if pipelined:
        total = np.sum([busy * repeat for busy, repeat in found], 0)
        return (Leg(hops=hops, inner=float(total[:2].max()), outer=float(total[2:].max())),)
    return tuple(
        Leg(hops=repeat, inner=float(busy[:2].max()) * repeat, outer=float(busy[2:].max()) * repeat)
        for busy, repeat in found
    )


def _busy(pattern: Pattern, place: GroupPlacement) -> NDArray[np.float64]:
    """Return messages (out of ports, into ports, out of cards, into cards) of every rank: [4, ranks]."""
    per_node, size = place.ranks_per_node, place.nodes * place.ranks_per_node
    busy = np.zeros((4, size))

    def add(row: int, ranks: Numbers, share: NDArray[np.float64]) -> None:
        busy[row] += np.bincount(ranks, share, size)

    if pattern.paired:
        a, b, share = pattern.source, pattern.destination, pattern.fraction
        leaves = a // per_node != b // per_node
        proxy = a - a % per_node + b % per_node
        moves = ~leaves | (proxy != a)
        add(0, a[moves], share[moves])
        add(1, np.where(leaves, proxy, b)[moves], share[moves])
        add(2, proxy[leaves], share[leaves])
        add(3, b[leaves], share[leaves])
        return busy
    flows = len(pattern.fraction)
    node = np.concatenate([pattern.source, pattern.destination]) // per_node
    flow = np.concatenate([pattern.source_flow, pattern.destination_flow])
    low, high = np.full(flows, size), np.zeros(flows, np.int64)
    np.minimum.at(low, flow, node)
    np.maximum.at(high, flow, node)
    leaves = low != high
    for row, ranks, of in (
        (0, pattern.source, pattern.source_flow),
        (1, pattern.destination, pattern.destination_flow),
    ):
        out = leaves[of]
        add(row, ranks[~out], pattern.fraction[of[~out]])
        add(row + 2, ranks[out], pattern.fraction[of[out]])
    return busy
