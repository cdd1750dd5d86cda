"""How good a fit of kernels is, and when it is none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import CalibrationError
from simulator.hardware.compute_coefficients import Residuals

__all__ = ["rounded_residuals"]

Array = NDArray[Any]

_NO_FIT = 1000.0
"""Above this 95th percentile of |predicted / measured - 1| the times are not of these kernels."""


def rounded_residuals(errors: Array, left_out: Array | None, date: str) -> Residuals:
    """Return the percentiles of |predicted / measured - 1|.

    Args:
        errors: log(predicted / measured) of the measurements that were fitted.
        left_out: the same of those that a fit never saw; None = there were too few.
        date: day of the fit.

    Raises:
        CalibrationError: measurements and kernels have nothing to do with each other.
    """
    far = np.abs(np.expm1(errors))
    p95 = round(float(np.quantile(far, 0.95)), 4)
    if not p95 <= _NO_FIT:
        raise CalibrationError(
            f"no fit comes near these measurements: one in twenty is missed by a factor of {p95:.0e} or more, measurement "
            f"{int(np.argmax(far)) + 1} of {len(far)} most. Way out: correct its size or its time"
        )
    found = Residuals(
        points=len(far),
        p50=round(float(np.quantile(far, 0.5)), 4),
        p95=p95,
        date=date,
    )
    if left_out is None:
        return found
    away = np.abs(np.expm1(left_out))
    return found.model_copy(
        update={
            "left_out_p50": round(float(np.quantile(away, 0.5)), 4),
            "left_out_p90": round(float(np.quantile(away, 0.9)), 4),
        }
    )
