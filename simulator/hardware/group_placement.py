"""Where groups of ranks lie on the wires of a cluster, and what bandwidth is theirs there.

A group of a mesh (all tensor-parallel peers, all data-parallel peers, a pipeline hop) is a pattern of strided world
ranks, and consecutive world ranks fill nodes.  Whether a group stays inside a node, and how many groups push through
the same network cards at once, decides its speed more than any formula:

    tp = 8, dp = 2 on two nodes of 8         node 0: 0 1 2 3 4 5 6 7      node 1: 8 9 ... 15
    tp groups: {0..7}, {8..15}               stay inside, 8 ranks per node
    dp groups: {0,8}, {1,9}, ..., {7,15}     leave the node, 1 rank per node, 8 groups share the cards of a node at once

A *domain* is what one intra-node link spans: a node, or a rack where the link spans the rack (NVL72).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.errors import PlanError
from simulator.hardware.fabric import Fabric
from simulator.hardware.topology import Lattice, offsets
from simulator.remembered import hashed_once

if TYPE_CHECKING:
    from simulator.hardware.cluster import Cluster

__all__ = ["GroupPlacement", "describe_group", "place_group", "place_hop"]


@hashed_once
@dataclass(frozen=True, kw_only=True)
class GroupPlacement:
    """Where the slowest of the groups of one kind lies.

    Args:
        ranks: members of a group.
        nodes: domains it touches.
        ranks_per_node: members in the domain that holds most of them.
        fewest_per_node: members in the domain that holds least of them: they drive the fewest network cards.
        level: the outermost level crossed: "node", "rack" or "fabric".
        concurrent: how many groups of this kind share the network cards of one domain at once.
        replicas: how many groups of this kind the mesh has.
        leaving: how many of them leave their domain.
        lattice: the ranks of all groups, where the fabric has a topology on which their flows may cross.
        crossing: how many times less of its cards' bandwidth the group gets because flows cross, by the steps of an
            algorithm on that topology; 0 = not asked: the groups of a domain share its cards evenly.
        between_sockets: how many groups of this kind have members on both sockets of a node, at once; 0 = none.

    >>> place_group((("tp", 8), ("dp", 2)), ("dp",), 8).text
    '8 of 8 replicas leave the node'
    """

    ranks: int
    nodes: int = 1
    ranks_per_node: int = 1
    fewest_per_node: int = 1
    level: str = "node"
    concurrent: int = 1
    replicas: int = 1
    leaving: int = 0
    lattice: Lattice | None = None
    crossing: float = 0.0
    between_sockets: int = 0

    @property
    def text(self) -> str:
        """How many replicas leave the node, in words."""
        return self.told("replicas")

    def told(self, groups: str) -> str:
        """`text` with another word for the groups of a kind."""
        left = "rack" if self.level == "rack" else "node"
        if self.between_sockets and not self.leaving:
            return "between the sockets of a node" if self.replicas == 1 else f"{groups} between the sockets of a node"
        if self.replicas == 1:
            return f"leaves the {left}" if self.leaving else f"in one {self.level}"
        if not self.leaving:
            return f"all {self.replicas} {groups} stay in the {self.level}"
        return f"{self.leaving} of {self.replicas} {groups} leave the {left}"

    def inner_bandwidth(self, fabric: Fabric, many_flows: bool = False) -> float:
        """Return what one member can send to its peers in the domain, all together, one direction [B/s]; as of its parts."""
        return min(self.link_bandwidth(fabric), self.socket_share(fabric, many_flows))

    def socket_share(self, fabric: Fabric, many_flows: bool = False) -> float:
        """Return what one member can send while its group passes from socket to socket, one direction [B/s]; inf where none does.

        Args:
            many_flows: every member sends to all others, half of them on the other socket; else one of a socket's sends to the other.
        """
        if not self.between_sockets:
            return math.inf
        g = self.ranks_per_node
        return fabric.socket_bandwidth / self.between_sockets * ((g - 1) / (g / 2) ** 2 if many_flows else 1.0)

    def link_bandwidth(self, fabric: Fabric) -> float:
        """Return what the links of one member carry to its peers in the domain, one direction [B/s]."""
        if fabric.switched or fabric.domain_size < 3:
            return fabric.intra_bandwidth
        return fabric.intra_bandwidth * (max(self.ranks_per_node, 2) - 1) / (fabric.domain_size - 1)

    def outer_bandwidth(self, fabric: Fabric) -> float:
        """Return what the group can push out of one domain, one direction [B/s]: its share of the network cards.

        A member drives its own share of the cards, or a whole card where the other GPUs leave it alone; the groups that
        are active at once cannot have more than all cards together.
        """
        everything = fabric.network_bandwidth * fabric.domain_size
        own = self.fewest_per_node * max(fabric.network_bandwidth, fabric.card_bandwidth)
        if self.crossing:
            return min(everything, own) / self.crossing
        return min(everything / self.concurrent, own)


def describe_group(
    ranks: int, nodes: int = 1, concurrent: int = 1, level: str | None = None, fabric: Fabric | None = None
) -> GroupPlacement:
    """Return the placement of a lone group of `ranks` spread evenly over `nodes` domains, as nccl-tests runs it.

    Args:
        ranks, nodes: how many, evenly.
        concurrent: groups side by side in every domain that run at the same time.
        level: the outermost level crossed; None = "node" or "fabric".
        fabric: the wires, where their topology is to count.

    Raises:
        PlanError: the ranks do not divide by the nodes, or the groups do not fit side by side into a domain.

    >>> describe_group(16, 2).ranks_per_node
    8
    """
    if nodes < 1 or ranks < 1 or ranks % nodes or concurrent < 1:
        raise PlanError(
            f"ranks must be a multiple of nodes, but {ranks} ranks on {nodes} nodes with {concurrent} groups"
        )
    each, lattice = ranks // nodes, None
    if fabric is not None and each * concurrent > fabric.domain_size:
        raise PlanError(
            f"{concurrent} groups with {each} ranks in a node each need {concurrent * each} GPUs, but a node has "
            f"{fabric.domain_size}. Use fewer groups, or spread them over more nodes"
        )
    if fabric is not None and fabric.topology and nodes > 1:
        lattice = Lattice(members=((each, 1), (nodes, fabric.domain_size)), groups=((concurrent, each),))
    half = fabric.domain_size / 2 if fabric is not None and _has_sockets(fabric) else 0.0
    between = sum(i * each < half < (i + 1) * each for i in range(concurrent))
    return GroupPlacement(
        ranks=ranks,
        nodes=nodes,
        ranks_per_node=ranks // nodes,
        fewest_per_node=ranks // nodes,
        between_sockets=between,
        level=level or ("fabric" if nodes > 1 else "node"),
        concurrent=concurrent,
        replicas=concurrent,
        leaving=concurrent if nodes > 1 else 0,
        lattice=lattice,
    )


def place_group(
    axes: tuple[tuple[str, int], ...], group: tuple[str, ...], cluster: Cluster | Fabric | int
) -> GroupPlacement:
    """Return where the groups along the mesh axes `group` lie: the slowest replica, and how many leave the node.

    Args:
        axes: (name, size) from the innermost to the outermost; world rank = sum of coordinate x stride.
        group: the axes whose ranks take part together.
        cluster: its node size counts; a bare number is the node size.

    Raises:
        PlanError: `group` names an axis that `axes` lacks.

    >>> place = place_group((("tp", 2), ("dp", 8)), ("dp",), 8)
    >>> place.nodes, place.ranks_per_node, place.concurrent, place.level
    (2, 4, 2, 'fabric')
    """
    return _place_group(
        axes, tuple(sorted(set(group))), *_sizes(cluster), _crosses(cluster), _first(cluster), _has_sockets(cluster)
    )


def place_hop(
    axes: tuple[tuple[str, int], ...], source: int, destination: int, cluster: Cluster | Fabric | int, axis: str = "pp"
) -> GroupPlacement:
    """Return where the hops from pipeline rank `source` to `destination` lie; all replicas of the hop go at once.

    `concurrent` says how many of them leave one node together, so share its network cards.

    Raises:
        PlanError: no such axis, or a pipeline rank it does not have.

    >>> hop = place_hop((("tp", 8), ("pp", 2)), 0, 1, 8)
    >>> hop.level, hop.concurrent, hop.text
    ('fabric', 8, '8 of 8 replicas leave the node')
    """
    return _place_hop(axes, source, destination, *_sizes(cluster), axis, _crosses(cluster), _has_sockets(cluster))


def _crosses(cluster: Cluster | Fabric | int) -> bool:
    """Return whether flows may cross on switches that the fabric describes."""
    return isinstance(cluster, Fabric) and cluster.topology is not None


def _has_sockets(cluster: Cluster | Fabric | int) -> bool:
    """Return whether what passes between the sockets of a node is narrower than its links."""
    return isinstance(cluster, Fabric) and cluster.socket_bandwidth > 0.0


def _first(cluster: Cluster | Fabric | int) -> int:
    """Return the world rank at which a mesh begins."""
    return cluster.first if isinstance(cluster, Fabric) else 0


def _sizes(cluster: Cluster | Fabric | int) -> tuple[int, int]:
    """Return GPUs per node and per domain."""
    if isinstance(cluster, int):
        return cluster, cluster
    if isinstance(cluster, Fabric):
        return cluster.node_size, cluster.domain_size
    node = cluster.levels[0].size
    return node, next((level.size for level in cluster.levels if level.name == "rack"), node)


def _strides(axes: tuple[tuple[str, int], ...], wanted: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Return {axis: (size, stride)}."""
    table, stride = {}, 1
    for name, size in axes:
        table[name] = (size, stride)
        stride *= size
    for name in wanted:
        if name not in table:
            raise PlanError(f"no mesh axis {name!r} in {axes}")
    return table


@functools.lru_cache(maxsize=4096)
def _place_group(
    axes: tuple[tuple[str, int], ...],
    group: tuple[str, ...],
    node: int,
    domain: int,
    crosses: bool,
    first: int,
    sockets: bool,
) -> GroupPlacement:
    table = _strides(axes, group)
    members = offsets([table[name] for name, _ in axes if name in group])
    bases = first + offsets([table[name] for name, _ in axes if name not in group])
    counts = np.bincount(bases % domain, minlength=domain)
    shifts = np.flatnonzero(counts)
    counts = counts[shifts]
    spread: list[tuple[int, int, int]] = []
    for shift in shifts:
        held = np.diff(_edges((members + shift) // domain))
        spread.append((len(held), int(held.max()), int(held.min())))
    nodes, most, fewest = max(spread, key=lambda s: (s[0], -s[2]))
    leaving = sum(int(c) for s, c in zip(spread, counts, strict=True) if s[0] > 1)
    if domain > node and nodes == 1:
        inside = all(bool(members[-1] + shift % node < node) for shift in shifts)
        level = "node" if inside else "rack"
    else:
        level = "node" if nodes == 1 else "fabric"
    return GroupPlacement(
        ranks=len(members),
        nodes=nodes,
        ranks_per_node=most,
        fewest_per_node=fewest,
        level=level,
        concurrent=_sharing(axes, group, domain, len(bases), first) if nodes > 1 else 1,
        replicas=len(bases),
        leaving=leaving,
        lattice=Lattice(
            members=tuple(table[name] for name, _ in axes if name in group),
            groups=tuple(table[name] for name, _ in axes if name not in group),
            first=first,
        )
        if crosses and nodes > 1
        else None,
        between_sockets=_between_sockets(axes, group, domain, len(bases), first) if sockets else 0,
    )


def _held_by(
    axes: tuple[tuple[str, int], ...], group: tuple[str, ...], domain: int, first: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return of each rank of the first 64 domains, whose pattern repeats, its domain, its place there and the number of its group."""
    world = int(np.prod([size for _, size in axes]))
    ranks = np.arange(min(world, 64 * domain), dtype=np.int64)
    number = np.zeros(len(ranks), np.int64)
    for name, (size, stride) in _strides(axes, ()).items():
        if name not in group:
            number = number * size + ranks // stride % size
    return (ranks + first) // domain, (ranks + first) % domain, number


def _sharing(axes: tuple[tuple[str, int], ...], group: tuple[str, ...], domain: int, groups: int, first: int) -> int:
    """Return the most groups that have members in one domain."""
    if groups == 1:
        return 1
    where, _, number = _held_by(axes, group, domain, first)
    pairs = np.sort(where * groups + number)
    return int(np.diff(_edges(pairs[_edges(pairs)[:-1]] // groups)).max())


def _between_sockets(
    axes: tuple[tuple[str, int], ...], group: tuple[str, ...], domain: int, groups: int, first: int
) -> int:
    """Return the most groups that have members in both halves of one domain."""
    where, place, number = _held_by(axes, group, domain, first)
    pairs, second = where * groups + number, 2 * place >= domain
    both = np.intersect1d(pairs[second], pairs[~second])
    return int(np.bincount(both // groups).max()) if len(both) else 0


def _edges(ascending: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each run of equal values starts, and the length."""
    return np.concatenate(([0], np.flatnonzero(np.diff(ascending)) + 1, [len(ascending)]))


@functools.lru_cache(maxsize=4096)
def _place_hop(
    axes: tuple[tuple[str, int], ...],
    source: int,
    destination: int,
    node: int,
    domain: int,
    axis: str,
    crosses: bool,
    sockets: bool,
) -> GroupPlacement:
    table = _strides(axes, (axis,))
    size, stride = table[axis]
    for rank in (source, destination):
        if not 0 <= rank < size:
            raise PlanError(f"pipeline rank must be 0 to {size - 1}, got {rank} in {axes}")
    others = offsets([table[name] for name, _ in axes if name != axis])
    start, end = others + source * stride, others + destination * stride
    leaves = start // domain != end // domain
    leaving = int(leaves.sum())
    between = (
        ~leaves & (2 * (start % domain) // domain != 2 * (end % domain) // domain) if sockets else np.zeros(1, bool)
    )
    inside = bool((start // node == end // node).all())
    out_of, into = (np.bincount(place[leaves] // domain - place.min() // domain) for place in (start, end))
    return GroupPlacement(
        ranks=2 if source != destination else 1,
        nodes=2 if leaving else 1,
        ranks_per_node=1 if leaving or source == destination else 2,
        fewest_per_node=1,
        level="fabric" if leaving else "node" if inside else "rack",
        concurrent=int(max(out_of.max(), into.max())) if leaving else 1,
        replicas=len(others),
        leaving=leaving,
        lattice=Lattice(
            members=((2, (destination - source) * stride),),
            groups=tuple(table[name] for name, _ in axes if name != axis),
            first=source * stride,
        )
        if crosses and leaving
        else None,
        between_sockets=int(np.bincount((start // domain)[between]).max()) if between.any() else 0,
    )
