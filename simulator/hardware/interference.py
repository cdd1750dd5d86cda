"""How much overlapping activities slow each other on one GPU."""

from __future__ import annotations

import functools
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.errors import SpecError
from simulator.specs import Count, NamedSpec, Names, load_named, names, working_folder

__all__ = ["Interference", "interference_of", "load_interference"]

Factor = Annotated[float, Field(ge=1, le=100)]


class Interference(NamedSpec):
    """Slowdown of an activity of the first kind beside one of the second (>= 1); pairs not named do not slow each other.

    `measured` names the devices of a fitted file, `points` and the residuals (|fitted / measured - 1| at two quantiles)
    say on how many measurements it rests and how far it is from them.
    """

    slowdown: dict[str, dict[str, Factor]]
    measured: Names = ()
    points: Count | None = None
    residual_p50: Annotated[float, Field(ge=0)] | None = None
    residual_p95: Annotated[float, Field(ge=0)] | None = None

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


def load_interference(name: str = "interference") -> Interference:
    """Return the interference file with this name.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    return _load(name, working_folder())


def interference_of(architecture: str) -> str:
    """Return the name of the interference file of an architecture, or of the one that serves all without their own.

    >>> interference_of("ampere"), interference_of("cdna3")
    ('interference', 'interference_cdna3')
    """
    own = f"interference_{architecture}"
    return own if own in names("calibrations") else "interference"


@functools.lru_cache(maxsize=32)
def _load(name: str, directory: str) -> Interference:
    """Load it; `directory` is where it was looked for, as the working directory's own files come first."""
    return load_named("calibrations", name, Interference)
