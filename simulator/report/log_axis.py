"""Labels of a logarithmic axis: some wherever it is, in human units, and never so many that they touch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axis import Axis

__all__ = ["label_log_axis"]

_WIDE = 3.0
"""Decades beyond which powers of the base alone are labels enough."""
_NARROW = 0.8
"""Decades below which 1, 2 and 5 times powers of ten are too few."""


def label_log_axis(axis: Axis, words: Callable[[float], str], base: int = 10) -> None:
    """Label an axis (matplotlib's xaxis or yaxis), of logarithmic scale already.

    Args:
        axis: what is labelled, when it is drawn: limits may change until then.
        words: text of a value.
        base: of the powers that are labelled; of an axis of fewer than three decades also 2 and 5 times powers of ten, of one of
            less than a decade round numbers at equal distances.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    class Locator(LogLocator):
        """Powers of the base; on a short axis more."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            low, high = sorted((max(vmin, 1e-300), max(vmax, 1e-300)))
            if base == 10 and math.log10(high / low) < _NARROW:
                return MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
            short = base == 10 and math.log10(high / low) < _WIDE
            self.set_params(subs=(1.0, 2.0, 5.0) if short else (1.0,))
            return super().tick_values(vmin, vmax)

    axis.set_major_locator(Locator(base=base, numticks=12 if base == 10 else 7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_locator(NullLocator())
