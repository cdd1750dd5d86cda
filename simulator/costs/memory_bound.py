"""Seconds of kernels that only move data: elementwise, normalisation, softmax, optimizer.

    seconds = start + ramp + bytes / (achievable share x bandwidth)

The share is smaller for the small kernels of layers, most of all backward (a norm's sums over rows and columns at once), for kernels that
read or write rows in another order (tokens sorted by expert) and for a cross-entropy of separate tensor operations, whose
reductions along the vocabulary and whose indexing move more than they need, for the backward pass of a softmax whose
scores are in memory, and for norms and rotary embeddings in plain tensor operations, which load a number at a time where formats or
places of operands differ, and for rows that are added up by atomic additions, of which a memory takes so many a second, or by runs of
sorted indices.
The ramp is the time in which traffic comes up to speed and dies away: a kernel of 1 MB never reaches the memory's
speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import ProgramError
from simulator.hardware.compute_coefficients import MemoryBoundCoefficients
from simulator.hardware.gpu import Gpu
from simulator.program.prices import PriceClass

__all__ = ["MEMORY_BOUND_CLASS", "memory_bound_calibrated", "memory_bound_seconds", "memory_bound_sigma"]

MEMORY_BOUND_CLASS = PriceClass("memory_bound")


def memory_bound_seconds(
    read: ArrayLike,
    written: ArrayLike,
    gpu: Gpu,
    coefficients: MemoryBoundCoefficients,
    access: Sequence[str] | None = None,
) -> NDArray[np.float64]:
    """Return the time on the device of each kernel [s], without the host's launch; 0 for a kernel that moves nothing.

    Args:
        read, written: bytes moved from and to memory.
        gpu: where it runs.
        coefficients: from `load_memory_bound_coefficients`.
        access: of each kernel, "" (a stream), "layer", "layer backward", "norm", "norm backward", "norm sums", "flash layout", "gather",
            "exchange", "loss", "scores", "scores backward", "cast", "turned", "stack", "plain", "strided", "atomic", "sorted" or
            "transposed" (copies that only some GPUs need); None = all are streams.

    Raises:
        ProgramError: a negative number of bytes.

    >>> from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
    >>> from simulator.hardware.gpu import load_gpu
    >>> gpu = load_gpu("h100_80gb_sxm")
    >>> seconds = memory_bound_seconds([2.0**30], [2.0**30], gpu, load_memory_bound_coefficients(gpu))
    >>> bool(0.8 < 2.0**31 / seconds[0] / gpu.memory_bandwidth < 0.95)
    True
    """
    moved = np.asarray(read, np.float64) + np.asarray(written, np.float64)
    if moved.size and moved.min() < 0:
        raise ProgramError(f"a kernel moves at least 0 bytes, got {moved.min():g}")
    fixed = coefficients.start + coefficients.ramp
    share = coefficients.bandwidth_fraction if access is None else np.array([coefficients.fraction(a) for a in access])
    seconds = moved / (share * gpu.memory_bandwidth) + fixed
    needed = moved > 0
    left_out = {
        a for a, out in (("transposed", not gpu.transposes_narrow), ("norm sums", coefficients.sums_in_layer)) if out
    }
    if access is not None and left_out:
        needed &= np.array([a not in left_out for a in access], bool)
    return np.where(needed, seconds, 0.0)


def memory_bound_calibrated(gpu: Gpu, coefficients: MemoryBoundCoefficients) -> bool:
    """Return whether measurements of this architecture stand behind the price."""
    return coefficients.architecture == gpu.architecture and bool(coefficients.measured)


def memory_bound_sigma(gpu: Gpu, coefficients: MemoryBoundCoefficients) -> float:
    """Return the standard deviation of log(measured / priced)."""
    return coefficients.sigma if memory_bound_calibrated(gpu, coefficients) else coefficients.sigma_outside
