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
        """[ranks, accounts] mean seconds, of the ranks of the first kind's program."""
        found: NDArray[np.float64] = np.sum(
            [kind.share * _on_ranks(self, kind.prediction) for kind in self.kinds], axis=0
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


def _on_ranks(first: Prediction, other: Prediction) -> NDArray[np.float64]:
    """Return what ranks of a kind of step take, for those of another: where other replicas are folded to one, the mean of a pipeline rank.

    Replicas that differ are apart in steps in which nothing else keeps them in step.
    """
    weights, table = other.program.rank_weight, other.rank_breakdown
    if np.array_equal(first.program.rank_weight, weights):
        return table
    mine, theirs = _pipeline_ranks(first), _pipeline_ranks(other)
    alike = (mine[:, np.newaxis] == theirs) * weights  # (ranks of the first, ranks of the other)
    return np.asarray(alike @ table / alike.sum(axis=1, keepdims=True))


def _pipeline_ranks(p: Prediction) -> NDArray[np.int64]:
    """The pipeline rank of every rank of a program."""
    return np.array([rank.pipeline_rank for rank in p.ranks] if p.ranks else range(p.program.ranks), np.int64)


def mean_prediction(
    kinds: tuple[OneKind, ...], least: float = 0.0, more: Mapping[str, object] | None = None
) -> Prediction:
    """Return the mean of several kinds of steps; of one about which nothing more is said, the prediction itself."""
    if len(kinds) == 1 and not (least or more):
        return kinds[0].prediction
    first = kinds[0].prediction
    return MeanPrediction(
        kinds=kinds, least=least, more=more or {}, **{one.name: getattr(first, one.name) for one in fields(first)}
    )
