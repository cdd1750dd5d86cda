"""Fused attention where PyTorch has a kernel for a GPU and none for a CPU: with dropout, and of values of another width than keys.

On a CPU scaled_dot_product_attention would go the long way then, with scores in memory.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["fuse_attention"]


def fuse_attention() -> None:
    """Put the operator of a GPU's kernel, which knows of tensors without data what it would make, in the place of the long way."""
    import torch
    from torch.nn import functional

    chosen, fused = functional.scaled_dot_product_attention, torch.ops.aten._scaled_dot_product_cudnn_attention

    @functools.wraps(chosen)
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        alike = not dropout_p and query.shape[-1] == value.shape[-1]
        if alike or query.dim() != 4 or (attn_mask is not None and attn_mask.requires_grad):
            options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
            return chosen(query, key, value, enable_gqa=enable_gqa, **options)
        device = query.device.type
        if torch.is_autocast_enabled(device):
            query, key, value = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        return fused(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]

    functional.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention
