"""What goes between two pipeline stages of unequal widths: who sends what to whom, and where that lies on the wires.

    stage 0: two ranks        rows 0 0 0 1 1 1      rank 0 sends to ranks 2 and 3, rank 1 to ranks 3 and 4:
    stage 1: three ranks      rows 0 0 1 1 2 2      each receiver gets its rows from whoever has them

Rows of a microbatch lie on the data-parallel ranks of a stage, in order.  Its tensor-parallel ranks have a part of each row (sequence
parallelism), or all of it; of several that have the same, the receivers take from one after the other (Fan et al., DAPPLE, arXiv
2007.01045, section 4: replicated stages split a microbatch and join it again at their boundary).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement
from simulator.hardware.topology import Lattice
from simulator.program.program import End

__all__ = ["Flows", "Spread", "flows", "place_spread"]


class Flows(NamedTuple):
    """Messages between two stages, [flows] each.

    Args:
        source, target: places of the ranks in their stages.
        share: of all that is sent once.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]


class Spread(NamedTuple):
    """Where the messages lie, and what the busiest port carries, as a share of all that is sent once.

    Two ranks stand for all that send at once: `place.concurrent` of them share the cards of a domain.
    """

    place: GroupPlacement
    share: float


def _meet(source: int, target: int) -> Flows:
    """The pieces that one of `source` equal pieces of a line and one of `target` have in common, and how much of it they are."""
    cuts = np.union1d(np.arange(source + 1) * target, np.arange(target + 1) * source)
    return Flows(cuts[:-1] // target, cuts[:-1] // source, np.diff(cuts) / (source * target))


@functools.lru_cache(maxsize=1024)
def flows(source: End, target: End) -> Flows:
    """Return who sends what to whom.

    >>> flows(End(2), End(3)).share.tolist() == [1 / 3, 1 / 6, 1 / 6, 1 / 3]
    True
    >>> flows(End(1, 1, 2), End(1, 2, 1)).source.tolist()
    [0, 1]
    """
    rows, parts = _meet(source.rows, target.rows), _meet(source.parts, target.parts)
    # [parts, copies] receivers among the ranks that have their rows, and the sender of each
    receiver = parts.target[:, None] * target.copies + np.arange(target.copies)
    sender = parts.source[:, None] * source.copies + receiver % source.copies
    every_from = (rows.source[:, None, None] * (source.parts * source.copies) + sender[None]).reshape(-1)
    every_to = (rows.target[:, None, None] * (target.parts * target.copies) + receiver[None]).reshape(-1)
    share = np.multiply.outer(rows.share, parts.share)
    return Flows(every_from, every_to, np.repeat(share.reshape(-1), target.copies))


@functools.lru_cache(maxsize=1024)
def place_spread(ends: tuple[End, End], first: tuple[int, int], fabric: Fabric) -> Spread:
    """Return where the messages between two stages lie.

    Args:
        ends: how the ranks on either side hold what is sent.
        first: world ranks at which the two stages begin.
        fabric: its nodes and domains.

    >>> from simulator.hardware.cluster import load_cluster
    >>> from simulator.hardware.fabric import fabric_of
    >>> spread = place_spread((End(8), End(8)), (0, 8), fabric_of(load_cluster("dgx_a100", 16)))
    >>> spread.place.text, spread.place.concurrent, spread.share
    ('8 of 8 replicas leave the node', 8, 0.125)
    """
    found = flows(*ends)
    start, end = first[0] + found.source, first[1] + found.target
    leaves = start // fabric.domain_size != end // fabric.domain_size
    inside = bool((start // fabric.node_size == end // fabric.node_size).all())
    place = GroupPlacement(
        ranks=2,
        ranks_per_node=2,
        level="node" if inside else "rack",
        replicas=len(start),
        leaving=int(leaves.sum()),
    )
    stays = [_most(rank[~leaves], found.share[~leaves]) for rank in (start, end) if not leaves.all()]
    spreads = [(Spread(place, share), place.inner_bandwidth(fabric)) for share in stays]
    if leaves.any():
        straight = ends[0] == ends[1] and fabric.topology is not None
        lattice = Lattice(members=((2, first[1] - first[0]),), groups=((ends[0].ranks, 1),), first=first[0])
        out = replace(place, nodes=2, ranks_per_node=1, level="fabric", lattice=lattice if straight else None)
        for rank in (start, end):
            for share, at_once in _ports(rank[leaves], found.share[leaves], fabric.domain_size):
                shared = replace(out, concurrent=at_once)
                spreads.append((Spread(shared, share), shared.outer_bandwidth(fabric)))
    return max(spreads, key=lambda one: one[0].share / one[1])[0]


def _ports(rank: NDArray[np.int64], share: NDArray[np.float64], size: int) -> set[tuple[float, int]]:
    """Of every domain with ranks that send, or receive, across its border: the most that one of them carries, and of how many such
    ranks the domain's cards have the traffic."""
    ranks, carries = np.unique(rank, return_inverse=True)
    load = np.bincount(carries, share)
    domains, place = np.unique(ranks // size, return_inverse=True)
    port = np.zeros(len(domains))
    np.maximum.at(port, place, load)
    at_once = np.maximum(1, np.ceil(np.bincount(place, load) / port - _ROUNDING)).astype(np.int64)
    return {*zip(port.tolist(), at_once.tolist(), strict=True)}


_ROUNDING = 1e-9


def _most(rank: NDArray[np.int64], share: NDArray[np.float64]) -> float:
    """The most that one rank sends or receives."""
    return float(np.bincount(rank - rank.min(), share).max())
