"""Adam and AdamW whose two moments are kept in 8 bits, in blocks that share a scale."""

from __future__ import annotations

from simulator.workload.optimizers.base import Optimizer, OptimizerCost, updated_bytes

__all__ = ["Adam8bit"]

BLOCK = 256
"""Numbers that share one fp32 scale (bitsandbytes blocksize, torchao block_size)."""


class Adam8bit(Optimizer):
    """Block-wise quantised moments, updated in fp32 registers; tensors of less than 4,096 numbers, which stay wide, are not counted."""

    name = "adam_8bit"
    aliases = ("adamw_8bit", "adam8bit", "adamw8bit")
    source = "Dettmers et al., arXiv 2110.02861, section 2; pytorch/ao torchao/optim/README.md (block of 256)"
    listed_results = 0  # a kernel of its own per tensor

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> round(Adam8bit().cost(2, 2, False).state, 2)
        2.03
        """
        master, rewritten = updated_bytes(weight_bytes, master_weights)
        moments = 2.0 * (1.0 + 4.0 / BLOCK)
        return OptimizerCost(
            state=moments,
            read=moments + master + gradient_bytes,
            written=moments + master + rewritten,
            flops=20.0,
            fused_launches=4,
        )
