"""What NCCL offers for a log, as numbers that a fit multiplies: latency and seconds on the wire of each pair."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.collectives import ALGORITHMS, PRIOR, competitors
from simulator.errors import CalibrationError
from simulator.hardware.coefficients import PairName, load_cost_table

__all__ = ["Stack", "Term", "pairs_offered", "stacked", "terms_of"]


@dataclass(frozen=True, slots=True)
class Term:
    """One algorithm and protocol on one log's wires: latency [s] and seconds on the wire per point, without
    multipliers.

    `hops` is by how much the latency grows with that of the network; `room` is how much the bandwidth can be multiplied
    before the bare wires end it.
    """

    pair: PairName
    latency: float
    hops: float
    wire: NDArray[np.float64]
    room: float

    def seconds(self, latency: float, bandwidth: float, ramp: float, hop: float) -> NDArray[np.float64]:
        """Return the seconds [s] per point, by the multipliers of its pair."""
        fixed, wire = (self.latency + self.hops * hop) * latency, self.wire / min(bandwidth, self.room)
        return np.asarray(fixed + wire + ramp * np.sqrt(fixed * wire))


@dataclass(frozen=True, slots=True)
class Stack:
    """All terms of a log as arrays: which pair each is, [terms] latency, hops and room, [terms, points] wire."""

    pair: NDArray[np.int64]
    latency: NDArray[np.float64]
    hops: NDArray[np.float64]
    room: NDArray[np.float64]
    wire: NDArray[np.float64]

    def seconds(self, multipliers: NDArray[np.float64], hop: float) -> NDArray[np.float64]:
        """Return the least seconds per point; multipliers are [pairs, 3]: latency, bandwidth, ramp."""
        latency, bandwidth, ramp = multipliers[self.pair].T
        fixed = ((self.latency + self.hops * hop) * latency)[:, None]
        wire = self.wire / np.minimum(bandwidth, self.room)[:, None]
        return np.asarray((fixed + wire + ramp[:, None] * np.sqrt(fixed * wire)).min(0))


def stacked(terms: Sequence[Term], names: Sequence[PairName]) -> Stack:
    """Return terms as arrays; `names` says in which order their pairs count."""
    return Stack(
        pair=np.array([names.index(term.pair) for term in terms]),
        latency=np.array([term.latency for term in terms]),
        hops=np.array([term.hops for term in terms]),
        room=np.array([term.room for term in terms]),
        wire=np.stack([term.wire for term in terms]),
    )


@functools.lru_cache(maxsize=1024)
def terms_of(log: NcclLog) -> list[Term]:
    """Return every algorithm and protocol that the library could have chosen for a log.

    Raises:
        CalibrationError: there is none.
    """
    table, out = load_cost_table(), []
    slower = replace(log.fabric, network_latency=log.fabric.network_latency + 1.0)
    offered_here = competitors(log.kind, log.fabric.algorithms)
    members = offered_here if log.algorithm == "auto" else (ALGORITHMS.get(log.algorithm),)
    for member in members:
        for protocol in member.protocols if log.kind in member.kinds else ():
            chosen = log.algorithm != "auto" or log.protocol == protocol
            offered = chosen or log.place.nodes < 2 or table.offers(log.fabric.network, member.name, protocol)
            if log.protocol in ("auto", protocol) and offered:
                cost = member.cost(log.kind, log.place, log.fabric, table, protocol)
                if cost is not None:
                    total = member.seconds(log.kind, log.message, log.place, log.fabric, protocol, PRIOR, table)
                    room = cost.ceiling / cost.bandwidth
                    other = member.cost(log.kind, log.place, slower, table, protocol)
                    hops = other.latency - cost.latency if other else 0.0
                    out.append(Term(PairName(member.name, protocol), cost.latency, hops, total - cost.latency, room))
    if not out:
        raise CalibrationError(f"log {log.name}: NCCL offers no {log.kind} with {log.algorithm}, {log.protocol} there")
    return out


def pairs_offered(log: NcclLog) -> set[PairName]:
    """Return the pairs that NCCL offers for a log."""
    return {term.pair for term in terms_of(log)}
