"""Synchronous parameter servers: everybody pushes gradients to who keeps the sum, and pulls the sum back.

Colocated: every rank keeps an n-th of the message; its port carries as much as a ring's.  Dedicated: k machines without
GPUs keep a k-th each; a server of n machines carries n / k messages, so that too few servers are a bottleneck.
"""

from __future__ import annotations

from simulator.collectives.base import Phase, Transfer
from simulator.collectives.byteps import ServedCollective
from simulator.collectives.plain import PlainCollective
from simulator.collectives.rounds import Leg
from simulator.hardware.fabric import GroupPlacement

__all__ = ["DedicatedParameterServer", "ParameterServer"]


class ParameterServer(PlainCollective):
    """all_reduce by push and pull; every rank is also the server of an n-th of the message."""

    name = "parameter_server"
    aliases = ("ps", "parameter_server_colocated")
    kinds = ("all_reduce",)
    source = "Li et al., OSDI 2014 (the idea; from memory, unverified); counts derived here"

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return 2: push and pull."""
        return 2

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return 2 (n - 1) / n."""
        return 2 * (place.ranks - 1) / place.ranks

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the push of part j to rank j by all others, and the pull."""
        n = place.ranks
        push = tuple(
            Transfer(sources=(i,), destinations=(j,), parts=(j,), fraction=1 / n, combines=True)
            for i in range(n)
            for j in range(n)
            if i != j
        )
        return push, tuple(transfer.back() for transfer in push)

    def legs(self, kind: str, place: GroupPlacement) -> tuple[Leg, ...]:
        """Return push and pull: a rank sends n - g of n parts over the network, and passes as many on inside."""
        n, g = place.ranks, place.ranks_per_node
        inside = (g - 1) / n * (1 + (n - g) / g)
        return (Leg(hops=2, inner=2 * inside, outer=2 * (n - g) / n),)


class DedicatedParameterServer(ServedCollective):
    """all_reduce by push to and pull from machines of their own, as many as there are nodes unless told otherwise."""

    name = "parameter_server_dedicated"
    aliases = ("ps_dedicated",)
    source = "Li et al., OSDI 2014 (the idea; from memory, unverified); counts derived here"
    fewest = 1

    def split(self, nodes: int) -> tuple[int, float, float]:
        """Return (servers, share of each server, 0 for the nodes)."""
        servers = self.servers or nodes
        return servers, 1 / servers, 0.0
