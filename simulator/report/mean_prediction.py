"""The prediction of a run whose steps are of several kinds: dense and compressed ones, or local ones and those with an exchange."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import ACCOUNTS, PriceClass
from simulator.report.memory import MemoryReport
from simulator.report.prediction import Prediction

__all__ = ["MeanPrediction", "OneKind", "mean_prediction"]


class OneKind(NamedTuple):
    """A kind of step: its name, its share of all steps, and what such a step takes."""

    name: str
    share: float
    prediction: Prediction


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanPrediction(Prediction):
    """The mean over kinds of steps; program, prices and trace, and so pictures, are those of the first kind.

    Args:
        kinds: of steps.
        least: seconds of what all workers share, below which no mean step gets.
        more: what else the provenance says.
    """

    kinds: tuple[OneKind, ...]
    least: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def step_time(self) -> float:
        """Mean seconds of a step."""
        return max(self._own, self.least)

    @property
    def _own(self) -> float:
        """Mean seconds of a step, but for what all workers share."""
        return sum(kind.share * kind.prediction.step_time for kind in self.kinds)

    @functools.cached_property
    def sigma_classes(self) -> dict[PriceClass, float]:
        """As `Prediction.sigma_classes`; a kind weighs by its seconds."""
        found: dict[PriceClass, float] = defaultdict(float)
        for kind in self.kinds:
            part = kind.share * kind.prediction.step_time / self._own
            for which, sigma in kind.prediction.sigma_classes.items():
                found[which] += part * sigma
        return dict(found)

    @functools.cached_property
    def rank_breakdown(self) -> NDArray[np.float64]:
        """[ranks, accounts] mean seconds."""
        found: NDArray[np.float64] = np.sum(
            [kind.share * kind.prediction.rank_breakdown for kind in self.kinds], axis=0
        )
        found[:, ACCOUNTS.index("dp")] += self.step_time - self._own
        return found

    @functools.cached_property
    def memory(self) -> MemoryReport:
        """Peaks per pipeline rank, of the kind whose fullest rank is fullest; where kinds have other GPUs, that one comes first."""
        return max((kind.prediction for kind in self.kinds), key=lambda one: one.peak_memory / one.capacity).memory

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """What the figures rest on; the kinds of steps with their share and seconds."""
        kinds = [
            {"step": kind.name, "share": kind.share, "step_time_s": kind.prediction.step_time} for kind in self.kinds
        ]
        return {**super().provenance, "kinds_of_steps": kinds, **self.more}


def mean_prediction(
    kinds: tuple[OneKind, ...], least: float = 0.0, more: Mapping[str, Any] | None = None
) -> Prediction:
    """Return the mean of several kinds of steps; of one about which nothing more is said, the prediction itself."""
    if len(kinds) == 1 and not (least or more):
        return kinds[0].prediction
    first = kinds[0].prediction
    return MeanPrediction(
        kinds=kinds, least=least, more=more or {}, **{one.name: getattr(first, one.name) for one in fields(first)}
    )
