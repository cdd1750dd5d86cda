"""BytePS: the sums are made by spare machines and by the nodes themselves, in shares that keep all network cards busy.

N nodes push to and pull from k machines without GPUs (share x of the message each) and from each other (share y each):

    a server carries N x,   a node carries 1 + (N - 2) y,   k x + N y = 1.

Equal for y = (N - k) / (N^2 + k N - 2 k) and x = 2 (N - 1) / (N^2 + k N - 2 k).  With k = 0 that is 2 (N - 1) / N of the
message per direction, as in a ring; with k = N it is 1, twice as fast.  Inside a node ranks first add up directly.

What crosses the network goes through the memory of hosts, whose processors add up.  Bytes that a host moves there, of a message of 1:

    a server   N x come (written), N - 1 times x is added (two read, one written), N x go (read)
    a node     1 comes from its GPUs (written), 1 - y goes (read), 1 - y comes (written), 1 goes to its GPUs (read), and its own share:
               (N - 1) y comes, as much is added, and as much goes

An update by who adds up moves more (`moved` bytes for a byte of the message); one with every push does so N times, and adds nothing up.
Where a node's file does not say how fast its memory is, hosts are taken to keep pace with the network.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import ClassVar

from simulator.collectives.base import Cost, Phase, Transfer
from simulator.collectives.plain import PlainCollective
from simulator.collectives.rounds import Leg
from simulator.errors import PlanError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Byteps", "ServedCollective", "optimal_split"]


def optimal_split(nodes: int, servers: int) -> tuple[float, float]:
    """Return the shares of the message that (each server, each node) adds up, so that all cards carry the same.

    >>> optimal_split(4, 4), optimal_split(4, 0)
    ((0.25, 0.0), (0.0, 0.25))
    """
    if nodes < 2 or servers >= nodes:
        return (1 / servers, 0.0) if servers else (0.0, 1 / nodes)
    total = nodes**2 + servers * nodes - 2 * servers
    return (2 * (nodes - 1) / total if servers else 0.0), (nodes - servers) / total


class ServedCollective(PlainCollective):
    """all_reduce with the help of machines that have network cards as a node does, but no GPUs.

    Args:
        servers: how many machines; None = what `split` makes of the nodes.
        moved: bytes that an update by who adds up moves in memory for a byte of the message.
        each: whether it updates with every push, in place of their sum.

    `fewest` that the algorithm works with.  Endpoint n + s x g + j is card j of server s.
    """

    kinds = ("all_reduce",)
    pipelined = ("all_reduce",)
    fewest: ClassVar[int] = 0

    def __init__(self, servers: int | None = None, moved: float = 0.0, each: bool = False) -> None:
        if servers is not None and not self.fewest <= servers <= MAX_WORLD_SIZE:
            raise PlanError(
                f"servers must be {self.fewest} or more, up to {MAX_WORLD_SIZE:,}, but {self.name} is given {servers}"
            )
        self.servers, self.moved, self.each = servers, moved, each

    @abc.abstractmethod
    def split(self, nodes: int) -> tuple[int, float, float]:
        """Return (servers, share of the message of each server, share of each node)."""

    def works(self, kind: str, place: GroupPlacement) -> bool:
        """Return whether the nodes are evenly filled."""
        return kind in self.kinds and place.ranks == place.nodes * place.ranks_per_node

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return what the wires take, or the hosts, where these are slower: all work at once, chunk after chunk."""
        cost, rate, touched = super().cost(kind, place, fabric, table, protocol), fabric.host_rate, self.touched(place)
        if cost is None or not (rate and touched):
            return cost
        return replace(cost, bandwidth=min(cost.bandwidth, rate / touched), ceiling=min(cost.ceiling, rate / touched))

    def touched(self, place: GroupPlacement) -> float:
        """Return the bytes that the busiest host moves in its memory, for all groups, for a byte of one's message; 0 inside GPUs."""
        nodes = place.nodes
        if nodes < 2:
            return (2.0 + self.moved) * place.concurrent if self.moved else 0.0
        _, share, own = self.split(nodes)
        work = nodes * self.moved if self.each else 3 * (nodes - 1) + self.moved
        server, node = share * (2 * nodes + work), 2.0 + 2.0 * (1.0 - own) + own * (2 * (nodes - 1) + work)
        return max(server * place.replicas, node * place.concurrent)

    def endpoints(self, place: GroupPlacement) -> int:
        """Return the ranks and the servers' cards."""
        return place.ranks + (self.split(place.nodes)[0] * place.ranks_per_node if place.nodes > 1 else 0)

    def hops(self, kind: str, place: GroupPlacement) -> int:
        """Return push and pull, and two more inside the nodes."""
        return 2 * (place.ranks_per_node > 1) + 2 * (place.nodes > 1)

    def volume(self, kind: str, place: GroupPlacement) -> float:
        """Return what the busiest card carries: a server's, or a rank's with what its node does inside."""
        leg = self.legs(kind, place)[0]
        servers, share, own = self.split(place.nodes)
        node = (1 + (place.nodes - 2) * own) / place.ranks_per_node if place.nodes > 1 else 0.0
        served = place.nodes * share / place.ranks_per_node if place.nodes > 1 and servers else 0.0
        return max(leg.inner + node, served)

    def legs(self, kind: str, place: GroupPlacement) -> tuple[Leg, ...]:
        """Return one leg: the chunks flow through nodes and servers at once."""
        nodes, g = place.nodes, place.ranks_per_node
        _, share, own = self.split(nodes)
        crowd = place.replicas / place.concurrent  # groups on other nodes go to the same servers
        outer = max(nodes * share * crowd, 1 + (nodes - 2) * own) / g if nodes > 1 else 0.0
        return (Leg(hops=self.hops(kind, place), inner=2 * (g - 1) / g, outer=outer),)

    def phases(self, kind: str, place: GroupPlacement) -> tuple[Phase, ...]:
        """Return the sums inside the nodes, the push, the pull, and the copies; slice j of a message is card j's."""
        g, nodes = place.ranks_per_node, place.nodes
        servers, share, own = self.split(nodes)
        keepers = [(place.ranks + s * g, share) for s in range(servers)] if nodes > 1 else []
        keepers += [(node * g, own) for node in range(nodes)] if nodes > 1 and own else []
        count = max(len(keepers), 1)
        gather = tuple(
            _send(node * g + i, node * g + j, tuple(range(j * count, (j + 1) * count)), 1 / g)
            for node in range(nodes)
            for i in range(g)
            for j in range(g)
            if i != j
        )
        push = tuple(
            _send(node * g + j, first + j, (j * count + number,), part / g)
            for node in range(nodes)
            for number, (first, part) in enumerate(keepers)
            for j in range(g)
            if first != node * g
        )
        inward = [phase for phase in (gather, push) if phase]
        return (*inward, *(tuple(transfer.back() for transfer in phase) for phase in reversed(inward)))


class Byteps(ServedCollective):
    """all_reduce with half as many spare machines as nodes, unless told otherwise, in BytePS's optimal shares."""

    name = "byteps"
    source = "Jiang et al., OSDI 2020, section 4.1 (shares derived here; they agree with the paper's, from memory)"

    def split(self, nodes: int) -> tuple[int, float, float]:
        """Return the shares that keep the cards of nodes and servers equally busy."""
        servers = -(-nodes // 2) if self.servers is None else self.servers
        return servers, *optimal_split(nodes, servers)


def _send(source: int, destination: int, parts: tuple[int, ...], share: float) -> Transfer:
    return Transfer(sources=(source,), destinations=(destination,), parts=parts, fraction=share, combines=True)
