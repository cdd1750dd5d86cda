"""Adam and AdamW whose update is one kernel over all tensors, also in codes that else update lists of tensors."""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.optimizers.adam import Adam
from simulator.workload.optimizers.base import OptimizerCost

__all__ = ["AdamFused"]


class AdamFused(Adam):
    """Adam's states and bytes, with torch.optim's `fused=True`: each number is read and written once, and no result stands beside them."""

    name = "adam_fused"
    aliases = ("adamw_fused", "adamw_torch_fused", "fused_adam")
    source = "torch.optim.AdamW documentation, fused; pytorch/pytorch aten/src/ATen/native/cuda/fused_adamw_impl.cu"
    listed_results = 0

    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """See `Optimizer.cost`.

        >>> AdamFused().cost(2, 4, True).listed
        (0.0, 0.0)
        """
        return replace(super().cost(weight_bytes, gradient_bytes, master_weights), listed=(0.0, 0.0))
