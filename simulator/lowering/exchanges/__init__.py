"""What replicas exchange, and in which steps: one file each (`plan.gradient_exchange`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.lowering.exchanges.base import GradientExchange

__all__ = ["EXCHANGES"]

EXCHANGES: Family[GradientExchange] = Family(
    "gradient exchange", "simulator.lowering.exchanges", "GradientExchange", "exchanges"
)
