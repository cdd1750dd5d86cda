"""Adafactor: the second moment of a matrix as sums over its rows and columns, no first moment."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Adafactor"]

_SIDE = 4096
"""Side of the square matrix whose sums are counted: 2 x 4 bytes x side for side x side parameters."""


class Adafactor(Optimizer):
    """Adafactor without momentum, factored for matrices, as large models were trained on TPUs.

    The gradient is read twice: for its row and column sums, and for the update.
    """

    name = "adafactor"
    source = "Shazeer & Stern 2018, arXiv 1804.04235, algorithm 4"

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> Adafactor().cost(2, 4, True).state < 0.01
        True
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        state = 8.0 / _SIDE
        return OptimizerCost(
            state=state,
            read=state + 2 * master + 2 * gradient_bytes,
            written=state + master + rewritten,
            flops=10.0,
            fused_launches=6,
        )
