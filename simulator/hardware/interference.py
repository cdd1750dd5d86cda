"""How much overlapping activities slow each other on one GPU."""

from __future__ import annotations

import functools
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.errors import SpecError
from simulator.specs import NamedSpec, load_named

__all__ = ["Interference", "load_interference"]

Factor = Annotated[float, Field(ge=1, le=100)]


class Interference(NamedSpec):
    """Slowdown of an activity of the first kind beside one of the second (>= 1); pairs not named do not slow each other."""

    slowdown: dict[str, dict[str, Factor]]

    def matrix(self, kinds: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the slowdowns as [kinds, kinds].

        Raises:
            SpecError: the file names a kind that does not exist.
        """
        out = np.ones((len(kinds), len(kinds)))
        for first, row in self.slowdown.items():
            for second, factor in row.items():
                if first not in kinds or second not in kinds:
                    raise SpecError(
                        f"calibration {self.name!r}, slowdown.{first}.{second}: no such activity. Known: {', '.join(kinds)}"
                    )
                out[kinds.index(first), kinds.index(second)] = factor
        return out


@functools.lru_cache(maxsize=8)
def load_interference(name: str = "interference") -> Interference:
    """Return the interference file with this name."""
    return load_named("calibrations", name, Interference)
