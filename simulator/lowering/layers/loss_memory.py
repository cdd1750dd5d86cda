"""What stands on a GPU while the loss runs: logits, their fp32 copies and gradients, and places that they leave behind.

    fused and in place       nothing but the 16-bit logits, which their gradients replace (llm.c, Transformer Engine)
    fused, in fp32           16-bit and fp32 logits beside the exponentials that are kept (Megatron-Core)
    in place (Megatron)      16-bit logits, or their gradients in the same place, beside the saved softmax
    plain (torch)            forward logits in 16 bits and fp32; backward the fp32 gradients of the picked log-probabilities and of
                             the softmax (DTensor's split loss: also the exponentials), beside the saved log-probabilities
    plain, not widened       the same, all of it in 16 bits

In the plain form the 16-bit logits stand too, held by whoever called the model, or freed and too small to be used again.
In chunks, forward and backward of one chunk after the other run in the forward, and nothing of it is left for the backward.
"""

from __future__ import annotations

from simulator.program.program import Tensor
from simulator.units import FP32
from simulator.workload.operator import KernelStyle

__all__ = ["loss_marks"]


def loss_marks(
    style: KernelStyle, logits: float, tensor: int, element: float, gradient: float
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the temporaries of the head forward and backward, beside what the loss saves.

    Args:
        logits: of a microbatch, over the whole vocabulary [count].
        tensor: tensor-parallel ranks.
        element: bytes of a 16-bit number.
        gradient: bytes of the head's weight gradient on one rank.
    """
    split = tensor > 1 and not style.gathers_logits
    logits = (logits / tensor if split else logits) / style.loss_chunks
    broken = _broken(logits, gradient) if style.makes_gradients else ()
    if style.fused_cross_entropy or style.in_place_cross_entropy:
        both = style.fused_cross_entropy and style.in_place_cross_entropy
        forward, backward, output = (0.0, 0.0, 0.0) if both else (element, element, 0.0)
        if style.fused_cross_entropy and style.widens_fused_loss:
            forward, backward = element + FP32, element
    else:
        copy = FP32 if style.widens_logits else 0.0
        forward, backward, output = element + copy, (copy or element) * (3.0 if split else 2.0), element
    if style.loss_chunks > 1:
        return _tensor("head workspace, a chunk", "workspace", logits * max(forward, backward + output)), ()
    return (
        (*_tensor("head workspace", "workspace", logits * forward), *broken),
        (
            *_tensor("head gradients of activations", "workspace", logits * backward),
            *_tensor("head output in 16 bits", "logits", logits * output),
            *broken,
        ),
    )


def _broken(logits: float, gradient: float) -> tuple[Tensor, ...]:
    """Bytes around the head's weight gradient in the place of freed fp32 logits.

    When the first backward makes that gradient, those places are the only ones large enough; it stays there, so the next
    microbatch's fp32 logits find the place too small and take another.
    """
    left = max(0.0, FP32 * logits - gradient)
    return _tensor("place that the head's gradient breaks up", "fragmentation", left)


def _tensor(name: str, category: str, size: float) -> tuple[Tensor, ...]:
    return (Tensor(name=name, category=category, bytes=size),) if size else ()
