"""A prediction beside a measurement of the same step: inside the band or not, and which terms could explain the gap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simulator.errors import SpecError
from simulator.job import Job
from simulator.program.critical import critical_path
from simulator.program.prices import PriceClass
from simulator.report.prediction import QUANTILE, Prediction
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["Judgement", "Term", "class_seconds", "judge_step_time", "measured_time"]

_MOST_TERMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of the step that is less sure than others.

    Args:
        name: a price class, or the spread of whole runs.
        seconds: its part of the critical path [s].
        reach: how far the step moves in the direction of the gap when the term errs as much as one in ten does [s].
        explains: whether the reach covers the gap.
    """

    name: str
    seconds: float
    reach: float
    explains: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Predicted beside measured.

    Args:
        measured, predicted, low, high: [s].
        terms: what could explain the gap, the farthest reach first.
        accounts: (account, seconds, how many times as long it would have to be) for accounts that could hold the gap.
    """

    measured: float
    predicted: float
    low: float
    high: float
    terms: tuple[Term, ...]
    accounts: tuple[tuple[str, float, float], ...]

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the 80 % band."""
        return self.low <= self.measured <= self.high

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1.0

    @property
    def gap(self) -> float:
        """measured - predicted [s]; above zero: the run was slower than predicted."""
        return self.measured - self.predicted

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `measured` of `dtsim run --json`."""
        return {
            "step_time_s": self.measured,
            "predicted_s": self.predicted,
            "error": self.error,
            "gap_s": self.gap,
            "inside_band": self.inside,
            "could_explain": [
                {
                    "term": t.name,
                    "seconds_on_critical_path": t.seconds,
                    "reach_s": t.reach,
                    "explains_alone": t.explains,
                }
                for t in self.terms
            ],
            "accounts": [{"account": n, "seconds": s, "times_as_long": f} for n, s, f in self.accounts],
        }

    def section(self) -> Section:
        """Return the judgement to read."""
        side = "slower" if self.gap > 0 else "faster"
        verdict = "inside the 80 % band" if self.inside else "OUTSIDE the 80 % band"
        off = percent(self.error, signed=True)
        title = f"measured {show(self.measured, 's')}: predicted {show(self.predicted, 's')} is {off} off, {verdict}"
        if self.inside:
            return Section(title=title)
        rows = tuple(
            (
                t.name,
                show(t.seconds, "s") if t.seconds else "",
                show(t.reach, "s"),
                "yes" if t.explains else "only with others",
            )
            for t in self.terms
        )
        names = ", ".join(f"{n} ({show(s, 's')}, would be x {f:.2f})" for n, s, f in self.accounts[:5])
        return Section(
            title=title,
            lines=(f"the run was {show(abs(self.gap), 's')} {side} than predicted; what could explain it:",),
            table=Table(headings=("term", "in the step", "can move", "covers the gap"), rows=rows, left=(0, 3)),
            below=(f"accounts that could hold the gap alone: {names}",) if names else (),
        )


def measured_time(job: Job, step_time: float | None, tokens_per_second_per_gpu: float | None) -> float | None:
    """Return the measured step time [s]: as given, from a rate, else the job's own; None without any.

    Raises:
        SpecError: a step time and a rate together.
    """
    if step_time is not None and tokens_per_second_per_gpu is not None:
        raise SpecError("a measurement is a step time or a rate, but both were given. Leave one out")
    if tokens_per_second_per_gpu is not None:
        return job.workload.tokens / (tokens_per_second_per_gpu * job.cluster.world_size)
    return step_time if step_time is not None else job.measured_step_time or None


def class_seconds(prediction: Prediction) -> dict[PriceClass, float]:
    """Return seconds of a step's critical path by price class, the largest first; where steps run into each other, what ends in the
    window of one."""
    program, prices, trace, window = prediction.program, prediction.prices, prediction.trace, prediction.window
    path = window.ending(critical_path(program, prices, trace), trace)
    seconds = prices.class_share[program.item[path]].sum(axis=0) / window.steps
    pairs = sorted(zip(prices.classes, seconds.tolist(), strict=True), key=lambda pair: -pair[1])
    return {which: s for which, s in pairs if s > 0}


def judge_step_time(prediction: Prediction, measured: float) -> Judgement:
    """Return how a prediction stands against a measured step time [s].

    Raises:
        SpecError: the measured time is not above zero.
    """
    if not 0 < measured < math.inf:
        raise SpecError(f"a measured step time must be finite and above zero, but it is {measured} s")
    gap = measured - prediction.step_time
    seconds = class_seconds(prediction)
    sign = 1.0 if gap > 0 else -1.0
    terms = []
    for term, sigma in prediction.spreads(slower=gap > 0).items():
        reach = abs(prediction.step_time * math.expm1(sign * QUANTILE * sigma))
        in_step = seconds.get(term, 0.0)
        terms.append(Term(name=str(term), seconds=in_step, reach=reach, explains=reach >= abs(gap)))
    terms.sort(key=lambda term: (-term.reach, term.name))
    accounts = [(n, s, (s + gap) / s) for n, s in prediction.breakdown.items() if s > 0 and s + gap >= 0]
    accounts.sort(key=lambda part: abs(math.log(part[2])) if part[2] > 0 else math.inf)
    return Judgement(
        measured=measured,
        predicted=prediction.step_time,
        low=prediction.low,
        high=prediction.high,
        terms=tuple(terms[:_MOST_TERMS]),
        accounts=tuple(accounts),
    )
