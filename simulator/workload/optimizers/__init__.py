"""Optimizers, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.workload.optimizers.base import Optimizer

__all__ = ["OPTIMIZERS"]

OPTIMIZERS: Family[Optimizer] = Family("optimizer", "simulator.workload.optimizers", "Optimizer", "optimizers")
