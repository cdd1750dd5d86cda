"""One GPU: what its maker promises.  What it achieves is in the calibrations."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, model_validator

from simulator.errors import SpecError, nearest
from simulator.specs import Count, Listed, Name, NamedSpec, load_named
from simulator.units import SCALED_PER_BLOCK, Bytes, BytesPerSecond, FlopsPerSecond, Hertz, Watts

__all__ = ["DTYPES", "Gpu", "load_gpu", "peak_name"]

BlockScaled = Literal["mxfp8", "mxfp4", "nvfp4"]
BLOCK_SCALED: tuple[str, ...] = get_args(BlockScaled)
"""Formats that are multiplied where the matrix unit itself applies their scales; fp8_block's are applied by the kernel."""
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Number formats a peak can be given for; fp32 is without tensor cores."""


def _known_dtype(value: str) -> str:
    if value not in DTYPES:
        guess = nearest(value, DTYPES)
        hint = f" Did you mean {guess}?" if guess else ""
        raise ValueError(f"unknown number format.{hint} Known: {', '.join(DTYPES)}")
    return value


class Gpu(NamedSpec):
    """A GPU's data sheet.

    `peak_flops` are dense [FLOP/s] by number format; `memory` [B] is the capacity that the device reports, of which its driver
    keeps `driver_memory` [B] for itself; `chip` names a chip that it shares with others and that calibrations may be named after;
    `transposes_narrow` says whether its 8-bit products take operands along the depth only, so that gradients need
    transposed copies; `block_scaled` are the formats whose scales, one for 32 or 16 numbers, its products apply themselves.
    """

    vendor: Name
    architecture: Literal[
        "processor",
        "pascal",
        "volta",
        "turing",
        "ampere",
        "ada",
        "hopper",
        "blackwell",
        "cdna2",
        "cdna3",
        "cdna4",
        "tpu",
        "ascend",
        "gaudi",
        "xe_hpc",
        "neuron",
    ]
    chip: Name | None = None
    form: Name
    peak_flops: dict[Annotated[str, AfterValidator(_known_dtype)], FlopsPerSecond]
    memory: Bytes
    driver_memory: Bytes = 0.0
    memory_bandwidth: BytesPerSecond
    streaming_multiprocessors: Count
    power: Watts
    boost_clock: Hertz
    transposes_narrow: bool = True
    block_scaled: Annotated[tuple[BlockScaled, ...], Listed] = ()

    @model_validator(mode="after")
    def _check(self) -> Gpu:
        if not {"fp32", "fp16", "bf16"} & set(self.peak_flops):
            raise ValueError("peak_flops must give at least one of fp32, fp16, bf16")
        if self.memory <= self.driver_memory:
            raise ValueError("memory must be above zero, and above what the driver keeps")
        return self

    @property
    def usable_memory(self) -> float:
        """Bytes that a process can have: all but what the driver keeps."""
        return self.memory - self.driver_memory

    @property
    def usual_precision(self) -> str:
        """What a model is usually trained in here: bf16, else fp16, else fp32."""
        return next((name for name in ("bf16", "fp16") if name in self.peak_flops), "fp32")

    def peak(self, dtype: str) -> float:
        """Return the dense peak of a number format [FLOP/s]; of one with scales per block it is that of its numbers.

        Raises:
            SpecError: this GPU has no peak for the format; the message lists those it has.

        >>> load_gpu("a100_80gb_sxm").peak("bf16")
        312000000000000.0
        """
        stated = peak_name(dtype)
        if stated not in self.peak_flops or (dtype in BLOCK_SCALED and dtype not in self.block_scaled):
            has = ", ".join((*self.peak_flops, *self.block_scaled))
            raise SpecError(
                f"GPU {self.name!r} has no peak for {dtype}. It has: {has}. Way out: --set "
                f"workload.precision={self.usual_precision}"
            )
        return self.peak_flops[stated]


def peak_name(dtype: str) -> str:
    """Return the number format under which GPUs state the peak of this one: scales per block do not change it.

    >>> peak_name("mxfp8"), peak_name("bf16")
    ('fp8', 'bf16')
    """
    return SCALED_PER_BLOCK.get(dtype, dtype)


def load_gpu(name: str) -> Gpu:
    """Return the GPU of this name, alias or file.

    Raises:
        SpecError: no such GPU, or its file is wrong.
    """
    return load_named("gpus", name, Gpu)
