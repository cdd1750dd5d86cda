"""Equal GPUs are not equally fast: under one power limit each chip settles at a clock of its own, and a step waits for the slowest.

    speed of N GPUs ~ normal, sigma = gpu_spread
    time of products and attention = that of the middle GPU x (1 + sigma x E[largest of N])

Tensor, data and pipeline parallelism all join the ranks once a step or more, so the slowest of all sets the pace.  Kernels limited
by the memory's bandwidth do not feel the clock.
"""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from simulator.specs import NamedSpec, load_named

__all__ = ["GpuSpread", "load_gpu_spread", "longer_by"]

_MIDDLE = 0.5264
"""E[largest of n normal numbers] is close to the quantile at this probability's n-th root (1.42 for 8, 3.22 for 1,000)."""


class GpuSpread(NamedSpec):
    """The file calibrations/gpu_spread.toml.

    Args:
        sigma: standard deviation of the speed of GPUs of one kind, relative to their mean.
    """

    sigma: Annotated[float, Field(ge=0, le=0.5)]


@functools.lru_cache(maxsize=4)
def load_gpu_spread() -> GpuSpread:
    """Return the spread that a cluster has whose file names none."""
    return load_named("calibrations", "gpu_spread", GpuSpread)


@functools.lru_cache(maxsize=1024)
def longer_by(sigma: float, gpus: int) -> float:
    """Return by which part the slowest of `gpus` GPUs takes longer than the middle one.

    >>> longer_by(0.01, 1), round(longer_by(0.01, 8), 4), round(longer_by(0.01, 1000), 4)
    (0.0, 0.0142, 0.0322)
    """
    return sigma * NormalDist().inv_cdf(_MIDDLE ** (1.0 / gpus)) if gpus > 1 else 0.0
