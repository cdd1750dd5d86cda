"""Seconds of fused attention kernels, forward and backward.

    seconds = (tiles x (keys seen + overhead) / multiprocessors + tail x longest loop) x work of a key / rate + start

Each thread block owns a tile of queries (backward: of keys) and loops over the other side.  Under a causal mask tiles
see half of it on average, but the longest loop, which the last tiles wait for, stays whole: with few heads per GPU the
tail is what costs.  A sliding window ends every loop at its width, and masks half a tile more at its far edge.
A kernel whose backward pass knows no windows computes all scores under the mask there.
Heads of a width that a kernel was not compiled for are padded to the next one that it was.
The softmax is work that does not grow with the head dimension, so short heads are slower; it takes the cycles of other units, as the start
of a loop does, so slower tensor cores make both cheaper beside them.  Its exponentials draw power too: a
kernel whose products fill a third of the cycles still meets the power limit of a card that is capped below the full one.
Attention that keeps its scores in memory is no kernel of its own: it is two products and a softmax.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.costs.gemm import clock_share, tensor_pace
from simulator.errors import ProgramError
from simulator.hardware.compute_coefficients import AttentionCoefficients
from simulator.hardware.gpu import Gpu
from simulator.program.prices import PriceClass
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["attention_calibrated", "attention_class", "attention_seconds", "attention_sigma"]

_PRODUCTS = {"forward": 2.0, "backward": 5.0}
_QUERY_TENSORS = {"forward": 2.0, "backward": 6.0}
_KEY_TENSORS = {"forward": 2.0, "backward": 4.0}
_WIDE = 128.0
Array = NDArray[np.float64]


def attention_seconds(
    batch: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    seq_q: ArrayLike,
    seq_k: ArrayLike,
    head_dim: ArrayLike,
    causal: ArrayLike,
    direction: str,
    kernel: str,
    dtype: str,
    gpu: Gpu,
    coefficients: AttentionCoefficients,
    window: ArrayLike = 0,
    chunked: bool = False,
    repeats: ArrayLike = np.inf,
) -> Array:
    """Return the time on the device of each kernel [s], without the host's launch; scalars and arrays broadcast.

    Args:
        batch: sequences.
        heads, kv_heads: query heads and key/value heads on this GPU.
        seq_q, seq_k: queries and keys of a sequence; under a causal mask the last query sees all keys.
        head_dim: of a head; the mean of both where queries and values differ.
        causal: whether masked tiles are skipped.
        direction: "forward" or "backward".
        kernel: a kernel of the coefficients, such as "flash2".
        dtype: number format of the operands.
        gpu: where it runs.
        coefficients: from `load_attention_coefficients`.
        window: under a causal mask, keys that a query sees at most, itself included; 0 = all before it.
        chunked: the window is a block of the sequence, not what lies behind the query.
        repeats: how many of it a benchmark runs on a GPU that was idle before; inf = the load goes on, as in training.

    Raises:
        ProgramError: a size below 1 or an unknown direction.
        UnknownNameError: no such kernel.
        SpecError: the GPU has no peak for the number format.

    >>> from simulator.hardware.compute_coefficients import load_attention_coefficients
    >>> from simulator.hardware.gpu import load_gpu
    >>> gpu = load_gpu("a100_80gb_sxm")
    >>> shape = (4, 16, 16, 4096, 4096, 128)
    >>> numbers = load_attention_coefficients(gpu)
    >>> seconds = attention_seconds(*shape, True, "forward", "flash2", "bf16", gpu, numbers)
    >>> bool(0.001 < seconds < 0.002)
    True
    """
    if direction not in _PRODUCTS:
        raise ProgramError(f"attention runs forward or backward, got {direction!r}")
    values = (np.asarray(v, np.float64) for v in (batch, heads, kv_heads, seq_q, seq_k, head_dim))
    sequences, q_heads, k_heads, queries, keys, width = np.broadcast_arrays(*values)
    sizes = {"heads": q_heads, "kv_heads": k_heads, "seq_q": queries, "seq_k": keys, "head_dim": width}
    for label, value in sizes.items():
        if value.size and value.min() < 1:
            raise ProgramError(f"attention's {label} is at least 1, got {value.min():g}")
    chosen = coefficients.kernel(kernel)
    numbers, dtype = getattr(chosen, direction), chosen.operands or dtype
    peak = gpu.peak(dtype)
    if direction == "backward" and not chosen.skips_windows_backward:
        window, chunked = 0, False

    # Scores that the mask leaves: all, or those of queries lined up with the last keys.
    span = np.where(np.asarray(window) > 0, np.asarray(window, np.float64), np.inf)
    narrow = np.asarray(causal, bool) & (span < keys)
    before = keys - np.minimum(queries, keys)
    masked = _reach(keys, span, chunked) - _reach(before, span, chunked)
    scores = np.where(np.asarray(causal, bool), masked, queries * keys)
    owned, loop = (queries, keys) if direction == "forward" else (keys, queries)
    tiles = sequences * q_heads * np.ceil(owned / numbers.tile)
    pace = tensor_pace(peak, BYTES_PER_ELEMENT[dtype], gpu, coefficients.issue_reference)
    overhead = numbers.overhead * pace
    # A sliding window cuts tiles at its far edge as the diagonal does at the near one: half a tile more is masked.
    edge = np.where(narrow & (not chunked), numbers.tile / 2.0, 0.0)
    steps = tiles * (scores / owned + overhead + edge) / gpu.streaming_multiprocessors
    longest = np.where(narrow, np.minimum(loop, span + 2.0 * edge), loop) + overhead
    steps = np.maximum(steps + numbers.tail * longest, longest)
    padded = _padded(width, chosen.head_dims)
    softmax = numbers.softmax_cost * pace * _narrow(peak, dtype, gpu)
    work = 2.0 * _PRODUCTS[direction] * numbers.tile * (padded + softmax)
    rate = peak * _rate(numbers.rate, chosen.instruction_share, pace) * np.where(padded > _WIDE, numbers.wide_rate, 1.0)
    compute = steps * work * gpu.streaming_multiprocessors / rate
    busy = 2.0 * _PRODUCTS[direction] * sequences * q_heads * scores * padded / (peak * compute)
    lasting = compute * np.asarray(repeats, np.float64)
    compute = compute / clock_share(np.maximum(busy, chosen.power_share), lasting, gpu, coefficients.clock)

    tensors = _QUERY_TENSORS[direction] * q_heads * queries + _KEY_TENSORS[direction] * k_heads * keys
    traffic = float(BYTES_PER_ELEMENT[dtype]) * sequences * tensors * width
    memory = traffic / (coefficients.bandwidth_fraction * gpu.memory_bandwidth)
    return np.asarray(np.maximum(compute, memory) + coefficients.start)


def _narrow(peak: float, dtype: str, gpu: Gpu) -> float:
    """How many times a format's products are faster than those of 16 bits, which the softmax beside them is not."""
    return peak / gpu.peak("bf16") if BYTES_PER_ELEMENT[dtype] < 2 else 1.0


def _rate(measured: float, instructions: float, pace: Array) -> Array:
    """The share of the peak that is left where tensor cores take in operands at `pace` of the measured GPUs': the kernel's
    instructions stay as slow beside the peak as they are, what they wait for counts for less."""
    idle = instructions / measured - 1.0
    return np.asarray(np.where(pace < 1.0, instructions / (1.0 + idle * pace), measured) if idle > 0.0 else measured)


def _padded(width: Array, known: tuple[int, ...]) -> Array:
    """Return the widths of heads as the kernel computes them; one beyond all it knows stays as it is.

    >>> _padded(np.array([64.0, 80.0, 300.0]), (32, 64, 96, 128)).tolist()
    [64.0, 96.0, 300.0]
    """
    sizes = np.array([*sorted(known), np.inf])
    found = sizes[np.searchsorted(sizes, width)]
    return np.where(np.isfinite(found), found, width)


def _reach(end: Array, span: Array, chunked: bool) -> Array:
    """Scores of all queries before `end`: a triangle, cut off by a window; of chunks, one triangle each."""
    if chunked:
        whole = np.floor(end / span)
        rest = end - np.where(whole > 0, whole * np.where(np.isfinite(span), span, 0.0), 0.0)
        square = np.where(np.isfinite(span), span, 0.0) ** 2
        return np.asarray(whole * square / 2.0 + rest * rest / 2.0)
    inner = np.minimum(end, span)
    return np.asarray(inner * inner / 2.0 + np.where(end > inner, inner * (end - inner), 0.0))


@functools.lru_cache(maxsize=64)
def attention_class(kernel: str) -> PriceClass:
    """Return the price class of an attention kernel."""
    return PriceClass("attention", kernel)


def attention_calibrated(kernel: str, dtype: str, gpu: Gpu, coefficients: AttentionCoefficients) -> bool:
    """Return whether measurements of this architecture, kernel and number format stand behind the price."""
    measured = coefficients.architecture == gpu.architecture and bool(coefficients.measured)
    return measured and coefficients.kernel(kernel).measured and dtype in ("fp16", "bf16")


def attention_sigma(
    seq_q: ArrayLike, seq_k: ArrayLike, kernel: str, dtype: str, gpu: Gpu, coefficients: AttentionCoefficients
) -> Array:
    """Return the standard deviation of log(measured / priced) of each kernel: larger outside what was measured."""
    c = coefficients
    queries, keys = np.asarray(seq_q), np.asarray(seq_k)
    inside = (np.minimum(queries, keys) >= c.fitted_shortest) & (np.maximum(queries, keys) <= c.fitted_longest)
    return np.where(inside & attention_calibrated(kernel, dtype, gpu, c), c.sigma, c.sigma_outside)
