"""Noise: what differs from step to step and from GPU to GPU, as a job or a cluster's file describes it.

    [jitter]
    gpus = 0.03                     # spread of GPUs: sigma of the logarithm of the time of their kernels, all step long
    compute = 0.01                  # of each action, drawn anew
    collectives = [1.0, 1.0, 1.4]   # factors that were observed, each as likely as the others
    pause_every = "60 s"            # a host stops, as for garbage collection: mean time between two pauses of a GPU
    pause = "300 ms"

There is no noise unless it is described: how much there is depends on the site.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, model_validator

from simulator.specs import Spec
from simulator.units import Seconds

__all__ = ["CAUSES", "Jitter", "quantile"]

CAUSES = ("gpus", "compute", "collectives", "messages", "lengths", "pauses")
"""Kinds of noise, each turned off on its own to see what it adds."""

_MOST_SIGMA, _MOST_FACTOR, _MOST_FACTORS = 3.0, 1000.0, 10_000


def _spread(value: object) -> float | tuple[float, ...]:
    """A number or a list of numbers in range."""

    def number(one: Any) -> float:
        return float(one) if isinstance(one, int | float) and not isinstance(one, bool) else math.nan

    if isinstance(value, list | tuple):
        factors = tuple(number(one) for one in value)
        if not 0 < len(factors) <= _MOST_FACTORS or not all(0 < one <= _MOST_FACTOR for one in factors):
            raise ValueError(
                f"expected a list of 1 to {_MOST_FACTORS} factors above 0 and up to {_MOST_FACTOR:g}, such as [1.0, 1.0, 1.4]"
            )
        return factors
    sigma = number(value)
    if not 0 <= sigma <= _MOST_SIGMA:
        raise ValueError(
            f"expected a sigma from 0 to {_MOST_SIGMA:g} such as 0.02, or a list of factors such as [1.0, 1.0, 1.4]"
        )
    return sigma


Spread = Annotated[float | tuple[float, ...], BeforeValidator(_spread)]
"""A number: sigma of a lognormal distribution.  A list: factors that were observed, each as likely as the others."""


class Jitter(Spec):
    """What varies.

    Args:
        gpus: time of a GPU's kernels, over the GPUs of a kind; the same for the whole step.
        compute: kernels of each action of a microbatch on a chunk, and of the update.
        collectives: each collective; those inside an action together.
        messages: each message between pipeline ranks.
        lengths: tokens of a microbatch, the mean being that of the workload: products grow with them, attention with their
            square; all pipeline ranks see the same microbatch.
        pause_every: mean time between two pauses of a GPU's process [s].
        pause: length of a pause, in which the GPU stands [s].
        source: where the numbers are from.
    """

    gpus: Spread = 0.0
    compute: Spread = 0.0
    collectives: Spread = 0.0
    messages: Spread = 0.0
    lengths: Spread = 0.0
    pause_every: Seconds | None = None
    pause: Seconds | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Jitter:
        if (self.pause_every is None) != (self.pause is None):
            raise ValueError(
                "pauses need both pause_every (mean time between two) and pause (how long): give both or neither"
            )
        if self.pause_every is not None and self.pause_every <= 0:
            raise ValueError("pause_every must be above zero")
        return self

    @property
    def causes(self) -> tuple[str, ...]:
        """The kinds of noise that there are, in the order of `CAUSES`."""
        out = [name for name in CAUSES[:-1] if _varies(getattr(self, name))]
        return (*out, "pauses") if self.pause else tuple(out)


_LEAST = np.float32(2.0**-24)
"""Distance from 0 and 1 that a random number keeps: 5.3 standard deviations."""


def _varies(spread: float | tuple[float, ...]) -> bool:
    return spread > 0 if isinstance(spread, float) else any(factor != 1.0 for factor in spread)


def quantile(
    spread: float | tuple[float, ...], probability: NDArray[np.float32], mean_one: bool = False
) -> NDArray[np.float32]:
    """Return the factor below which this part of the distribution lies.

    Args:
        spread: sigma of the logarithm (median 1), or factors.
        probability: 0 to 1.
        mean_one: scale the distribution so that its mean is 1.

    >>> quantile((1.0, 2.0, 6.0), np.array([0.0, 0.5, 0.99], np.float32)).tolist()
    [1.0, 2.0, 6.0]
    >>> quantile(0.1, np.array([0.5], np.float32)).tolist()
    [1.0]
    """
    if isinstance(spread, tuple):
        factors = np.sort(np.array(spread, np.float32))
        factors = factors / factors.mean() if mean_one else factors
        place = np.minimum((probability * len(factors)).astype(np.int64), len(factors) - 1)
        return factors[place]
    from scipy.special import ndtri

    shift = spread * spread / 2.0 if mean_one else 0.0
    out: NDArray[np.float32] = ndtri(np.clip(probability, _LEAST, 1.0 - _LEAST))
    out *= np.float32(spread)
    out -= np.float32(shift)
    return np.exp(out, out=out)
