"""Muon: the momentum of every matrix of a layer, made orthogonal by products; all else is trained by Adam."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Muon"]


class Muon(Optimizer):
    """Five Newton-Schulz iterations in bf16 on each matrix of a layer; Adam for tables of the vocabulary, norms and biases.

    X <- a X + (b A + c A A) X, where A = X X^T along the shorter side.  Ranks that split a matrix between them (tensor parallelism) each
    make their own part orthogonal, and ranks that share states have whole matrices each, as Megatron-Core has it by default.
    """

    name = "muon"
    source = "Jordan et al. 2024, Muon; with weight decay Liu et al., arXiv 2502.16982; NVIDIA/Megatron-LM muon_tp_mode = blockwise"
    moments = 1
    newton_schulz = 5
    others = "adam"

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`; what surrounds the iterations: momentum, Nesterov's sum in bf16, and the step.

        >>> cost = Muon().cost(2, 4, True)
        >>> cost.state, cost.read + cost.written
        (4.0, 26.0)
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        made = 2.0
        return OptimizerCost(
            state=master,
            read=2 * master + gradient_bytes + made,
            written=2 * master + made + rewritten,
            flops=8.0,
            fused_launches=4,
        )
