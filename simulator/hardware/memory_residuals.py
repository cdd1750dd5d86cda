"""How far predicted peaks of memory were from measured ones, by what stands there: the band of a peak (design 5b O).

    sigma^2 = sum over parts of (share of the part in the peak)^2 x sigma_part^2   (+ unseen^2 for a code that nobody looked up)

Errors are common within a part (a layer's tensor that is missed is missed in every layer) and independent between parts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from simulator.specs import NamedSpec, Spec, load_named

__all__ = ["PARTS", "MemoryResiduals", "PartResidual", "load_memory_residuals", "part_shares"]

PARTS: dict[str, tuple[str, ...]] = {
    "states": ("weights", "gradients", "optimizer_states"),
    "activations": ("activations", "logits", "workspace"),
    "buffers": ("gathered", "communication", "fragmentation"),
    "context": ("context",),
}
"""Parts of a peak and the categories of memory in each: those that are wrong for the same reasons."""


class PartResidual(Spec):
    """Residuals of one part.

    Args:
        sigma: spread of log(measured / predicted) of a peak that were all of this part.
        runs, sources: peaks of how many runs, of how many sources, have at least a tenth of their memory in this part.
    """

    sigma: Annotated[float, Field(gt=0, le=3)]
    runs: Annotated[int, Field(ge=0)]
    sources: Annotated[int, Field(ge=0)]


class MemoryResiduals(NamedSpec):
    """The file calibrations/memory_residuals.toml, written by `simulator.calibration.runs.peak_memory`.

    Args:
        part: residuals of each part, of codes whose profiles measured runs stand behind.
        unseen: log spread that any other code adds.
    """

    part: dict[str, PartResidual]
    unseen: Annotated[float, Field(ge=0, le=3)] = 0.0

    def sigma(self, by_category: Mapping[str, float], unseen: bool = False) -> float:
        """Return the log spread of a peak made of these bytes; `unseen`: no measured run stands behind the code's profile."""
        shares = part_shares(by_category)
        known = math.sqrt(sum((share * self.part[name].sigma) ** 2 for name, share in shares.items()))
        return math.hypot(known, self.unseen) if unseen else known


@functools.lru_cache(maxsize=4)
def load_memory_residuals() -> MemoryResiduals:
    """Return the residuals shipped with the simulator."""
    return load_named("calibrations", "memory_residuals", MemoryResiduals)


def part_shares(by_category: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each part in a peak made of these bytes; zeros for an empty one.

    >>> part_shares({"weights": 3.0, "activations": 1.0})
    {'states': 0.75, 'activations': 0.25, 'buffers': 0.0, 'context': 0.0}
    """
    total = sum(by_category.values())
    return {
        part: sum(by_category.get(name, 0.0) for name in names) / total if total else 0.0
        for part, names in PARTS.items()
    }
