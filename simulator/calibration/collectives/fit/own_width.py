"""How wide the band of a prediction must be for the very machine that a log was made on.

A fit leaves something over on its own log: NCCL's steps between protocols, chunks that do not divide, noise.  Its size
differs between latency, the change of protocols and bandwidth, so each size class of a log has a width of its own.  It
is the conformal one: of n errors the band holds 0.8 (n + 1) / n, which makes 80 % of errors not yet seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.hardware.coefficients import SIZE_CLASSES, Own, size_class
from simulator.report.prediction import QUANTILE

__all__ = ["COVERAGE", "own_of"]

COVERAGE = 0.8
"""What a band is to hold [1]."""
_FEWEST = 5
"""Points of which a size class has a width of its own; else it is that of the whole log."""
_LEAST = 0.001
Array = NDArray[np.float64]


def own_of(log: NcclLog, errors: Array) -> Own:
    """Return the widths of a log by size class from [points] log(predicted / measured)."""
    names = np.array([size_class(size) for size in log.message.tolist()])
    found = {name: errors[names == name] for name in SIZE_CLASSES}
    small, middle, large = (_sigma(few if len(few) >= _FEWEST else errors) for few in found.values())
    return Own(kind=log.kind, ranks=log.place.ranks, nodes=log.place.nodes, small=small, middle=middle, large=large)


def _sigma(errors: Array) -> float:
    """Return the sigma whose 80 % band holds that share of errors not yet seen."""
    level = min(COVERAGE * (len(errors) + 1) / len(errors), 1.0)
    return round(max(float(np.quantile(np.abs(errors), level)) / QUANTILE, _LEAST), 4)
