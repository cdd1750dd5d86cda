"""What a search answers: the best plans, what became of all others, what each choice costs, and the trade-offs."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.aliases import short
from simulator.report.frames import Records, Tabular
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, amount, percent, set_options
from simulator.search.candidate import OBJECTIVE_WORDS, Candidate, shown
from simulator.search.choices import Choice
from simulator.search.defaults import repeated
from simulator.search.job_text import found_text
from simulator.search.ledger import Ledger, Noted
from simulator.search.space import Space, setting_value, with_batch, with_replicas
from simulator.search.split import BALANCED
from simulator.units import show

__all__ = ["Answer", "pareto_front"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer(Tabular):
    """The answer of a search.

    Args:
        space: what was searched.
        strategy, proves: which strategy, and what it proves when it ends by itself.
        objective: what was made least.
        probability: with which plans must fit.
        ledger: what became of the plans; those too large were not simulated, but for the nearest where none fits.
        candidates: the plans that were simulated, by number.
        best: those that fit, the best first.
        choices: what every value of every field costs.
        proven: whether no plan of the space is better.
        gap: how much better another plan may be at most, as a part of the best; None = not known.
        stopped: whether Ctrl-C stopped it.
        seconds: that the search took.
        top: how many of the best were asked for.
        like: settings of a plan that ties should be near to; {} = the simplest.
    """

    space: Space
    strategy: str
    proves: str
    objective: str
    probability: float
    ledger: Ledger
    candidates: dict[int, Candidate]
    best: tuple[Candidate, ...]
    choices: tuple[Choice, ...]
    proven: bool
    gap: float | None
    seconds: float
    top: int
    like: dict[str, Any]
    stopped: bool = False

    @property
    def refused(self) -> Noted[str]:
        """Why plans cannot be."""
        return self.ledger.refused

    @property
    def large(self) -> Noted[float]:
        """Plans without room, and the least part of the GPU that they fill."""
        return self.ledger.large

    @property
    def bounded(self) -> Noted[float]:
        """Plans that their bound disposed of."""
        return self.ledger.bounded

    @property
    def disposed(self) -> dict[str, int]:
        """Plans by what became of them; with `open`, those that nobody came to, they add up to the space."""
        fits = len(self.best)
        found = {
            "refused": len(self.refused),
            "memory": len(self.large) + sum(number not in self.large for number in self.candidates) - fits,
            "bounded": len(self.bounded),
            "simulated": fits,
        }
        left = self.space.size - sum(found.values())
        if self.proven:  # what is left has a bound no better than the best
            return found | {"bounded": found["bounded"] + left}
        return found | ({"open": left} if left else {})

    @property
    def counts(self) -> str:
        """What became of the plans, to read."""
        return ", ".join(f"{count:,} {_WORDS[cause]}" for cause, count in self.disposed.items())

    @property
    def ties(self) -> tuple[Candidate, ...]:
        """Plans of the best that are asked for which nobody could tell apart: within the band of the best, less what all share."""
        if not self.best:
            return ()
        first = self.best[0]
        most = first.value(self.objective) * (first.alike / first.step_time if self.objective != "memory" else 1.0)
        return tuple(one for one in self.best[: self.top] if one.value(self.objective) <= most)

    @property
    def chosen(self) -> Candidate | None:
        """Of the ties the simplest (fewest ways to split) that no other beats, or the one with the fewest changes from a given plan; then
        the best."""
        if self.like:
            return self._simplest(self.ties)
        ties = self.ties
        worth = [(one.value(self.objective), one.step_time, one.peak_memory, one.gpus) for one in ties]
        beaten = [any(theirs != ours and _no_worse(theirs, ours) for theirs in worth) for ours in worth]
        return self._simplest([one for one, worse in zip(ties, beaten, strict=True) if not worse])

    def nearly_best(self, part: float) -> Candidate | None:
        """As `chosen`, of the plans that are worse than the best by no more than this part."""
        most = (1.0 + part) * self.best[0].value(self.objective) if self.best else 0.0
        return self._simplest([one for one in self.best if one.value(self.objective) <= most])

    def settings(self, one: Candidate) -> list[str]:
        """Return what a plan changes in the job that was searched, as `--set` arguments: fixed choices, its own, the batch."""
        held = {field: value for field, value in self.space.fixed.items() if value is not None and value != BALANCED}
        said = [*(f"{field}={setting_value(value)}" for field, value in held.items()), *one.settings]
        job = self.space.job_of(one.point)
        return with_batch(job, with_replicas(job, said))  # a batch that nobody gave would be counted anew for the plan

    @property
    def _usual_refusal(self) -> str:
        """Why most plans are refused, other than that they are there twice; "" = none is."""
        refused = self.ledger.refused
        told = (n for n in refused if not (self.space.offered and repeated(self.space.at(n).values)))
        reasons = Counter(refused[n] for n in told)
        return reasons.most_common(1)[0][0] if reasons else ""

    @property
    def lack(self) -> str:
        """What to say where `best` is empty: plans that nobody came to may fit."""
        left = self.disposed.get("open", 0)
        return f"no plan was found that fits, and {left:,} were not looked at" if left else "no plan fits"

    @property
    def nearest(self) -> Candidate | None:
        """Of the plans simulated, the one whose peak is the least part of the GPU."""
        return min(self.candidates.values(), key=lambda c: c.peak_memory / c.capacity, default=None)

    def _simplest(self, some: Sequence[Candidate]) -> Candidate | None:
        return min(
            some,
            key=lambda one: (self._changes(one) if self.like else _parts(one), one.value(self.objective)),
            default=None,
        )

    def _changes(self, one: Candidate) -> int:
        return sum(self.like.get(field, value) != value for field, value in one.point.values.items())

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """Simulated plans that fit, of which none is quicker, smaller, on fewer GPUs and cheaper at once; by time."""
        return pareto_front(self.best)

    def tables(self) -> dict[str, Records]:
        """`best`: the best plans; `plans`: all that were simulated; `pareto`: of these, what none beats; `choices`: what each costs."""
        chosen = self.chosen
        marks = {one.point.number: {"chosen": one is chosen, "tie": True} for one in self.ties}
        plain = {"chosen": False, "tie": False}
        return {
            "best": lambda: [one.record() | marks.get(one.point.number, plain) for one in self.best[: self.top]],
            "plans": lambda: [one.record() for one in self.candidates.values()],
            "pareto": lambda: [one.record() for one in self.pareto],
            "choices": lambda: [choice.record() for choice in self.choices],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim search`."""
        from simulator import __version__

        chosen = self.chosen
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "search",
            "job": self.space.job.name,
            "objective": self.objective,
            "fit_probability": self.probability,
            "strategy": self.strategy,
            "space": {
                "plans": self.space.size,
                "ranges": {field: list(values) for field, values in self.space.ranges.items()},
                "left_out": {field: list(values) for field, values in self.space.left_out.items()},
                "untried": {field: list(values) for field, values in self.space.untried.items()},
            },
            "disposed": self.disposed,
            "proven": self.proven,
            "gap": self.gap,
            "seconds": self.seconds,
            "best": [one.to_dict() for one in self.best[: self.top]],
            "ties": [one.point.number for one in self.ties],
            "chosen": chosen.to_dict() if chosen else None,
            "job_file": found_text(self.space.job_of(chosen.point), chosen.settings) if chosen else None,
            "pareto": [one.to_dict() for one in self.pareto],
            "choices": [choice.to_dict() for choice in self.choices],
            "provenance": {
                "version": __version__,
                "proves": self.proves if self.proven else "nothing: another plan may be better",
                "assumptions": list(self.space.job.assumptions),
            },
        }

    def sections(self, run: str = "dtsim run JOB") -> list[Section]:
        """Return the answer to read; `run` predicts the job as it was searched."""
        return [self._head(), *self._bests(run), *self._front(), *self._lost()]

    def _head(self) -> Section:
        if self.proven:
            proof = f"proven: {self.proves if self.best else 'no plan of the space fits'}"
        elif self.gap is None:
            proof = f"not proven: another plan may {'be better by any amount' if self.best else 'fit'}"
        else:
            proof = f"not proven: another plan may be better by up to {percent(self.gap)}"
        need = (
            "by the point estimate" if self.probability == 0 else f"with a probability of {percent(self.probability)}"
        )
        plans = f"{self.space.size:,} plan{'' if self.space.size == 1 else 's'}"
        return Section(
            title=f"{self.space.job.name}: {plans} in {show(self.seconds, 's')} ({self.strategy})",
            lines=(
                *self._work(),
                f"least {OBJECTIVE_WORDS[self.objective]} of those that fit {need}",
                self.counts,
                *self._most_often(),
                proof,
                *(
                    f"{field}: {', '.join('-' if v is None else setting_value(v) for v in values)}"
                    for field, values in self.space.ranges.items()
                ),
                *self._left_out(),
            ),
        )

    def _most_often(self) -> list[str]:
        """Why plans of ranges that somebody gave are refused; a default space is offered, and refuses many by its nature."""
        told = self.space.offered or not (self.best or self.nearest)  # below, where no plan was simulated
        usual = "" if told else self._usual_refusal
        return [f"refused most often: {usual}"] if usual else []

    def _work(self) -> list[str]:
        """What all plans have in common of the work and the machine."""
        cluster, work = self.space.job.cluster, self.space.job.workload
        varied = self.space.ranges.keys()
        machine = (
            [] if varied & {"cluster.gpus", "cluster.name"} else [f"{cluster.world_size:,} GPUs of {cluster.name}"]
        )
        batch = varied & {"workload.global_batch_size", "workload.sequence_length"}
        words = [*machine, *([] if batch else [work.batch_words])]
        return [", ".join(words)] if words else []

    @property
    def _apart(self) -> bool:
        """Whether what is made least is in no other column of the best plans."""
        return self.objective == "energy" or (self.objective == "cost" and self.best[0].price is None)

    def _left_out(self) -> list[str]:
        """What the space would have if the framework ran it, or if it were not too large then."""
        framework = self.space.job.plan.framework
        reasons = {
            f"left out, since {framework} does not run it (--any-framework)": self.space.left_out,
            "not tried, since the space would be too large (--range)": self.space.untried,
        }
        return [f"{why}: {_named(ranges)}" for why, ranges in reasons.items() if ranges]

    def _bests(self, run: str) -> list[Section]:
        if not self.best:
            near = self.nearest
            if near is None:
                common = self._usual_refusal
                all_are = (
                    "Some plans are refused and the rest not looked at"
                    if "open" in self.disposed
                    else "Every plan is refused"
                )
                why = f"{all_are}; most often: {common}" if common else "No plan was looked at."
                return [Section(title="no plan", lines=(why,))]
            return [Section(title=self.lack, lines=(f"nearest: {_plan(near)}: {near.room}",))]
        names, chosen, ties = list(self.space.ranges), self.chosen, self.ties
        priced = any(one.price is not None for one in self.best[: self.top])
        rows = tuple(
            (
                *_cells(one, names),
                show(one.step_time, "s"),
                f"{show(one.low, 's')} to {show(one.high, 's')}",
                show(one.peak_memory, "B"),
                percent(one.fit_probability),
                *((("-" if one.price is None else f"{amount(one.price)} $"),) if priced else ()),
                *((shown(one, self.objective),) if self._apart else ()),
                "chosen" if one is chosen else "tie" if one in ties else "",
            )
            for one in self.best[: self.top]
        )
        heads = (*(short(name) for name in names), "step", "80 % band", "fullest rank", "fits")
        first = chosen or self.best[0]
        heads = (*heads, *(("price",) if priced else ()), *((self.objective,) if self._apart else ()), "")
        trust = (
            f"runs of this kind ({first.kind}): median error {percent(first.median_error)}, {first.runs} runs of {first.sources} sources"
            if first.runs
            else f"NOTHING of this kind ({first.kind}) was ever measured: trust the order less than the band says"
        )
        told = "the smallest change from the plan given" if self.like else "the simplest that no tie beats"
        below = (
            f"within the band of the best, so not to be told apart: {len(self.ties)} of these; chosen: {told}",
            *([trust] if first.runs else []),
            *first.notes,
            f"what binds it: {_binds(first)}",
            f"run it: {run} {set_options(self.settings(first))}",
        )
        return [
            Section(
                title="the best",
                lines=() if first.runs else (trust,),
                table=Table(headings=heads, rows=rows),
                below=below,
            )
        ]

    def _front(self) -> list[Section]:
        """What more memory and GPUs are worth; nothing where one plan is best in all."""
        front = self.pareto
        if len(front) < 2:
            return []
        shown = (
            [front[place * (len(front) - 1) // (_FRONT - 1)] for place in range(_FRONT)]
            if len(front) > _FRONT
            else front
        )
        names = [name for name in self.space.ranges if len({str(one.point.values[name]) for one in shown}) > 1]
        gpus = len({one.gpus for one in front}) > 1 and "cluster.gpus" not in names
        priced = all(one.price is not None for one in front)
        rows = tuple(
            (
                *_cells(one, names),
                *((f"{one.gpus:,}",) if gpus else ()),
                show(one.step_time, "s"),
                show(one.peak_memory, "B"),
                *((f"{amount(one.price or 0.0)} $",) if priced else ()),
            )
            for one in shown
        )
        heads = (*(short(name) for name in names), *(("gpus",) if gpus else ()), "step", "fullest rank")
        heads = (*heads, *(("price",) if priced else ()))
        what = f"{len(front)} of the {len(self.best)} plans simulated that fit: no other of them is quicker and smaller"
        what += f"; {len(shown)} of them, spread evenly" if len(shown) < len(front) else ""
        more = "" if self.strategy == "grid" else "; --strategy grid simulates all"
        return [Section(title="time against memory", lines=(what + more,), table=Table(headings=heads, rows=rows))]

    def _lost(self) -> list[Section]:
        if not self.best:
            return []
        rows = tuple(
            (
                short(c.field),
                "-" if c.value is None else setting_value(c.value),
                f"{c.plans:,}",
                f"{c.refused:,}",
                f"{c.memory:,}",
                c.words,
            )
            for c in self.choices
        )
        heads = ("choice", "", "plans", "refused", "too large", "costs")
        return [Section(title="what each choice costs", table=Table(headings=heads, rows=rows, left=(0, 5)))]


def _named(ranges: Mapping[str, Sequence[object]]) -> str:
    """The first values of some fields."""
    return "; ".join(
        f"{field} {', '.join(setting_value(v) for v in values[:_SHOWN] if v is not None)}{', ...' if len(values) > _SHOWN else ''}"
        for field, values in ranges.items()
    )


def _cells(one: Candidate, names: Sequence[str]) -> list[str]:
    """A plan's values of some fields, to read."""
    values = (one.point.values[name] for name in names)
    return ["-" if value is None else setting_value(value) for value in values]


def _binds(one: Candidate) -> str:
    """What a plan's step and its memory consist of: the largest parts first."""
    parts = sorted(((seconds / one.step_time, name) for name, seconds in one.breakdown.items()), reverse=True)
    said = ", ".join(f"{name} {percent(part, 0)}" for part, name in parts[:_PARTS] if part >= 0.005)
    return f"{said} of the step; {percent(one.peak_memory / one.capacity, 0)} of the GPU's memory"


_PARTS = 4
"""Of a step that are named."""
_FRONT = 8
"""Rows that show a front."""
_SHOWN = 6
"""Values of a field that are named when they are left out."""
_WORDS = {
    "refused": "refused",
    "memory": "too large",
    "bounded": "bounded",
    "simulated": "simulated and fit",
    "open": "not looked at",
}


def _plan(one: Candidate) -> str:
    return " ".join(one.settings)


def _parts(one: Candidate) -> float:
    """How many ways a plan is split, cut and sharded: the logarithm of its degrees, and one for every other choice that is not off."""
    total = 0.0
    for value in one.point.values.values():
        if isinstance(value, bool) or value is None or isinstance(value, str):
            total += value not in (False, None, "none", BALANCED)
        elif isinstance(value, int | float) and value > 1:
            total += math.log2(value)
        else:
            total += bool(value) and value != 1
    return total


def pareto_front(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that no other beats in time, memory, GPUs and price of a step at once; by time.

    Where a price is not known, prices do not count.
    """
    priced = all(one.price is not None for one in candidates)
    out: dict[tuple[float, ...], Candidate] = {}
    for one in sorted(candidates, key=lambda c: (*_costs(c, priced), c.point.number)):
        costs = _costs(one, priced)
        if not any(_no_worse(theirs, costs) for theirs in out):
            out[costs] = one
    return tuple(out.values())


def _costs(one: Candidate, priced: bool) -> tuple[float, ...]:
    """What a front weighs: seconds of a step, bytes of the fullest rank, GPUs, and price of a step."""
    return one.step_time, one.peak_memory, one.gpus, one.price or 0.0 if priced else 0.0


def _no_worse(theirs: tuple[float, ...], ours: tuple[float, ...]) -> bool:
    """Whether one plan is as good as another in everything, where less is better."""
    return all(map(operator.le, theirs, ours))
