"""Adam and AdamW: two moments per parameter, as wide as the weights that are updated (fp32, or bf16 where there is no wider copy)."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Adam"]


class Adam(Optimizer):
    """Adam (decoupled weight decay moves no extra bytes).

    Mixed precision keeps an fp32 master weight: K = 12 bytes per parameter beside the 2-byte weight and the gradient.
    """

    name = "adam"
    aliases: tuple[str, ...] = ("adamw",)
    source = "Kingma & Ba 2015; Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1 (K = 12)"
    moments = 2

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> cost = Adam().cost(2, 4, True)
        >>> cost.state + 4, cost.read + cost.written
        (12.0, 30.0)
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        moments = 2.0 * master
        return OptimizerCost(
            state=moments,
            read=moments + master + gradient_bytes,
            written=moments + master + rewritten,
            flops=12.0,
            fused_launches=4,
            separate=88.0,  # decay 8, first moment 12, second 8 + 12, root 12, division 12, epsilon 8, step 16
            # torch.optim.adamw, _multi_tensor_adamw: decay, first moment, second (twice), its root, division, epsilon, step
            listed=(10.0 * master + 2.0 * gradient_bytes, 8.0 * master),
        )
