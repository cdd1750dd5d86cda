"""LAMB: Adam's moments, and a rate of its own for every tensor: the norm of its weights over that of its update."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Lamb"]


class Lamb(Optimizer):
    """Adam's states in two stages: moments and update, which takes the gradient's place; norms of weights and update; new weights.

    Beside Adam's bytes weights and updates are read once for their norms and once for the second stage, and the update is written.
    """

    name = "lamb"
    aliases = ("fusedlamb", "nvlamb")
    source = "You et al., arXiv 1904.00962, algorithm 2; passes as in NVIDIA/apex csrc/multi_tensor_lamb.cu"
    moments = 2
    norms = 2

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> cost = Lamb().cost(2, 4, True)
        >>> cost.state, cost.read + cost.written
        (8.0, 50.0)
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        moments = 2.0 * master
        return OptimizerCost(
            state=moments,
            read=moments + 3 * master + 3 * gradient_bytes,
            written=moments + gradient_bytes + master + rewritten,
            flops=18.0,
            fused_launches=6,  # two stages, and two norms, each with a sum over blocks
        )
