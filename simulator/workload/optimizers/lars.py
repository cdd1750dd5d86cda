"""LARS: momentum, and a rate of its own for every tensor: the norm of its weights over that of its gradient."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Lars"]


class Lars(Optimizer):
    """SGD with one momentum; weights and gradients are read once more for their norms before they are read for the update."""

    name = "lars"
    source = "You et al., arXiv 1708.03888, algorithm 1"
    moments = 1
    listed_results = 0  # momentum and weights are updated in place
    norms = 2

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> cost = Lars().cost(2, 4, True)
        >>> cost.state, cost.read + cost.written
        (4.0, 30.0)
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        return OptimizerCost(
            state=master,
            read=3 * master + 2 * gradient_bytes,
            written=2 * master + rewritten,
            flops=10.0,
            fused_launches=6,  # two norms, each with a sum over blocks, and the update
        )
