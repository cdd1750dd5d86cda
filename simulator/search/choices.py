"""What every value of every field of a search costs beside the best plan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import shortened
from simulator.report.table import percent
from simulator.search.candidate import Candidate
from simulator.search.run import Run
from simulator.search.space import setting_value

__all__ = ["Choice", "choices_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one value of one field costs beside the best plan.

    Args:
        field, value: which.
        plans: of the space that have it; `refused` of them cannot be, `memory` do not fit.
        best: the best simulated plan that has it and fits; None = none was.
        over: its objective over that of the best plan, less 1; None = no plan of it fits.
        bounded: whether `over` is only a lower bound, since plans that may be better than `best` were not simulated.
        most: what it is at most, by `best`; None = none was.
        open: plans that nobody looked at.
        reason: where every plan is refused, the reason met most often.
    """

    field: str
    value: Any
    plans: int
    refused: int
    memory: int
    best: Candidate | None
    over: float | None
    bounded: bool
    most: float | None
    open: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "field": self.field,
            "value": self.value,
            "plans": self.plans,
            "refused": self.refused,
            "memory": self.memory,
            "over": self.over,
            "bound": self.bounded,
            "at_most": self.most,
            "open": self.open,
            "reason": self.reason or None,
            "settings": list(self.best.settings) if self.best else None,
            "step_time_s": self.best.step_time if self.best else None,
        }

    def record(self) -> dict[str, Any]:
        """Return it as the row of a table."""
        return {
            "field": self.field,
            "value": setting_value(self.value),
            "plans": self.plans,
            "refused": self.refused,
            "too_large": self.memory,
            "over_best": self.over,
            "is_bound": self.bounded,
            "most_over_best": self.most,
            "reason": self.reason,
        }

    @property
    def words(self) -> str:
        """What it costs, to read."""
        if self.over is None:
            found = "none fits" if self.memory else "not known"
            return f"refused: {self.reason}" if self.refused == self.plans else found + (" so far" if self.open else "")
        if self.bounded:
            least = f"+{percent(self.over)}"
            return f"at least {least}" if self.most is None else f"{least} to +{percent(self.most)}"
        return ("best" if self.over == 0 else f"+{percent(self.over)}") + (" so far" if self.open else "")


def choices_of(run: Run, value_of: Callable[[Candidate], float]) -> tuple[Choice, ...]:
    """Return what every value of every ranged field costs beside the best plan."""
    if not run.best:
        return ()
    space, ledger = run.space, run.ledger
    least = value_of(run.best[0])
    without_room = [number for number in run.candidates if number not in run.large]
    fits = {one.point.number for one in run.best}
    counts = ledger.counts(run.candidates)
    out = []
    for field, values in space.ranges.items():
        tried = {space.place(number, field) for number in fits}
        for place, value in enumerate(values):
            mine = counts[field, place]
            first = None
            if place in tried:
                first = next(one for one in run.best if space.place(one.point.number, field) == place)
            most = None if first is None else value_of(first) / least - 1.0
            over, bounded = most, False
            nobody = space.size // len(values) - mine.known
            if mine.least is not None and least and not nobody:
                bound = max(0.0, mine.least / least - 1.0)
                bounded = most is None or bound < most
                over = bound if bounded else most
            large = sum(n not in fits and space.place(n, field) == place for n in without_room)
            out.append(
                Choice(
                    field=field,
                    value=value,
                    plans=space.size // len(values),
                    refused=mine.refused,
                    memory=mine.large + large,
                    best=first,
                    over=over,
                    bounded=bounded,
                    most=most,
                    open=nobody,
                    reason=_common(ledger.reasons(field, place)) if mine.refused == mine.known else "",
                )
            )
    return tuple(out)


def _common(reasons: Mapping[str, int]) -> str:
    """The rule met most often, numbers aside, in the words of one of those that broke it."""
    if not reasons:
        return ""
    rules: Counter[str] = Counter()
    for reason, count in reasons.items():
        rules[re.sub(r"[\d.]+", "#", reason)] += count
    rule = rules.most_common(1)[0][0]
    said = next(reason for reason in reasons if re.sub(r"[\d.]+", "#", reason) == rule)
    return shortened(said, 140)
