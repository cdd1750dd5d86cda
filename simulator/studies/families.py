"""Families of plug-ins that `dtsim list` and `dtsim show` know."""

from __future__ import annotations

__all__ = ["FAMILIES"]

FAMILIES = {
    "schedules": ("simulator.schedules", "SCHEDULES"),
    "optimizers": ("simulator.workload.optimizers", "OPTIMIZERS"),
    "exchanges": ("simulator.lowering.exchanges", "EXCHANGES"),
    "algorithms": ("simulator.collectives", "ALGORITHMS"),
    "architectures": ("simulator.workload.families", "FAMILIES"),
    "attentions": ("simulator.workload.blocks.attention", "ATTENTIONS"),
    "mixers": ("simulator.workload.blocks.mixer", "MIXERS"),
    "layouts": ("simulator.partition.strategies", "STRATEGIES"),
    "strategies": ("simulator.search.strategies", "STRATEGIES"),
    "planners": ("simulator.planners", "PLANNERS"),
    "importers": ("simulator.importers", "IMPORTERS"),
    "graph_formats": ("simulator.importers.cost_graphs", "GRAPH_READERS"),
}
"""Kind -> module and name of a plug-in family."""
