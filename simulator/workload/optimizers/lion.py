"""Lion: one moment per parameter, and only the sign of what is added to it."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Lion"]


class Lion(Optimizer):
    """One momentum, as wide as the weights that are updated: half of Adam's states."""

    name = "lion"
    source = "Chen et al., arXiv 2302.06675, algorithm 2"
    moments = 1
    listed_results = 1  # the sign of the sum of momentum and gradient

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> cost = Lion().cost(2, 4, True)
        >>> cost.state, cost.read + cost.written
        (4.0, 22.0)
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        return OptimizerCost(
            state=master,
            read=2 * master + gradient_bytes,
            written=2 * master + rewritten,
            flops=9.0,
            fused_launches=2,
        )
