"""PipeDream-2BW: 1F1B that never flushes, with gradients of m microbatches per change of weights and two versions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.pipedream import PipeDream
from simulator.schedules.shape import Shape

__all__ = ["PipeDream2BW"]


class PipeDream2BW(PipeDream):
    """The order of PipeDream; weights change once per step, and a rank keeps the last version beside the new one."""

    name = "pipedream_2bw"
    aliases = ("2bw",)
    source = "Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, ICML 2021, arXiv:2006.09503"
    updates_each_microbatch = False
    deals = False

    def weight_versions(self, shape: Shape) -> NDArray[np.int64]:
        """Return 2 for every rank.

        >>> PipeDream2BW().weight_versions(Shape(4, 8)).tolist()
        [2, 2, 2, 2]
        """
        return np.full(shape.ranks, 2, np.int64)
