"""The best interval between checkpoints: found by simulation, beside the formulas of Young and Daly.

Runs with the same failures are simulated at intervals around Daly's; a parabola through log(interval) of their mean loss has its least
where the interval is best.  Runs are many enough that some thousands of failures stand behind every point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.goodput.checkpoints import CheckpointCost, daly_interval, exact_interval, young_interval
from simulator.goodput.run_model import RunModel
from simulator.goodput.sampled import MOST_CHANGES, changes_of, sample_runs

__all__ = ["BestInterval", "best_interval"]

_POINTS, _WIDTH, _ROUNDS = 9, 2.5, 2
_FAILURES = 4000.0
_LEAST_RUNS, _MOST_RUNS = 16, 2000
_CHANGES = 2e6
"""Of all runs of an interval, about: some seconds for the whole search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestInterval:
    """Intervals of training between two checkpoints [s].

    Args:
        simulated: at which runs were shortest.
        young, daly: of the formulas, for the mean time between failures that stop the job and the time for which training stands.
        exact: least of Daly's full model (constant rates, training stands while it saves).
        mtbf: mean time between such failures [s].
    """

    simulated: float
    young: float
    daly: float
    exact: float
    mtbf: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "simulated_s": self.simulated,
            "young_s": self.young,
            "daly_s": self.daly,
            "exact_for_constant_rates_s": self.exact,
            "mtbf_s": self.mtbf,
        }


def best_interval(model: RunModel, cost: CheckpointCost, step: float, seed: int = 0) -> BestInterval | None:
    """Return the best interval of a run, at least one step; None where nothing stops the job, so that none is best.

    Raises:
        SpecError: no interval lets the run end.
    """
    rate = model.causes.rate
    if rate == 0.0:
        return None
    mtbf, delay = 1.0 / rate, max(cost.stall, model.stall, _tiny(step))
    formulas = {
        "young": young_interval(delay, mtbf),
        "daly": daly_interval(delay, mtbf),
        "exact": exact_interval(delay, mtbf),
        "mtbf": mtbf,
    }
    span = min(model.work, model.horizon)
    middle = min(max(formulas["exact"], step), span)
    runs = int(min(max(_FAILURES / max(span * rate, 1e-9), _LEAST_RUNS), _MOST_RUNS))
    runs = max(1, min(runs, int(_CHANGES / max(changes_of(replace(model, interval=middle)), 1.0))))
    for _ in range(_ROUNDS):
        middle = _least(model, middle, step, span, runs, seed)
    return BestInterval(simulated=middle, **formulas)


def _tiny(step: float) -> float:
    """A delay for formulas that have no answer without one: a five-hundredth part of a step."""
    return step / 500.0


def _shortest(model: RunModel, span: float) -> float:
    """The shortest interval that a run's changes allow [s]."""
    rest = MOST_CHANGES - changes_of(replace(model, interval=0.0))
    return 2.0 * span / rest if rest > 0.0 else 0.0


def _least(model: RunModel, middle: float, step: float, span: float, runs: int, seed: int) -> float:
    """The least of a parabola through the losses around an interval [s]."""
    low, high = max(middle / _WIDTH, step, _shortest(model, span)), min(middle * _WIDTH, span)
    if high <= low:
        return min(max(middle, step), max(span, step))
    places = np.linspace(math.log(low), math.log(high), _POINTS)
    persist = model.far_every * model.interval if math.isfinite(model.interval) else math.inf
    losses = []
    for place in places:
        interval = math.exp(place)
        every = max(1, round(persist / interval)) if math.isfinite(persist) else model.far_every
        found, _ = sample_runs(replace(model, interval=interval, far_every=every), runs, seed)
        losses.append(float(np.mean(1.0 - found.goodput)))
    square, slope, _ = np.polyfit(places - places.mean(), losses, 2)
    if square <= 0.0:
        return math.exp(places[int(np.argmin(losses))])
    best = places.mean() - slope / (2.0 * square)
    return math.exp(float(np.clip(best, places[0], places[-1])))
