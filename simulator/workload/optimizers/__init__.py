"""Optimizers, one file each."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.workload.optimizers.base import Optimizer, OptimizerCost

__all__ = ["OPTIMIZERS", "optimizer_cost"]

OPTIMIZERS: Family[Optimizer] = Family("optimizer", "simulator.workload.optimizers", "Optimizer", "optimizers")


@functools.lru_cache(maxsize=1024)
def optimizer_cost(
    name: str, weight_bytes: int, gradient_bytes: int, master_weights: bool, others: float = 0.0
) -> OptimizerCost:
    """Return what a parameter costs in the mean; as `Optimizer.cost`.

    Args:
        others: share of the parameters that the optimizer leaves to another.

    >>> optimizer_cost("muon", 2, 4, True).state, optimizer_cost("muon", 2, 4, True, others=0.5).state
    (4.0, 6.0)
    """
    optimizer = OPTIMIZERS.get(name)
    cost = optimizer.cost(weight_bytes, gradient_bytes, master_weights)
    if not others:
        return cost
    return cost.mixed(OPTIMIZERS.get(optimizer.others).cost(weight_bytes, gradient_bytes, master_weights), others)
