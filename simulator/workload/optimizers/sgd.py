"""Stochastic gradient descent with momentum, as wide as the weights that are updated."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Sgd"]


class Sgd(Optimizer):
    """SGD with one momentum per parameter."""

    name = "sgd"
    aliases = ("momentum",)
    source = "Sutskever et al., ICML 2013, equation 1"
    moments = 1
    listed_results = 0  # torch.optim.sgd: momentum and weights are updated in place

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`."""
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        return OptimizerCost(
            state=master,
            read=2 * master + gradient_bytes,
            written=2 * master + rewritten,
            flops=4.0,
            fused_launches=2,
            separate=32.0,  # momentum 8 + 12, step 12
        )
