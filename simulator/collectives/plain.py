"""What an algorithm costs that NCCL does not have: sends and receives that follow one another, as its legs say.

Each hop takes what a send takes on that wire, the bytes find what channels find of the wires.
"""

from __future__ import annotations

import numpy as np

from simulator.collectives.base import Collective, Cost
from simulator.collectives.wires import attained, hop_latency
from simulator.hardware.coefficients import CostTable
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["PlainCollective", "ceil_log2", "leg_cost"]

SENDS = "point_to_point"
"""The constants of a plain send and receive."""


class PlainCollective(Collective):
    """An algorithm of plain sends; it runs where a call or a cluster names it."""

    protocols = ("simple",)

    def cost(self, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str) -> Cost | None:
        """Return the base of a send + the hops of the legs; the legs' shares of the wires."""
        return leg_cost(self, kind, place, fabric, table, protocol) if self.works(kind, place) else None

    def ways(self, kind: str, place: GroupPlacement) -> float:
        """Return the messages that pass the busiest port one way, in or out, over all steps; `volume` counts the steps in turn."""
        n = self.endpoints(place)
        out, into = np.zeros(n), np.zeros(n)
        for pattern, times in self.patterns(kind, place):
            out += times * np.bincount(pattern.source, pattern.fraction[pattern.source_flow], n)
            into += times * np.bincount(pattern.destination, pattern.fraction[pattern.destination_flow], n)
        return float(max(out.max(), into.max()))


def leg_cost(
    member: Collective, kind: str, place: GroupPlacement, fabric: Fabric, table: CostTable, protocol: str
) -> Cost:
    """Return the cost of an algorithm's legs at the constants of plain sends."""
    inner, outer = attained(place, fabric, table)
    bare_inner, bare_outer = place.inner_bandwidth(fabric), place.outer_bandwidth(fabric)
    latency, per_byte, least = table.base_latency[SENDS][protocol], 0.0, 0.0
    share = place.fewest_per_node
    for leg in member.legs(kind, place):
        where = "outer" if leg.outer else "inner"
        latency += leg.hops * hop_latency(SENDS, protocol, where, place, fabric, table)
        per_byte += max(leg.inner / inner, leg.outer * share / outer)
        if leg.outer:
            least += leg.outer * share / bare_outer
        elif leg.inner:
            least += leg.inner / bare_inner
    return Cost(latency=latency, bandwidth=1 / per_byte, ceiling=1 / least)


def ceil_log2(n: int) -> int:
    """Return the least k with 2^k >= n.

    >>> [ceil_log2(n) for n in (1, 2, 5, 8)]
    [0, 1, 3, 3]
    """
    return (n - 1).bit_length()
