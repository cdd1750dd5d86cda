"""Chimera with eight pipelines, for eight copies of the weights."""

from __future__ import annotations

from simulator.schedules.chimera import Chimera

__all__ = ["Chimera8"]


class Chimera8(Chimera):
    """Four pairs of opposite pipelines, each a quarter of the ranks further on."""

    name = "chimera_8"
    aliases = ("chimera_8_pipelines",)
    source = "Li and Hoefler, SC 2021, arXiv:2107.06925, section on more than two pipelines and Table 3"
    replicas = 8
    pairs = 4
