"""Number formats of a training run: what weights, gradients and optimizer states are kept in."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import UnknownNameError

__all__ = ["BYTES_PER_ELEMENT", "PRECISIONS", "Precision", "precision_named"]

BYTES_PER_ELEMENT = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "fp4": 0.5}
"""Bytes of one element of each number format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a run computes and keeps.

    Args:
        name: as users write it.
        compute: dtype of activations, attention, the head, and of the GEMMs unless `gemm` says otherwise.
        gemm: dtype of the operands of the linear layers; what is narrower than `compute` is quantised before each product.
        scales_block: elements that share one scale: 0 one per tensor (fp8), 32 (mxfp8), 16 (nvfp4).
        master_weights: whether an fp32 copy of the weights is kept beside the compute weights.
        loss_scaling: whether gradients are checked for overflow each step (fp16).
    """

    name: str
    compute: str
    gemm: str
    scales_block: int
    master_weights: bool
    loss_scaling: bool

    @property
    def element(self) -> int:
        """Bytes of one weight or activation."""
        return int(BYTES_PER_ELEMENT[self.compute])

    @property
    def quantises(self) -> bool:
        """Whether linear layers run on narrower operands than the activations."""
        return self.gemm != self.compute

    @property
    def quantised_element(self) -> float:
        """Bytes of one quantised element, its part of the scales included."""
        return BYTES_PER_ELEMENT[self.gemm] + (1.0 / self.scales_block if self.scales_block else 0.0)


def _plain(name: str, master_weights: bool, loss_scaling: bool = False) -> Precision:
    return Precision(
        name=name, compute=name, gemm=name, scales_block=0, master_weights=master_weights, loss_scaling=loss_scaling
    )


def _narrow(name: str, gemm: str, block: int) -> Precision:
    return Precision(name=name, compute="bf16", gemm=gemm, scales_block=block, master_weights=True, loss_scaling=False)


PRECISIONS = {
    "fp32": _plain("fp32", False),
    "tf32": _plain("tf32", False),
    "fp16": _plain("fp16", True, True),
    "bf16": _plain("bf16", True),
    "fp8": _narrow("fp8", "fp8", 0),
    "mxfp8": _narrow("mxfp8", "fp8", 32),
    "nvfp4": _narrow("nvfp4", "fp4", 16),
}
"""What runs can be trained in.  fp8, mxfp8 and nvfp4 run their linear layers in 8 or 4 bits on bf16 activations (NVIDIA
Transformer Engine documentation; OCP Microscaling Formats specification for blocks of 32)."""


def precision_named(name: str) -> Precision:
    """Return the precision with this name.

    >>> precision_named("bf16").element
    2
    """
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]
