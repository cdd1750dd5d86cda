"""Strategies of search, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.search.strategies.base import Strategy

__all__ = ["STRATEGIES"]

STRATEGIES: Family[Strategy] = Family("search strategy", "simulator.search.strategies", "Strategy", "strategies")
