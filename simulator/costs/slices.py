"""Seconds of making and copying the tensors of a list, one by one, around a collective over one flat message.

A collective that takes a list of tensors, one per rank (all_gather and reduce_scatter of torch.distributed with NCCL), runs on a
flat buffer.  The caller makes every tensor of the list as a view of its own, and every one is copied from or to the buffer by a
kernel of its own:

    seconds = max(slices x host time per slice,  slices x kernel start + 2 x message / memory bandwidth)

With hundreds of ranks the host's loop takes longer than the data.
"""

from __future__ import annotations

from simulator.costs.memory_bound import memory_bound_seconds
from simulator.hardware.compute_coefficients import MemoryBoundCoefficients
from simulator.hardware.gpu import Gpu

__all__ = ["slice_seconds"]


def slice_seconds(
    slices: int, message: float, slice_time: float, gpu: Gpu, coefficients: MemoryBoundCoefficients
) -> tuple[float, bool]:
    """Return (time [s], whether the host takes it, not the device) of copying a message slice by slice.

    Args:
        slices: tensors of the list.
        message: bytes of all of them.
        slice_time: of the host, for each [s].
        gpu: where it runs.
        coefficients: from `load_memory_bound_coefficients`.

    >>> from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
    >>> from simulator.hardware.gpu import load_gpu
    >>> gpu = load_gpu("a100_80gb_sxm")
    >>> numbers = load_memory_bound_coefficients(gpu)
    >>> slice_seconds(1000, 2.0**20, 7e-6, gpu, numbers)
    (0.007, True)
    >>> slice_seconds(8, 2.0**30, 7e-6, gpu, numbers)[1]
    False
    """
    if not slices:
        return 0.0, False
    start = memory_bound_seconds([1.0], [0.0], gpu, coefficients)[0]
    device = float(memory_bound_seconds([message], [message], gpu, coefficients)[0] + (slices - 1) * start)
    host = slices * slice_time
    return (host, True) if host >= device else (device, False)
