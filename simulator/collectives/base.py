"""What a collective algorithm is: a cost on given wires, and the transfers it is made of.

Every algorithm is written twice in its one file.  `phases` says who sends what to whom; `hops` and `volume` are the
closed form of the same thing: on wires with a fixed time alpha per hop and beta per byte, a message of S bytes takes

    hops x alpha + volume x S x beta.

`cost` puts numbers to it as NCCL does.  A contract (`simulator.testing.collective_contract`) runs the phases, checks
that every rank ends with what it should hold, and that the time is that of the closed form.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.collectives.rounds import Leg, Pattern, Phase, Round, Transfer, legs_of, pattern_of
from simulator.hardware.coefficients import CostTable, Pair, load_cost_table
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["KINDS", "PRIOR", "PROTOCOLS", "Collective", "Cost", "Leg", "Pattern", "Phase", "Transfer"]

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
    "gather",
    "scatter",
)
"""What can be asked for.  The message is the largest buffer of a rank: the whole result of all_gather, the whole input
of reduce_scatter, the whole buffer of all_reduce and all_to_all, what one rank sends in send_recv, the root's whole
buffer of gather and scatter."""

PROTOCOLS = ("ll", "ll128", "simple")
"""How NCCL moves bytes: with a flag in every 8 bytes, in every 128, or behind a memory fence."""

PRIOR = Pair(latency=1.0, bandwidth=1.0, ramp=0.0)
"""Multipliers that change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of a message S: latency + S / bandwidth.

    Args:
        latency: [s].
        bandwidth: of the algorithm: message over time [B/s].
        ceiling: what the bare wires allow; no multiplier lifts the bandwidth above it [B/s].
        medium: factors on the bandwidth for messages of 64 B x 2^i; () = 1 everywhere.
        ramp: adds ramp x sqrt(latency x S / bandwidth); 2 = chunks of the best size through a pipeline.
    """

    latency: float
    bandwidth: float
    ceiling: float
    medium: tuple[float, ...] = ()
    ramp: float = 0.0


class Collective(abc.ABC):
    """One algorithm.

    Attributes:
        name: as in `--algorithm`.
        kinds: the collectives it can do.
        protocols: the protocols it knows.
        source: where it is described.
        pipelined: the kinds whose messages flow through it in chunks; their closed form is the limit of many chunks.
        automatic: whether libraries of today choose it by themselves (NCCL, RCCL), so that it competes where neither the
            call nor the cluster names an algorithm.  Not inherited: a new one does not, unless its own class says so.
        rotates: the kinds that run as one copy per rank of a node, each turned by one rank, so that all network cards
            of a node carry a part.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    protocols: ClassVar[tuple[str, ...]] = PROTOCOLS
    source: ClassVar[str]
    pipelined: ClassVar[tuple[str, ...]] = ()
    automatic: ClassVar[bool] = False
    rotates: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.automatic = cls.__dict__.get("automatic", False)

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether the transfers exist for such a group (any number of ranks, unless an algorithm says less)."""
        return kind in self.kinds

    def endpoints(self, place: GroupPlacement) -> int:
        """Return how many machines' ports the transfers name: the ranks, then servers without a GPU if there are any."""
        return place.ranks

    def patterns(self, kind: str, place: GroupPlacement) -> tuple[Round, ...]:
        """Return the phases as arrays, equal neighbours counted instead of repeated."""
        return tuple((pattern_of(phase), 1) for phase in self.phases(kind, place))

    def legs(self, kind: str, place: GroupPlacement) -> tuple[Leg, ...]:
        """Return the closed form on two kinds of wires: hops, and shares of the message inside and between nodes."""
        return legs_of(self.patterns(kind, place), place, kind in self.pipelined, kind in self.rotates)

    @abc.abstractmethod
    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return the cost on these wires by NCCL's model; None where NCCL does not offer it."""

    @abc.abstractmethod
    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the transfers, phase after phase; of a pipelined algorithm: those of one chunk."""

    @abc.abstractmethod
    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return how many transfers follow one another: the closed form's count of alpha."""

    @abc.abstractmethod
    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return the messages that pass the busiest port, one direction: the closed form's count of S x beta."""

    def steps(self, kind: str, place: GroupPlacement, chunks: int = 1) -> Iterator[Phase]:
        """Yield who sends what fraction of the message to whom, step by step; chunks follow each other."""
        phases = self.phases(kind, place)
        if kind not in self.pipelined or chunks == 1:
            yield from phases
            return
        for step in range(len(phases) + chunks - 1):
            active = [phases[step - chunk] for chunk in range(chunks) if 0 <= step - chunk < len(phases)]
            yield tuple(_slice(transfer, chunks) for phase in active for transfer in phase)

    def seconds(
        self,
        kind: str,
        message: ArrayLike,
        place: GroupPlacement,
        fabric: Fabric,
        protocol: str = "simple",
        tuning: Pair = PRIOR,
        table: CostTable | None = None,
    ) -> NDArray[np.float64]:
        """Return the seconds of each message [B]; infinite where NCCL does not offer the algorithm or protocol.

        L + S/B + ramp x sqrt(L x S/B), with L and B the prior's latency and bandwidth times the tuning's multipliers.
        """
        sizes = np.atleast_1d(np.asarray(message, np.float64))
        cost = self.cost(kind, place, fabric, table or load_cost_table(), protocol)
        if cost is None:
            return np.full(sizes.shape, np.inf)
        latency = cost.latency * tuning.latency
        ramp = tuning.ramp + cost.ramp
        wire = sizes / min(cost.bandwidth * tuning.bandwidth, cost.ceiling)
        if cost.medium:
            steps = np.log2(np.maximum(sizes, 1.0) / 64.0)
            wire = wire / np.interp(steps, np.arange(len(cost.medium)), cost.medium)
        return np.asarray(latency + wire + ramp * np.sqrt(latency * wire))


def _slice(transfer: Transfer, chunks: int) -> Transfer:
    return Transfer(
        sources=transfer.sources,
        destinations=transfer.destinations,
        parts=transfer.parts,
        fraction=transfer.fraction / chunks,
        combines=transfer.combines,
    )
