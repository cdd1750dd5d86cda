"""Planners that were published, on problems of their own: a problem, an oracle that prices, an answer with its gap.

problems   what may be chosen, what it costs, what bounds it: one file each
base       the contract of a planner, and what every answer says
the rest   one planner per file; `solves` says of which problem

`simulator.search` is the family over plans of a job; here the plan is of a graph of costs, and the cost is the paper's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.planners.base import Planner

__all__ = ["PLANNERS"]

PLANNERS: Family[Planner[Any]] = Family("planner", "simulator.planners", "Planner", "planners")
