"""Strategies of search, one file each."""

from __future__ import annotations

from simulator.registry import Family

__all__ = ["STRATEGIES"]

STRATEGIES = Family("search strategy", "simulator.search.strategies", "Strategy")
