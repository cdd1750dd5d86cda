"""Two levels: first inside the nodes, then between ranks of equal place, then inside the nodes again.

Every rank's network card carries 2 (N - 1) / N of its g-th of the message for N nodes of g ranks, and the hops grow with
N + g instead of N x g.
"""

from __future__ import annotations

from simulator.collectives.two_level import TwoLevel
from simulator.hardware.group_placement import GroupPlacement

__all__ = ["Hierarchical"]


class Hierarchical(TwoLevel):
    """Rings inside the nodes, and rings between them."""

    name = "hierarchical"
    aliases = ("two_level",)
    source = "stas00/ml-engineering, network/README.md (shares of the message); rings as in collectives/ring.py"

    def grid(self, place: GroupPlacement) -> tuple[int, int]:
        """Return ranks per node, and nodes."""
        return place.ranks_per_node, place.nodes
