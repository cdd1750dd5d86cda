"""Number formats of a training run: what weights, gradients and optimizer states are kept in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from simulator.errors import UnknownNameError
from simulator.remembered import hashed_once, kept
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["FROZEN_BYTES", "NF4_BYTES", "PRECISIONS", "Precision", "PrecisionName", "precision_named"]

NF4_BYTES = 0.5 + (1.0 + 4.0 / 256) / 64
"""Bytes of a weight in NF4: 4 bits, a scale of 8 bits for 64 of them, one of 32 for 256 of these (QLoRA, arXiv 2305.14314, section 3)."""
FROZEN_BYTES = {"nf4": NF4_BYTES, "fp8": 1.0}
"""Format of frozen weights -> bytes of each; fp8: operands as products read them, with a scale per tensor, as Transformer Engine keeps
weights made under fp8_model_init (float8_tensor.py; Hopper, which does not read across, transposes them in every backward pass)."""


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Precision:
    """What a run computes and keeps.

    Args:
        name: as users write it.
        compute: dtype of activations, attention, the head, and of the GEMMs unless `gemm` says otherwise.
        gemm: dtype of the operands of the linear layers; what is narrower than `compute` is quantised before each product.
        scale_bytes: bytes of scales per element: 0 where a tensor has one (fp8, fp8_current).
        cast_reads: times that a tensor is read to quantise it: 2 where its maximum is found first.
        norm_helps: whether a norm in front of a product saves one of these reads.
        copies_alike: whether the operand of the weight gradient is the same numbers transposed (one scale per tensor).
        gathers_narrow: whether operands that ranks gather are quantised before.
        rescales: whether gradients' products know no scales of rows and columns, and are multiplied by them in kernels of their own.
        reads_apart: times that a tensor is read where kernels of its own quantise it (a framework's casts_apart): TorchAO's of mxfp8 make
            copies by rows and by columns in turn, that of nvfp4 finds the maximum first.
        turns: whether these kernels turn a tensor by a Hadamard transform as they quantise it.
        master_weights: whether an fp32 copy of the weights is kept beside the compute weights.
        loss_scaling: whether gradients are checked for overflow each step (fp16).
    """

    name: str
    compute: str
    gemm: str
    scale_bytes: float
    cast_reads: int
    norm_helps: bool
    copies_alike: bool
    master_weights: bool
    loss_scaling: bool
    gathers_narrow: bool = True
    rescales: bool = False
    reads_apart: int = 1
    turns: bool = False

    @kept
    def element(self) -> int:
        """Bytes of one weight or activation."""
        return int(BYTES_PER_ELEMENT[self.compute])

    @property
    def quantises(self) -> bool:
        """Whether linear layers run on narrower operands than the activations."""
        return self.gemm != self.compute

    @property
    def shares_maxima(self) -> bool:
        """Whether ranks agree on the maxima of tensors after each pass, for the scales of later ones (delayed scaling)."""
        return self.copies_alike and self.cast_reads == 1

    @property
    def micro_scaled(self) -> bool:
        """Whether operands have a scale per 32 elements (MXFP8), which fused grouped products write with their results."""
        return self.gemm == "mxfp8"

    @property
    def quantised_element(self) -> float:
        """Bytes of one quantised element, its part of the scales included."""
        return BYTES_PER_ELEMENT[self.gemm] + self.scale_bytes


def _plain(name: str, master_weights: bool, loss_scaling: bool = False) -> Precision:
    return Precision(
        name=name,
        compute=name,
        gemm=name,
        scale_bytes=0.0,
        cast_reads=0,
        norm_helps=False,
        copies_alike=False,
        master_weights=master_weights,
        loss_scaling=loss_scaling,
    )


def _narrow(name: str, gemm: str, scale_bytes: float, reads: int, norm_helps: bool) -> Precision:
    return Precision(
        name=name,
        compute="bf16",
        gemm=gemm,
        scale_bytes=scale_bytes,
        cast_reads=reads,
        norm_helps=norm_helps,
        copies_alike=scale_bytes == 0.0,
        master_weights=True,
        loss_scaling=False,
    )


PRECISIONS = {
    "fp32": _plain("fp32", False),
    "tf32": _plain("tf32", False),
    "fp16": _plain("fp16", True, True),
    "bf16": _plain("bf16", True),
    "bf16_true": replace(_plain("bf16", False), name="bf16_true"),
    "fp8": _narrow("fp8", "fp8", 0.0, 1, True),
    "fp8_current": _narrow("fp8_current", "fp8", 0.0, 2, True),
    "fp8_rowwise": replace(
        _narrow("fp8_rowwise", "fp8", 0.0, 3, False), copies_alike=False, gathers_narrow=False, rescales=True
    ),
    "fp8_block": _narrow("fp8_block", "fp8_block", 4.0 / 128, 1, False),
    "mxfp8": replace(_narrow("mxfp8", "mxfp8", 1.0 / 32, 1, False), reads_apart=2),
    "mxfp4": _narrow("mxfp4", "mxfp4", 1.0 / 32, 1, False),
    "nvfp4": replace(_narrow("nvfp4", "nvfp4", 1.0 / 16, 2, False), reads_apart=2, turns=True),
    "int8": replace(_narrow("int8", "int8", 0.0, 4, False), copies_alike=False, gathers_narrow=False),
}
"""What runs can be trained in.  bf16_true keeps nothing wider than 16 bits: weights, gradients and the optimizer's moments are
bf16 (PyTorch Lightning's bf16-true, torchtune's and Hugging Face's models loaded in bf16).  The last eight run their linear
layers in 8 or 4 bits on bf16 activations: fp8 with one scale per tensor from earlier steps (delayed scaling), fp8_current
with one from the tensor itself, fp8_block with one per 128 (fp32), mxfp8 and mxfp4 per 32 (1 byte), nvfp4 per 16 (1 byte).  fp8_rowwise is
TorchAO's: a scale per row of the left and per column of the right operand, so that each tensor is quantised by rows and by columns.
int8 is AQT's on TPUs (MaxText: quantization int8): all three products of a layer in 8-bit integers, each operand scaled by the largest
number along what is summed over, found just before it; sums are multiplied by both scales where they leave the matrix unit.
Source: NVIDIA TransformerEngine, docs/features/low_precision_training; OCP Microscaling Formats specification for blocks of 32;
AI-Hypercomputer/maxtext layers/quantizations.py, _get_int8_quant_config (fwd_bits, dlhs_bits, drhs_bits 8); google/aqt
jax/v2/aqt_dot_general.py and config.py (absmax calibration along the contracted axes, backward products quantise their own operands);
pytorch/ao, torchao/float8: float8_linear.py (what is quantised how), pull request 1325 and issue 2184 (without fast accumulation, as of
gradients, the product has one scale and a kernel multiplies its result), float8_tensor_parallel.py (one scale is gathered narrow);
torchao/prototype/mx_formats at 06f5ff43 and 0aff79d5: mx_linear.py (casts along each dimension), nvfp4_linear.py (triton_rht_amax, then
triton_rht_quantize_row_col)."""

if TYPE_CHECKING:
    PrecisionName = str
else:
    PrecisionName = Literal[tuple(PRECISIONS)]
    """The type of a field that names one."""


def precision_named(name: str) -> Precision:
    """Return the precision with this name.

    >>> precision_named("bf16").element
    2
    """
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]
