"""The kernels of a step against the roofs of their GPU: how close each comes to what its arithmetic intensity allows.

    roof(kernel) = min(peak FLOP/s of its number format, intensity x memory bandwidth),  intensity = FLOP / byte moved

Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.  FLOP and bytes are those the program counts for a
kernel (each operand once, from and to device memory); seconds are its price, without launches and without waiting.  Attention
counts all scores, masked ones too, as model FLOP do everywhere: a causal kernel, which skips half, can stand above its roof.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from simulator.costs.tables import machine_of, price_table
from simulator.hardware.cluster import Cluster
from simulator.program.program import COMPUTE, Link
from simulator.report.prediction import Prediction

__all__ = ["roofline_data"]

_MOST_KERNELS = 60


def roofline_data(prediction: Prediction, cluster: Cluster) -> dict[str, Any]:
    """Return the kernels that take most of a rank's time, and the roofs over them; without kernels where GPUs differ.

    Args:
        prediction: the step.
        cluster: on which it was priced.

    Kernels of one name, direction, number format and shape are one, with the seconds of all that run, the mean over ranks.
    """
    if cluster.parts:
        return {"why_not": "parts of this cluster differ, so a kernel has no one price", "kernels": []}
    program, machine = prediction.program, machine_of(cluster)
    weight = program.rank_weight[program.rank] / program.rank_weight.sum()
    steps = int(program.step.max(initial=0)) + 1
    runs = np.bincount(program.item, weights=weight, minlength=len(program.items)) / steps
    found: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for number, item in enumerate(program.items):
        if isinstance(item, Link) or not runs[number]:
            continue
        for table, count in item.pieces:
            seconds = price_table(table, machine, program.mesh_of(int(program.item_rank[number]))).rows
            for i in np.flatnonzero((table.kind == COMPUTE) & (seconds > 0)).tolist():
                shape = tuple(table.shape[i].tolist())
                key = (table.label[i], table.phase[i], table.work[i], table.dtype[i], shape)
                times = float(runs[number]) * count
                kernel = found[key]
                for slot, value in enumerate((1.0, seconds[i], table.flops[i], table.read[i] + table.written[i])):
                    kernel[slot] += times * float(value)
    gpu = machine.gpu
    kernels = [_kernel(key, *numbers) for key, numbers in found.items()]
    kernels.sort(key=lambda kernel: -kernel["seconds"])
    dtypes = sorted({k["dtype"] for k in kernels if k["flops"] > 0})
    return {
        "gpu": gpu.name,
        "bandwidth": gpu.memory_bandwidth,
        "peaks": {dtype: gpu.peak(dtype) for dtype in dtypes},
        "kernels": kernels[:_MOST_KERNELS],
        "left_out": [len(kernels) - _MOST_KERNELS, sum(k["seconds"] for k in kernels[_MOST_KERNELS:])]
        if len(kernels) > _MOST_KERNELS
        else None,
    }


def _kernel(key: tuple[Any, ...], runs: float, seconds: float, flops: float, moved: float) -> dict[str, Any]:
    label, phase, work, dtype, shape = key
    return {
        "name": label,
        "phase": phase,
        "work": work,
        "dtype": dtype,
        "shape": list(shape) if any(shape) else [],
        "runs": runs,
        "seconds": seconds,
        "flops": flops / runs,
        "bytes": moved / runs,
    }
