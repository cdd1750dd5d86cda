"""Which gradients a background thread finds ready together, cycle by cycle: Horovod's tensor fusion.

    gradients ready   a  b c   d e f     g|
    cycles             |     |     |     | .    the last one half a cycle behind the last gradient, as in the mean over steps
    reduced together   a  b+c   d+e+f  g        at most a fusion buffer at once

Source: horovod/horovod docs/tensor-fusion.rst; horovod/tensorflow/mpi_ops.cc of 2018 (cycle_time_ms = 5, tensor_fusion_threshold of
64 MiB).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from simulator.program.program import COLLECTIVE, COMPUTE, Program
from simulator.program.trace import Trace

__all__ = ["fused", "ready_gradients"]


def fused(gradients: Sequence[tuple[float, float]], cycle: float, most: float) -> tuple[float, ...]:
    """Return the bytes that are reduced together, in turn.

    Args:
        gradients: (when it is ready [s], bytes), in that order.
        cycle: of the background thread [s].
        most: bytes of a fusion buffer; what is larger goes alone.

    >>> fused([(0.001, 10.0), (0.002, 20.0), (0.009, 30.0), (0.010, 99.0), (0.011, 5.0)], cycle=0.005, most=100.0)
    (30.0, 30.0, 99.0, 5.0)
    """
    if not gradients:
        return ()
    last = gradients[-1][0] + cycle / 2
    out: list[float] = []
    tick = -1
    for ready, size in gradients:
        now = math.floor((last - ready) / cycle)
        if out and now == tick and out[-1] + size <= most:
            out[-1] += size
        else:
            out.append(size)
        tick = now
    return tuple(out)


def ready_gradients(program: Program, trace: Trace) -> Iterator[tuple[float, float]]:
    """Yield (when they are ready [s], bytes to add up) of the gradients that every part of the last backward makes.

    Args:
        program: in which reductions follow the parts of a backward that make them, each by itself.
        trace: of it.
    """
    messages = program.messages
    sizes: dict[int, float] = {}
    for row in np.flatnonzero(program.kind == COLLECTIVE).tolist():
        waited = program.after[program.after_offsets[row] : program.after_offsets[row + 1]]
        made = waited[(program.kind[waited] == COMPUTE) & (program.action[waited] == 1)]
        for source in made.tolist():
            sizes[source] = sizes.get(source, 0.0) + float(messages[row])
    for source in sorted(sizes, key=lambda row: float(trace.end[row])):
        yield float(trace.end[source]), sizes[source]
