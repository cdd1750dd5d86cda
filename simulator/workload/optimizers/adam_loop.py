"""Adam and AdamW whose update takes one tensor after the other, operation by operation."""

from __future__ import annotations

from simulator.workload.optimizers.adam import Adam

__all__ = ["AdamLoop"]


class AdamLoop(Adam):
    """Adam's states and bytes, with torch.optim's `foreach=False`: of one tensor at a time the root and its quotient stand at once."""

    name = "adam_loop"
    aliases = ("adamw_loop", "adamw_without_foreach")
    source = "pytorch/pytorch torch/optim/adam.py, _single_tensor_adam: denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)"
    listed_results = 0
    looped_results = 2
