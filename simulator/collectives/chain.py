"""A chain of plain sends: the message goes from rank to rank in chunks of the best size.

With K chunks, n - 2 + K steps of alpha + S / K / B; the best K = sqrt((n - 2) S / B / alpha) makes that

    (sqrt(L) + sqrt(S / B))^2,    L = what all hops of one empty chunk take.

NCCL's own broadcast is the ring's chain, with chunks of a fixed size; this is what a library can do that chooses it.
"""

from __future__ import annotations

import dataclasses

from simulator.collectives.base import Cost, Phase, Transfer
from simulator.collectives.plain import PlainCollective, leg_cost
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Chain"]


class Chain(PlainCollective):
    """Pipelined broadcast and reduce, from or to rank 0."""

    name = "chain"
    aliases = ("pipelined", "pipelined_chain")
    kinds = ("broadcast", "reduce")
    source = "the textbook pipeline; derived here"
    pipelined = ("broadcast", "reduce")

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return the cost with chunks of the best size: two roots of latency times wire on top."""
        return dataclasses.replace(leg_cost(self, kind, place, fabric, table, protocol), ramp=2.0)

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return n - 1."""
        return place.ranks - 1

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 1: every rank but the last sends the message once."""
        return 1.0

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return one hop per rank."""
        inward, n = kind == "reduce", place.ranks
        hops = [(i, i - 1) for i in range(n - 1, 0, -1)] if inward else [(i, i + 1) for i in range(n - 1)]
        return tuple(
            (Transfer(sources=(a,), destinations=(b,), parts=(0,), fraction=1.0, combines=inward),) for a, b in hops
        )
