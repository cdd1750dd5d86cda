"""Chimera with sixteen pipelines, for sixteen copies of the weights."""

from __future__ import annotations

from simulator.schedules.chimera import Chimera

__all__ = ["Chimera16"]


class Chimera16(Chimera):
    """Eight pairs of opposite pipelines, each an eighth of the ranks further on."""

    name = "chimera_16"
    aliases = ("chimera_16_pipelines",)
    source = "Li and Hoefler, SC 2021, arXiv:2107.06925, section on more than two pipelines and Table 3"
    replicas = 16
    pairs = 8
