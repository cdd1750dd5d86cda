"""Chimera with four pipelines: smaller bubbles than with two, for four copies of the weights."""

from __future__ import annotations

from simulator.schedules.chimera import Chimera

__all__ = ["Chimera4"]


class Chimera4(Chimera):
    """Two pairs of opposite pipelines, the second half of the ranks further on."""

    name = "chimera_4"
    aliases = ("chimera_4_pipelines",)
    source = "Li and Hoefler, SC 2021, arXiv:2107.06925, section on more than two pipelines and Table 3"
    replicas = 4
    pairs = 2
