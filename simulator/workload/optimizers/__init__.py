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
    name: str,
    weight_bytes: int,
    gradient_bytes: int,
    master_weights: bool,
    others: float = 0.0,
    moments: tuple[float, ...] = (),
) -> OptimizerCost:
    """Return what a parameter costs in the mean; as `Optimizer.cost`.

    Args:
        others: share of the parameters that the optimizer leaves to another.
        moments: bytes of each moment, or of all; () = as wide as the weights that are updated.

    >>> optimizer_cost("muon", 2, 4, True).state, optimizer_cost("muon", 2, 4, True, others=0.5).state
    (4.0, 6.0)
    >>> optimizer_cost("adam", 2, 4, True, moments=(2.0,)).state, optimizer_cost("adam", 2, 4, True, moments=(2.0, 1.0)).state
    (4.0, 3.0)
    """
    optimizer = OPTIMIZERS.get(name)
    cost = optimizer.cost(weight_bytes, gradient_bytes, master_weights)
    if moments:
        kept = moments * optimizer.moments if len(moments) == 1 else moments
        cost = cost.with_moments(kept, 4.0 if master_weights else float(weight_bytes))
    if not others:
        return cost
    return cost.mixed(
        optimizer_cost(optimizer.others, weight_bytes, gradient_bytes, master_weights, moments=moments), others
    )
