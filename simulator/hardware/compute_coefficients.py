"""What GPUs achieve: the fitted numbers behind the prices of GEMMs, attention and memory-bound kernels.

One file of `hardware_specs/calibrations` per kind of kernel and GPU (`gemm_p100_16gb_pcie.toml`), chip
(`gemm_blackwell_ultra.toml`) or architecture (`gemm_ampere.toml`).  The numbers are those of a mechanism (a rate, a
depth, a tail), never a table of shapes, so a file also serves GPUs of its architecture that nobody measured; how far
it can be trusted is part of it.
"""

from __future__ import annotations

import functools
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from simulator.errors import UnknownNameError
from simulator.hardware.gpu import Gpu
from simulator.specs import Count, Name, NamedSpec, Names, Spec, load_named, names
from simulator.units import SCALED_PER_BLOCK, BytesPerSecond, FlopsPerSecond, Seconds, Watts

__all__ = [
    "AttentionCoefficients",
    "AttentionKernel",
    "AttentionPass",
    "Clock",
    "GemmCoefficients",
    "MemoryBoundCoefficients",
    "Residuals",
    "load_attention_coefficients",
    "load_for",
    "load_gemm_coefficients",
    "load_memory_bound_coefficients",
]

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
"""A number from 0 to 1."""
Positive = Annotated[float, Field(gt=0.0, le=10.0**6)]
"""A number above 0."""
NotNegative = Annotated[float, Field(ge=0.0, le=10.0**6)]
"""A number of at least 0."""


def _tuples(value: object) -> object:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


Counts = Annotated[tuple[Count, ...], BeforeValidator(_tuples), Field(min_length=1)]
"""A list of counts."""
Tiles = Annotated[tuple[tuple[Count, Count], ...], BeforeValidator(_tuples), Field(min_length=1)]
"""A list of tiles, each (rows, columns)."""

S = TypeVar("S", bound=NamedSpec)


class Residuals(Spec):
    """How good a fit is.

    Args:
        points: measurements used.
        p50, p95: percentiles of |predicted / measured - 1| over them.
        left_out_p50, left_out_p90: the same for whole models left out of the fit in turn; absent if there were too few.
        date: day of the fit.
    """

    points: int = Field(ge=0)
    p50: NotNegative
    p95: NotNegative
    left_out_p50: NotNegative | None = None
    left_out_p90: NotNegative | None = None
    date: Name


class Clock(Spec):
    """The clock under a power limit: rate = peak x min(1, (power / (full_clock_power x busy)) ** exponent).

    Args:
        full_clock_power: what a part of `reference_peak` draws at full clock with its tensor cores fully busy; other
            parts of the architecture draw in proportion to their peaks.
        reference_peak: dense 16-bit peak that `full_clock_power` belongs to.
        exponent: of the ratio; 1/3 if power went with the cube of the clock, more where the voltage cannot fall.
        boost_window: a load much shorter than this keeps the full clock after a time of rest, for the power controller averages
            over longer.  It tells what benchmarks of repeated kernels measured; training never rests that long.
    """

    full_clock_power: Watts
    reference_peak: FlopsPerSecond
    exponent: Fraction
    boost_window: Seconds


class _Calibration(NamedSpec):
    """What all three kinds of file say of themselves.

    Args:
        architecture: GPUs it is meant for; "any" for the fallback.
        measured: names of the GPUs whose measurements stand behind it; empty if it was carried over from elsewhere.
        sigma: standard deviation of log(measured / priced) inside the fitted range, on a measured architecture.
        sigma_outside: the same outside of it.
        residuals: of the fit.
    """

    architecture: Name
    measured: Names
    sigma: Positive
    sigma_outside: Positive
    residuals: Residuals


class GemmCoefficients(_Calibration):
    """Numbers of the GEMM model (see `costs/gemm.py`).

    Args:
        dtypes: number formats that were measured.
        tiles: output tiles the library chooses from; the first is the reference of `small_tile_loss`.
        splits: into how many parts the depth may be cut (split-K).
        split_depth: least depth of a part.
        issue_efficiency: share of the data sheet's peak that the reference tile reaches with an endless depth; above 1 where cards
            keep a higher clock than their data sheet's.
        issue_reference: FLOP per cycle and multiprocessor, in 16-bit formats, of the GPUs that issue_efficiency, prologue and
            small_tile_loss were measured on: on slower tensor cores they lose less; 0 = the same loss everywhere.
        prologue: start and end of a tile, as the depth of 16-bit operands that takes as long; `gradient_prologue` is added for weight
            gradients.
        turned_rate: rate of products whose operands do not both run along the depth (NN, NT: both gradients), relative to TN.
        small_tile_loss: loss of smaller tiles, per percent of extra operand traffic per output element.
        wave_softening: 0: a last, partial wave costs a whole one; 1: work is spread evenly (stream-K).
        exposed_output: share of the output's memory time that compute does not hide.
        exposed_accumulation: the same for products that are added to what is in memory, which is read first; 0 = as exposed_output.
        bandwidth_fraction: achievable share of the memory bandwidth.
        start: fixed time of a kernel on the device.
        split_start: extra fixed time of the kernel that adds the parts.
        scaled_rate: speed of 8-bit products with scales per block (fp8_block, mxfp8), which are rearranged before, relative to those with
            one scale per tensor.
        fp32_rate: speed of fp32 products, on the cores outside the tensor cores, relative to what issue_efficiency gives them.
        fp4_sigma: sigma of 4-bit products, whose measurements differ by more than those of wider formats; 0 = as the others.
        fp8_energy, fp4_energy: energy of an operation in formats of 8 and of 4 bits relative to one of 16 bits.
        misaligned_rate: rate of kernels whose rows are no multiple of 16 bytes, relative to aligned ones.
        fitted_smallest, fitted_largest: range of min(m, n, k) and of max(m, n, k) measured.
        clock: the clock under the power limit.
    """

    dtypes: Names
    tiles: Tiles
    splits: Counts
    split_depth: Count
    issue_efficiency: Positive
    issue_reference: NotNegative = 0.0
    prologue: NotNegative
    gradient_prologue: NotNegative
    turned_rate: Fraction = 1.0
    small_tile_loss: NotNegative
    wave_softening: Fraction
    exposed_output: NotNegative
    exposed_accumulation: NotNegative = 0.0
    bandwidth_fraction: Fraction
    start: Seconds
    split_start: Seconds
    misaligned_rate: Fraction
    scaled_rate: Fraction = 1.0
    fp32_rate: Positive = 1.0
    fp8_energy: Positive = 0.5
    fp4_energy: Positive = 0.25
    fp4_sigma: NotNegative = 0.0
    fitted_smallest: Count
    fitted_largest: Count
    clock: Clock

    @property
    def choices(self) -> NDArray[np.float64]:
        """[rows, columns, splits] of every kernel the library may choose, one column each."""
        return _choices(self.tiles, self.splits)

    @property
    def narrow_energy(self) -> dict[str, float]:
        """Number format of 8 or 4 bits -> energy of an operation relative to one of 16 bits."""
        plain = {"fp8": self.fp8_energy, "int8": self.fp8_energy, "fp4": self.fp4_energy}
        return plain | {name: plain[of] for name, of in SCALED_PER_BLOCK.items()}


@functools.lru_cache(maxsize=64)
def _choices(tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> NDArray[np.float64]:
    """See `GemmCoefficients.choices`; kept here, since an array among a spec's own values could not be compared."""
    return np.array([(r, c, s) for r, c in tiles for s in splits], np.float64).T[:, :, None]


class AttentionPass(Spec):
    """One direction of an attention kernel.

    Args:
        rate: share of the peak reached with endless sequences and head dimensions.
        softmax_cost: work on a score besides the products, in units of head dimension.
        overhead: start, end and masked part of a tile's loop, in keys.
        tail: share of the longest tile's time that is idle at the end.
        wide_rate: rate of head dimensions above 128 relative to others.
        tile: rows of the block that one thread block owns (queries forward, keys backward).
    """

    rate: Positive
    softmax_cost: NotNegative
    overhead: NotNegative
    tail: NotNegative
    wide_rate: Positive
    tile: Count


class AttentionKernel(Spec):
    """A kernel's two directions.

    Args:
        measured: whether measurements stand behind it on this architecture.
        instruction_share: part of the peak that the kernel's instructions can reach (older ones than the architecture's own).
        power_share: part of the clock's full_clock_power that the kernel draws at full clock however few of its cycles are
            products, since exponentials and the traffic of tiles fill the others; 0 = in proportion to its products.
        head_dims: widths of heads that it was compiled for; others are padded to the next one.  () = any.
        operands: number format of its products, whatever the activations are in; "" = theirs.
        skips_windows_backward: whether the backward pass leaves out what lies beyond a window.
    """

    measured: bool
    operands: str = ""
    skips_windows_backward: bool = True
    instruction_share: Fraction = 1.0
    head_dims: Counts = ()
    power_share: NotNegative = 0.0
    forward: AttentionPass
    backward: AttentionPass


class AttentionCoefficients(_Calibration):
    """Numbers of the attention model (see `costs/attention.py`): one entry per kernel that runs on these chips.

    Args:
        kernels: by name (flash1, flash2, flash2_torch, flash3, cudnn, cudnn_2024, cudnn_mxfp8,
            memory_efficient); one that is left out was written for other chips.
        libraries: what a library takes on this architecture: te (Transformer Engine), te_2024 (with the cuDNN of that year),
            te_mxfp8 (of operands in 8 bits), sdpa (PyTorch from 2.11 on), sdpa_2025 (PyTorch before) -> a kernel.
        bandwidth_fraction: achievable share of the memory bandwidth.
        start: fixed time of a kernel on the device.
        fitted_shortest, fitted_longest: range of sequence lengths measured.
        issue_reference: as in `GemmCoefficients`: on slower tensor cores a kernel loses less beside its products.
        clock: the clock under the power limit.
    """

    kernels: dict[Name, AttentionKernel]
    libraries: dict[Name, Name] = Field(default_factory=dict)
    bandwidth_fraction: Fraction
    start: Seconds
    fitted_shortest: Count
    fitted_longest: Count
    issue_reference: NotNegative = 0.0
    clock: Clock

    def runs(self, name: str) -> bool:
        """Return whether these chips have a kernel, or one that this library takes here."""
        return self.libraries.get(name, name) in self.kernels

    def kernel(self, name: str) -> AttentionKernel:
        """Return the numbers of a kernel, or of the one that a library takes here.

        Raises:
            UnknownNameError: the file has no such kernel.
        """
        if not self.runs(name):
            raise UnknownNameError("attention kernel", name, {*self.kernels, *self.libraries})
        return self.kernels[self.libraries.get(name, name)]


class MemoryBoundCoefficients(_Calibration):
    """Numbers of the memory-bound model (see `costs/memory_bound.py`).

    Args:
        bandwidth_fraction: share of the data sheet's bandwidth that large kernels reach.
        gather_share: that share for kernels that read or write rows in another order, relative to a stream.
        layer_share: the same for the small kernels of layers: norms, activations, residuals, rotary embedding.
        layer_backward_share: the same for their backward passes, which sum over rows and columns at once; 0 = as layer_share.
        norm_share: the same for norms of PyTorch's and apex' kernels, which find sums over tokens apart; 0 = as other small kernels.
        cast_share: the same for kernels that quantise operands of products to 8 or 4 bits.
        turned_share: the same for kernels of Triton that also turn them by a Hadamard transform; 0 = as cast_share.
        sums_in_layer: whether layer_share was measured on norms whose backward reads its operands twice, by the bytes of reading
            them once: the second reading ("norm sums") is in it then.
        loss_share: the same for a cross-entropy made of separate tensor operations.
        scores_backward_share: the same for the backward pass of a softmax over scores in memory.  It stands for the products
            around it too, whose reading of transposed scores is slower than their other traffic.
        plain_share: the same for a norm written in plain tensor operations: casts, reductions and products with a number of each row.
        strided_share: the same for plain operations on parts of tensors (halves of heads or of a gate's input, joined again).
        stack_share: the same for copies into a slice of a larger array, as XLA's kernel for it makes them: a number at a time.
        atomic_share: the same for rows that plain operations add up by atomic additions, a number at a time.
        sorted_share: the same for rows that they add up in the order of their sorted indices, run by run.
        fetch_time: what a multiprocessor takes for a row of a token that it fetches from another rank and adds up (HybridEP).
        copy_time, copy_rate: what it takes for a row that it copies between ranks by loads and stores (DeepEP), and for its
            bytes; 0 = nothing.
        look_time: what a kernel that sorts rows by expert takes for every row and expert of the rank, beside the traffic.
        start: fixed time of a kernel on the device.
        ramp: time in which a kernel's traffic comes up to speed and dies away again.
    """

    bandwidth_fraction: Fraction
    gather_share: Fraction
    layer_share: Fraction
    layer_backward_share: Fraction = 0.0
    norm_share: Fraction = 0.0
    loss_share: Fraction
    sums_in_layer: bool = False
    scores_backward_share: Fraction
    cast_share: Fraction = 1.0
    turned_share: Fraction = 0.0
    stack_share: Fraction = 1.0
    atomic_share: Fraction = 1.0
    sorted_share: Fraction = 1.0
    plain_share: Fraction = 1.0
    strided_share: Fraction = 1.0
    fetch_time: Seconds = 0.0
    copy_time: Seconds = 0.0
    copy_rate: BytesPerSecond = 0.0
    look_time: Seconds = 0.0
    start: Seconds
    ramp: Seconds

    def fraction(self, access: str) -> float:
        """Return the share of the bandwidth that a kernel of this access reaches: "" (a stream), "layer", "layer backward", "norm",
        "norm backward", "norm sums", "gather", "exchange", "loss", "flash layout", "scores", "scores backward", "cast", "turned",
        "stack", "plain", "strided", "atomic", "sorted" or "transposed"."""
        shares = {
            "gather": self.gather_share,
            "exchange": self.gather_share,
            "layer": self.layer_share,
            "layer backward": self.layer_backward_share or self.layer_share,
            "norm": self.norm_share or self.layer_share,
            "norm backward": self.norm_share or self.layer_backward_share or self.layer_share,
            "norm sums": self.norm_share or self.layer_share,
            "flash layout": self.layer_share,
            "loss": self.loss_share,
            "cast": self.cast_share,
            "turned": self.turned_share or self.cast_share,
            "stack": self.stack_share,
            "atomic": self.atomic_share,
            "sorted": self.sorted_share,
            "plain": self.plain_share,
            "strided": self.strided_share,
            "transposed": self.cast_share,
            "scores": self.layer_share,
            "scores backward": self.scores_backward_share,
        }
        relative = shares.get(access, 1.0)
        return self.bandwidth_fraction * relative


def load_gemm_coefficients(gpu: Gpu, name: str | None = None) -> GemmCoefficients:
    """Return the GEMM numbers of a file, or else the GPU's own, its chip's, its architecture's or the fallback's.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    return load_for(gpu, "gemm", name, GemmCoefficients, "gemm_any")


def load_attention_coefficients(gpu: Gpu, name: str | None = None) -> AttentionCoefficients:
    """Return the attention numbers of a file, or else the GPU's own, its chip's, its architecture's or the fallback's.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    return load_for(gpu, "attention", name, AttentionCoefficients, "attention_any")


def load_memory_bound_coefficients(gpu: Gpu, name: str | None = None) -> MemoryBoundCoefficients:
    """Return the memory-bound numbers of a file, or else the GPU's own, its chip's, its architecture's or the fallback's.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    return load_for(gpu, "memory_bound", name, MemoryBoundCoefficients, "memory_bound_any")


def load_for(gpu: Gpu, kind: str, name: str | None, cls: type[S], otherwise: str) -> S:
    """Return the file of this name, or else that of the GPU, of its chip, of its architecture, or the one that serves all others.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    known = names("calibrations")
    wanted = (f"{kind}_{gpu.name}", f"{kind}_{gpu.chip}", f"{kind}_{gpu.architecture}")
    return load_named("calibrations", name or next((w for w in wanted if w in known), otherwise), cls)
