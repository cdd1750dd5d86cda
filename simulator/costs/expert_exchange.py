"""Seconds of the exchange of tokens between ranks that share experts, where a token crosses the network once per node.

A token that k experts want, dealt out evenly over x places, goes to x (1 - (1 - 1/x)^k) of them.  By plain all_to_all it is
sent k times; DeepEP (deepseek-ai/DeepEP) and HybridEP send it once to every node that wants it and hand it on there to every
rank that wants it.  That is a pipeline of two stages that n nodes' shares go through one after the other:

    seconds = slower + quicker / n

Nine published times of HybridEP's kernels on 16, 32 and 64 H100 (branch hybrid-ep of deepseek-ai/DeepEP, docs/README_Hybrid-EP.md) are
met to 7 % in the median and 12 at most; the slower stage alone would be 9 to 34 % short.

Inside a node the multiprocessors that work on the exchange take rows one by one (numbers of the memory-bound coefficients):

    seconds = max(bytes / rate of the links, rows x t / multiprocessors) + rows x experts x look_time

    t = copy_time + bytes of a row / copy_rate      DeepEP, whose warps load and store each row
    t = fetch_time                                  HybridEP where rows come back, by the tensor memory accelerator, token after token
    t = 0                                           HybridEP where rows go out

HybridEP sorts rows by kernels that look at every expert of the rank for every row.  116 published times of both are in
tests/data/exchange_measurements.csv, and their errors in tests/validation/test_published_exchanges.py.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.collectives import CollectiveTime, collective_seconds
from simulator.hardware.compute_coefficients import MemoryBoundCoefficients
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement
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
    numbers: MemoryBoundCoefficients | None = None,
) -> CollectiveTime:
    """Return the time of an exchange.

    Args:
        message: bytes that all copies of a rank's tokens have.
        call: experts per token, and who moves rows how.
        place: where the ranks that share experts lie.
        numbers: what multiprocessors take for rows; None = nothing.
    """
    copies, reach = call.copies, call.reach
    one = message / copies
    inside = replace(
        place, ranks=place.ranks_per_node, nodes=1, fewest_per_node=place.ranks_per_node, concurrent=1, leaving=0
    )
    inside = replace(inside, level="node" if place.level == "fabric" else place.level)
    moved = one * places_reached(place.ranks, copies, reach)
    time = collective_seconds("all_to_all", moved, inside, fabric)
    look = 0.0
    if numbers and call.row:
        rows = moved / call.row
        copied = numbers.copy_time + (call.row / numbers.copy_rate if numbers.copy_rate else 0.0)
        each = {"sent": 0.0, "fetched": numbers.fetch_time, "copied": copied}[call.moved]
        time = replace(time, seconds=max(time.seconds, rows * each / call.multiprocessors))
        look = rows * call.experts * numbers.look_time
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
    return replace(time, seconds=time.seconds + look, calibrated=False)
