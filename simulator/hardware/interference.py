"""How much overlapping activities slow each other on one GPU."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.errors import SpecError
from simulator.hardware.compute_coefficients import load_for
from simulator.hardware.gpu import Gpu
from simulator.specs import Count, NamedSpec, Names

__all__ = ["Interference", "load_interference"]

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


def load_interference(gpu: Gpu, name: str | None = None) -> Interference:
    """Return the slowdowns of a file, or else the GPU's own, its chip's, its architecture's or those that serve all without their own.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    return load_for(gpu, "interference", name, Interference, "interference")
