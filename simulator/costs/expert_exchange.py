"""Seconds of the exchange of tokens between ranks that share experts, where a token crosses the network once per node.

A token that k experts want, dealt out evenly over x places, goes to x (1 - (1 - 1/x)^k) of them.  By plain all_to_all it is
sent k times; DeepEP (deepseek-ai/DeepEP) and HybridEP send it once to every node that wants it and hand it on there to every
rank that wants it.  That is a pipeline of two stages that n nodes' shares go through one after the other:

    seconds = slower + quicker / n

Nine published times of HybridEP's kernels on 16, 32 and 64 H100 (branch hybrid-ep of deepseek-ai/DeepEP, docs/README_Hybrid-EP.md) are
met to 7 % in the median and 12 at most; the slower stage alone would be 9 to 34 % short.

Inside a node a multiprocessor that works on the exchange takes rows one by one, so that rows of up to 6 to 8 KiB take as long as their
number, not as their bytes (`row_time` of the memory-bound coefficients):

    seconds = max(bytes / rate, rows x row_time / multiprocessors) + rows x experts x look_time

HybridEP sends rows as quickly as their bytes go, and sorts them by kernels that look at every expert of the rank for every row.
110 published times (tests/data/exchange_measurements.csv): DeepEP's combine of rows of 4 to 14 KiB 1 to 15 % longer than this on Hopper, on
Blackwell from 3 % shorter to a quarter longer up to 6 KiB and 1.3 to 1.8 times as long from 8 KiB on (a multiprocessor of DeepEP moves no
more than 20 GB/s, one of HybridEP 42, which is not modelled); HybridEP's combine a fifth longer at 1 KiB and 7 % shorter at 14 KiB, its
dispatch 7 and 13 % shorter.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.collectives import CollectiveTime, collective_seconds
from simulator.hardware.fabric import Fabric, GroupPlacement
from simulator.program.calls import NodeExchange

__all__ = ["once_per_node", "places_reached"]


def places_reached(places: float, copies: int, reach: float = 1.0) -> float:
    """Return how many of `places` a token reaches that `copies` experts want, on average.

    Args:
        reach: share of the places in which it may use experts (node-limited routing).

    >>> places_reached(1, 8), places_reached(2, 1), places_reached(2, 2), round(places_reached(8, 100, 0.5), 3)
    (1.0, 1.0, 1.5, 4.0)
    """
    places = max(1.0, places * reach)
    return places * (1.0 - (1.0 - 1.0 / places) ** copies)


def once_per_node(
    message: float,
    call: NodeExchange,
    place: GroupPlacement,
    fabric: Fabric,
    row_time: float = 0.0,
    look_time: float = 0.0,
) -> CollectiveTime:
    """Return the time of an exchange.

    Args:
        message: bytes that all copies of a rank's tokens have.
        call: experts per token, and who moves rows how.
        place: where the ranks that share experts lie.
        row_time: what a multiprocessor takes for a row that it fetches, at least [s].
        look_time: what sorting takes for every row and expert of a rank [s].
    """
    copies, reach = call.copies, call.reach
    one = message / copies
    inside = replace(
        place, ranks=place.ranks_per_node, nodes=1, fewest_per_node=place.ranks_per_node, concurrent=1, leaving=0
    )
    inside = replace(inside, level="node" if place.level == "fabric" else place.level)
    moved = one * places_reached(place.ranks, copies, reach)
    time = collective_seconds("all_to_all", moved, inside, fabric)
    rows = moved / call.row if call.row else 0.0
    if call.fetched:
        time = replace(time, seconds=max(time.seconds, rows * row_time / call.multiprocessors))
    if place.nodes > 1:
        across = replace(
            place,
            ranks=place.nodes,
            ranks_per_node=1,
            fewest_per_node=1,
            concurrent=place.concurrent * place.ranks_per_node,
            lattice=place.lattice.across(fabric.domain_size) if place.lattice else None,
        )
        other = collective_seconds("all_to_all", one * places_reached(place.nodes, copies, reach), across, fabric)
        quick, slow = sorted((time, other), key=lambda t: t.seconds)
        time = replace(slow, seconds=slow.seconds + quick.seconds / place.nodes)
    return replace(time, seconds=time.seconds + rows * call.experts * look_time, calibrated=False)
