"""Seconds of matrix products: tiles in waves over the multiprocessors, a power limit, and the memory's roofline.

    seconds = min over kernels of max(waves x tile x (depth + prologue) / rate, traffic / bandwidth) + output + start

A kernel is a tile of the output and a number of parts into which the depth is cut.  The rate is the peak times what the
kernel can issue times the clock that the power limit leaves: a kernel that keeps the tensor cores less busy draws less
and runs at a higher clock, so that lost efficiency is partly won back.  What it cannot issue, and the start of a tile, are cycles
of the multiprocessor: they count for less where its tensor cores are slower, as on cards cut for export or made for games, and in
formats without tensor cores.  The start of a tile takes as long in every format: in 8 bits it is worth twice the depth.
The numbers are in `hardware/compute_coefficients.py`.  Host launches are not part of the price.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import ProgramError
from simulator.hardware.compute_coefficients import Clock, GemmCoefficients
from simulator.hardware.gpu import Gpu, peak_name
from simulator.program.calls import ORDERS
from simulator.program.prices import PriceClass
from simulator.units import BYTES_PER_ELEMENT, SCALED_PER_BLOCK

__all__ = [
    "BENCHMARK_REPEATS",
    "clock_share",
    "gemm_calibrated",
    "gemm_class",
    "gemm_seconds",
    "gemm_sigma",
    "tensor_pace",
]

BENCHMARK_REPEATS = 100.0
"""Times that a benchmark runs a product in a row where its table does not say (SimuMax: 25 + 75; Transformer Engine, gemm_profiling:
10 + 100; the search for best shapes of stas00/ml-engineering: 50 + 100)."""
_DEPTH_STEP = 64.0
_ROW_BYTES = 16.0
_HALF_BYTES = 2.0
_PLAIN_ENERGY = 0.75
"""What an operation of fp32 without tensor cores draws at its peak, of what tensor cores draw at theirs: cubes of 2048 to 8192 on V100
run at 0.92 of the fp32 peak of 300 W, 5120 x 4096 x 4096 on A100 PCIe at 0.97 (0.80 and 0.7 of the energy of 16-bit products there)."""
Array = NDArray[np.float64]


def gemm_seconds(
    shape: ArrayLike,
    layout: Sequence[str],
    dtype: Sequence[str],
    accumulates: ArrayLike,
    gpu: Gpu,
    coefficients: GemmCoefficients,
    repeats: ArrayLike = math.inf,
    shared: ArrayLike = 1.0,
    saved: ArrayLike = 1.0,
) -> Array:
    """Return the time on the device of each product [s], without the host's launch.

    Args:
        shape: [n, 4] batch, m (rows of the output), n (columns), k (depth).
        layout: per row, one of `ORDERS`: TN has m = tokens, NN too, NT has k = tokens.
        dtype: per row, number format of the operands.
        accumulates: per row, whether the product is added into an fp32 buffer (which is read and written).
        gpu: where it runs.
        coefficients: from `load_gemm_coefficients`.
        repeats: how many of it a benchmark runs on a GPU that was idle before; inf = the load goes on, as in training.
        shared: per row, how often each number of the operand with rows (of NT: with columns) stands in it (see `calls.Convolved`): memory
            is asked for it once.
        saved: per row, how many times fewer multiplications transformed tiles take: of numbers in fp32 on cores that multiply them one by
            one, as cuDNN chooses there (tensor cores take products as they are); the transforms run in the same kernels.

    Raises:
        ProgramError: a size below 1 or an unknown layout.
        SpecError: the GPU has no peak for the number format.

    >>> from simulator.hardware.compute_coefficients import load_gemm_coefficients
    >>> from simulator.hardware.gpu import load_gpu
    >>> gpu = load_gpu("a100_80gb_sxm")
    >>> seconds = gemm_seconds([(1, 8192, 8192, 8192)], ["TN"], ["bf16"], [False], gpu, load_gemm_coefficients(gpu))
    >>> bool(0.7 < 2 * 8192**3 / seconds[0] / gpu.peak("bf16") < 0.9)
    True
    """
    c = coefficients
    sizes = np.asarray(shape, np.float64).reshape(-1, 4)
    if len(sizes) == 0:
        return np.zeros(0)
    _check(sizes, layout)
    batch, m, n, k = sizes.T
    added = np.asarray(accumulates, bool)
    peak = np.array([gpu.peak(d) for d in dtype])
    element = np.array([BYTES_PER_ELEMENT[d] for d in dtype], np.float64)
    gradient = np.array([name == "NT" for name in layout])
    rows, columns, parts = c.choices

    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * parts
    waves = tiles / gpu.streaming_multiprocessors
    waves = (1.0 - c.wave_softening) * np.ceil(waves) + c.wave_softening * np.maximum(waves, 1.0)
    pace = tensor_pace(peak, element, gpu, c.issue_reference)
    ends = (c.prologue + c.gradient_prologue * gradient) * pace * _HALF_BYTES / element
    depth = np.ceil(k / parts / _DEPTH_STEP) * _DEPTH_STEP + ends
    rate = peak * _issue_rate(c, pace, dtype) * _alignment(sizes, layout, dtype, element, peak, gpu, c)
    rate = rate * np.array([1.0 if name == "TN" else c.turned_rate for name in layout])
    compute = waves * rows * columns * depth * (2.0 * gpu.streaming_multiprocessors) / rate
    busy = 2.0 * batch * m * n * k / (peak * compute)
    lasting = compute * np.asarray(repeats, np.float64)
    compute /= clock_share(busy * _draw(dtype, peak, gpu, c), lasting, gpu, c.clock)
    compute /= np.array([c.scaled_rate if SCALED_PER_BLOCK.get(name) == "fp8" else 1.0 for name in dtype])
    compute /= np.where([name == "fp32" for name in dtype], np.asarray(saved, np.float64), 1.0)

    outputs = batch * m * n
    partial = np.where(parts > 1, 8.0 * parts * outputs, 0.0)
    stored = outputs * np.where(added, 8.0, np.maximum(element, 2.0)) + partial
    once = np.asarray(shared, np.float64)
    left, right = m * k / np.where(gradient, 1.0, once), k * n / np.where(gradient, once, 1.0)
    traffic = element * batch * (left + right) + stored
    memory = traffic / (c.bandwidth_fraction * gpu.memory_bandwidth)
    exposed = np.where(added, c.exposed_accumulation or c.exposed_output, c.exposed_output)
    seconds = np.maximum(compute, memory) + exposed * stored / gpu.memory_bandwidth
    seconds += c.start + np.where(parts > 1, c.split_start, 0.0)
    seconds[(parts > 1) & (k / parts < c.split_depth)] = np.inf
    return np.asarray(seconds.min(axis=0))


@functools.lru_cache(maxsize=64)
def gemm_class(dtype: str, windows: bool = False) -> PriceClass:
    """Return the price class of products in a number format; with `windows`, of convolutions, which nobody has measured here."""
    return PriceClass("convolution" if windows else "gemm", dtype)


def gemm_calibrated(dtype: str, gpu: Gpu, coefficients: GemmCoefficients) -> bool:
    """Return whether measurements of this architecture and number format stand behind the price."""
    measured = coefficients.architecture == gpu.architecture and bool(coefficients.measured)
    same = {dtype} | ({"fp16", "bf16"} if dtype in ("fp16", "bf16") else set())
    return measured and bool(same & set(coefficients.dtypes))


def gemm_sigma(shape: ArrayLike, dtype: Sequence[str], gpu: Gpu, coefficients: GemmCoefficients) -> Array:
    """Return the standard deviation of log(measured / priced) of each product: larger outside what was measured."""
    c = coefficients
    sizes = np.asarray(shape, np.float64).reshape(-1, 4)[:, 1:]
    inside = (sizes.min(axis=1) >= c.fitted_smallest) & (sizes.max(axis=1) <= c.fitted_largest)
    inside &= np.array([gemm_calibrated(d, gpu, c) for d in dtype], bool)
    narrow = np.array([c.fp4_sigma if peak_name(d) == "fp4" else 0.0 for d in dtype])
    sigma: Array = np.maximum(np.where(inside, c.sigma, c.sigma_outside), narrow)
    return sigma


def clock_share(busy: Array, seconds: Array, gpu: Gpu, clock: Clock) -> Array:
    """Return the share of the full clock that the power limit leaves.

    Args:
        busy: share of the tensor cores' peak in use at full clock, in the power of 16-bit products.
        seconds: how long this load lasts at full clock, after a time of rest [s]; inf where it goes on.
    """
    drawn = clock.full_clock_power * (_half_peak(gpu) / clock.reference_peak) * busy
    share = np.minimum((gpu.power / drawn) ** clock.exponent, 1.0)
    if clock.boost_window == 0.0:
        return np.asarray(share)
    ratio = (clock.boost_window * share / seconds) ** 4  # 0 where the load goes on
    return np.asarray(share ** (1.0 / (1.0 + ratio)))


def _draw(dtype: Sequence[str], peak: Array, gpu: Gpu, c: GemmCoefficients) -> Array:
    """What a fully busy tensor core draws in each row's format, in terms of the 16-bit formats.

    An operation of 8 or 4 bits takes a part of the energy of one of 16 bits, and more of them are done in the time.
    """
    half, energy = _half_peak(gpu), c.narrow_energy
    drawn = [energy[d] * p / half if d in energy else 1.0 for d, p in zip(dtype, peak, strict=True)]
    return np.where([d == "fp32" for d in dtype], _PLAIN_ENERGY, drawn)


def _half_peak(gpu: Gpu) -> float:
    """Peak of the 16-bit formats, or of fp32 or whatever there is [FLOP/s]."""
    peaks = gpu.peak_flops
    return max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) or peaks.get("fp32", 0.0) or max(peaks.values())


def tensor_pace(peak: ArrayLike, element: ArrayLike, gpu: Gpu, reference: float) -> Array:
    """Return how fast a multiprocessor's peak takes in operands, of what a calibration was measured with; at most 1.

    Args:
        peak: of a number format on this GPU [FLOP/s].
        element: bytes of an operand.
        gpu: where it runs.
        reference: FLOP per cycle and multiprocessor in 16-bit formats that the calibration belongs to; 0 = whatever the GPU has.

    >>> from simulator.hardware.gpu import load_gpu
    >>> gpu = load_gpu("h20_96gb_sxm")
    >>> round(float(tensor_pace(gpu.peak("bf16"), 2.0, gpu, 3786.0)), 3)
    0.253
    """
    if reference == 0.0:
        return np.ones(np.broadcast(np.asarray(peak), np.asarray(element)).shape)
    own = np.asarray(peak) * np.asarray(element) / _HALF_BYTES / (gpu.streaming_multiprocessors * gpu.boost_clock)
    return np.asarray(np.minimum(own / reference, 1.0))


def _issue_rate(c: GemmCoefficients, pace: Array, dtype: Sequence[str]) -> Array:
    """Share of the peak that is issued; outside the tensor cores what fp32_rate measured stands in place of a pace."""
    rows, columns, _ = c.choices
    reference = 1.0 / c.tiles[0][0] + 1.0 / c.tiles[0][1]
    extra = np.maximum(1.0 / rows + 1.0 / columns - reference, 0.0)
    plain = np.array([name == "fp32" for name in dtype])
    idle = (1.0 / c.issue_efficiency - 1.0) * np.where(plain, 1.0, pace)
    return np.asarray(
        np.where(plain, c.fp32_rate, 1.0) / ((1.0 + idle) * (1.0 + c.small_tile_loss * 100.0 * extra * pace))
    )


def _alignment(
    sizes: Array,
    layout: Sequence[str],
    dtype: Sequence[str],
    element: Array,
    peak: Array,
    gpu: Gpu,
    c: GemmCoefficients,
) -> Array:
    """1 where the rows of all three matrices start at multiples of 16 bytes, else the rate that is left.

    A plain product keeps the tensor cores, with kernels that load less at a time.  A batched one leaves them: it runs on the
    cores for fp32, in which all 16-bit products are summed.  Products in fp32 run there in any case, and load single numbers.
    """
    batch, m, n, k = sizes.T
    code = np.array([ORDERS.index(name) for name in layout])
    left = np.where(code == 2, m, k)
    right = np.where(code == 0, k, n)
    odd = (left * element % _ROW_BYTES != 0) | (right * element % _ROW_BYTES != 0)
    odd |= n * np.maximum(element, 2.0) % _ROW_BYTES != 0
    odd &= np.array([name != "fp32" for name in dtype])
    plain = np.minimum(gpu.peak_flops.get("fp32", np.inf) / peak, c.misaligned_rate)
    return np.where(odd, np.where(batch > 1, plain, c.misaligned_rate), 1.0)


def _check(sizes: Array, layout: Sequence[str]) -> None:
    if sizes.min() < 1:
        row = int(np.argmin(sizes.min(axis=1)))
        raise ProgramError(f"a GEMM's batch, m, n and k are at least 1, got {sizes[row].tolist()} in row {row}")
    unknown = set(layout) - set(ORDERS)
    if unknown:
        raise ProgramError(f"a GEMM's layout is one of {', '.join(ORDERS)}, got {sorted(unknown)[0]!r}")
