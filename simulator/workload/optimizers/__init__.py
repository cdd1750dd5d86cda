"""Optimizers, one file each."""

from __future__ import annotations

from simulator.registry import Family

__all__ = ["OPTIMIZERS"]

OPTIMIZERS = Family("optimizer", "simulator.workload.optimizers", "Optimizer")
