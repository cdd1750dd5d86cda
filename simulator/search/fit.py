"""What fits: the fewest GPUs for a job, or the largest batch, sequence or model on the GPUs there are, over all plans of a space.

The largest: plans come in the order of what they hold at least.  Each is asked for one step more than the best so far, first its bound,
then `simulate()`; what can, grows by doubling, then by halves.  This is exact where a plan that has no room for so much has none for
more, which holds of every quantity in steps that the plan's degrees divide; amounts that they cannot deal out are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.errors import SimulatorError, SpecError
from simulator.job import Job
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, percent
from simulator.search.answer import Answer
from simulator.search.candidate import Candidate, look
from simulator.search.defaults import LONG, default_ranges, worlds
from simulator.search.growth import GROWTHS, Grown, Growth
from simulator.search.job_text import found_text
from simulator.search.search import search
from simulator.search.space import Point, Space, make_space
from simulator.search.split import SPLIT
from simulator.units import show

__all__ = ["Fit", "fewest_gpus", "largest"]

_MOST_AMOUNT = 10**8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """The answer of `dtsim fit`.

    Args:
        question: "fewest gpus" or "largest ...".
        words: what `answer` counts.
        answer: how many; None = no plan fits at all.
        found: the search of the best plan at this size.
        job: the job at this size, with that plan; None without an answer.
        evaluations: calls of `simulate()`; `looked` plans had their bounds found.
        refusal: without an answer, why.
    """

    question: str
    words: str
    answer: int | None
    found: Answer | None
    job: Job | None
    evaluations: int
    looked: int
    refusal: str = ""

    @property
    def plan(self) -> Candidate | None:
        """The plan taken."""
        return self.found.chosen if self.found else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "fit",
            "question": self.question,
            "unit": self.words,
            "answer": self.answer,
            "parameters": self.job.workload.model.parameters if self.job else None,
            "plan": self.plan.to_dict() if self.plan else None,
            "job_file": found_text(self.job, self.plan.settings) if self.job and self.plan else None,
            "evaluations": self.evaluations,
            "looked": self.looked,
            "reason": self.refusal or None,
        }

    def sections(self) -> list[Section]:
        """Return the answer to read."""
        cost = f"{self.looked:,} plans bounded, {self.evaluations:,} simulated"
        if self.answer is None or self.plan is None or self.job is None:
            return [Section(title=f"{self.question}: nothing fits", lines=(self.refusal, cost))]
        plan, model, work = self.plan, self.job.workload.model, self.job.workload
        settings = [one for one in self.found.settings(plan) if one.startswith("plan.")] if self.found else []
        lines = (
            f"{model.name}: {model.parameters:,} parameters, {model.depth} layers, {work.batch_words}",
            f"on {self.job.cluster.world_size:,} GPUs of {self.job.cluster.name}",
            f"quickest plan that fits: {' '.join(settings) or 'as the job has it'}",
            f"{show(plan.step_time, 's')} per step ({show(plan.low, 's')} to {show(plan.high, 's')}), {show(plan.peak_memory, 'B')} of "
            f"{show(plan.capacity, 'B')} on the fullest rank, fits with {percent(plan.fit_probability)}",
            cost,
        )
        return [Section(title=f"{self.question}: {self.answer:,} {self.words}", lines=lines)]


def fewest_gpus(
    job: Job,
    ranges: Mapping[str, tuple[Any, ...]],
    fixed: Mapping[str, tuple[object, ...]],
    probability: float = 0.9,
    tell: Callable[[str], None] = lambda line: None,
) -> Fit:
    """Return the smallest part of a cluster on which a plan fits, and the quickest plan there.

    Args:
        job: with the largest number of GPUs that may be.
        ranges, fixed: as `make_space` takes them; `cluster.gpus` in `ranges` says which numbers are tried.
        probability: with which a plan must fit.
        tell: called with a line of progress.

    Raises:
        SpecError: as `make_space`.
    """
    if "cluster.gpus" in fixed:
        raise SpecError("--fewest gpus finds cluster.gpus itself. Way out: leave out its --fix")
    rest = {field: values for field, values in ranges.items() if field != "cluster.gpus"}
    numbers = sorted(ranges.get("cluster.gpus", worlds(job, job.cluster.world_size)))
    evaluations = looked = 0
    last: Answer | None = None
    for gpus in numbers:
        space = make_space(job, rest, {**fixed, "cluster.gpus": (gpus,)})
        tell(f"GPUs: {gpus:,}; {space.size:,} plans ...")
        last = search(space, fit_probability=probability, top=1)
        evaluations, looked = evaluations + len(last.candidates), looked + space.size
        if last.chosen is not None:
            return Fit(
                question="fewest gpus",
                words="GPUs",
                answer=gpus,
                found=last,
                job=space.job_of(last.chosen.point),
                evaluations=evaluations,
                looked=looked,
            )
    most = f"{numbers[-1]:,} GPUs" if numbers else "no number of GPUs"
    return Fit(
        question="fewest gpus",
        words="GPUs",
        answer=None,
        found=None,
        job=None,
        evaluations=evaluations,
        looked=looked,
        refusal=f"no plan fits {most}: {_why(last)}. Way out: {_larger(job, numbers)}, or a --range of more choices",
    )


def largest(
    job: Job,
    what: str,
    ranges: Mapping[str, tuple[Any, ...]],
    fixed: Mapping[str, tuple[Any, ...]],
    probability: float = 0.9,
    tell: Callable[[str], None] = lambda line: None,
) -> Fit:
    """Return the most of a quantity with which a plan of the space fits, and the quickest plan there.

    Args:
        job: everything else.
        what: a name of `GROWTHS`.
        ranges, fixed, probability, tell: as for `fewest_gpus`.

    Raises:
        SpecError: as `make_space`; no such quantity; or a field is ranged that the quantity sets.
    """
    if what not in GROWTHS:
        raise SpecError(f"--largest: expected one of {', '.join(GROWTHS)}, got {what[:40]!r}")
    growth = GROWTHS[what]
    if job.workload.model.network and what != "batch":
        raise SpecError(
            f"--largest {what}: layers and sizes of model {job.workload.model.name!r} stand in its file one by one. Way out: --largest "
            "batch"
        )
    for field in growth.unranged:
        if field in ranges or field in fixed:
            raise SpecError(f"--largest {what} finds {field} itself. Way out: leave out its --range or --fix")
    usual = make_space(job, {}, fixed).job
    if "workload.sequence_length" in growth.unranged:
        usual = growth.grown(usual, LONG)
    chosen = dict(ranges) or {
        field: values
        for field, values in default_ranges(usual).items()
        if field not in (*growth.unranged, *fixed, "plan.microbatch_size", SPLIT)
    }
    space = make_space(job, chosen or {"plan.zero_stage": (job.plan.zero_stage,)}, fixed)
    tell(f"{growth.words}: {space.size:,} plans ...")
    climb = _Climb(space, growth, probability)
    best, last = climb.run(tell)
    question = f"largest {what}"
    if not best:
        refusal = f"no plan fits the least of it: {last}. Way out: a --range of more choices, or more GPUs"
        return Fit(
            question=question, words=growth.words, answer=None, found=None, job=None,
            evaluations=climb.evaluations, looked=climb.looked, refusal=refusal,
        )  # fmt: skip
    full = climb.at(best)
    found = search(full, fit_probability=probability, top=1)
    return Fit(
        question=question,
        words=growth.words,
        answer=best,
        found=found,
        job=full.job_of(found.chosen.point) if found.chosen else None,
        evaluations=climb.evaluations + len(found.candidates),
        looked=climb.looked + space.size,
    )


class _Climb:
    """The way up: `best` is the most that any plan so far has room for."""

    def __init__(self, space: Space, growth: Growth, probability: float) -> None:
        self.space, self.growth, self.probability = space, growth, probability
        self.evaluations = self.looked = 0
        self.refusal = "no plan can be"

    def at(self, amount: int) -> Grown:
        """The space, grown."""
        return Grown(
            job=self.space.job,
            ranges=self.space.ranges,
            moves=self.space.moves,
            growth=self.growth,
            amount=amount,
        )

    def run(self, tell: Callable[[str], None]) -> tuple[int, str]:
        """Return the most, 0 for none, and why the first in order, the nearest to fit, has no room for more."""
        best, nearest = 0, ""
        for full, point, step in self._ordered():
            del full
            low = self._able(point, (best // step + 1) * step, step)
            if not self.has_room(point, low):
                nearest = nearest or self.refusal
                continue
            high = self._able(point, 2 * low, step)
            while high <= _MOST_AMOUNT and self.has_room(point, high):
                low, high = high, self._able(point, 2 * high, step)
            while high - low > step:
                middle = (low + high) // 2 // step * step
                some = self._able(point, middle, step)
                low, high = (some, high) if some < high and self.has_room(point, some) else (low, middle)
            best = low
            tell(f"{best:,} {self.growth.words} with {' '.join(point.settings)}")
        return best, nearest or self.refusal

    def _able(self, point: Point, amount: int, step: int) -> int:
        """The first amount from this one on that a plan's degrees can deal out."""
        job = self.space.job_of(point)
        while not self.growth.able(job, amount):
            amount += step
        return amount

    def _ordered(self) -> list[tuple[float, Point, int]]:
        """Plans that can be at their least amount, by what they hold then per step of it."""
        out = []
        for point in self.space.points():
            try:
                step = self.growth.step(self.space.job_of(point))
            except SimulatorError as refusal:
                self.refusal = str(refusal)
                continue
            least = self._able(point, step, step)
            found = look(self.at(least), point, "memory")
            self.looked += 1
            if found.job is None:
                self.refusal = found.refusal
            else:
                out.append((found.full / least, point, step))
        return sorted(out, key=lambda one: (one[0], one[1].number))

    def has_room(self, point: Point, amount: int) -> bool:
        """Whether a plan fits with so much."""
        found = look(self.at(amount), point, "memory", self.probability)
        self.looked += 1
        if found.job is None or found.too_large:
            self.refusal = found.refusal or f"it holds at least {percent(found.full)} of a GPU's memory"
            return False
        self.evaluations += 1
        result = found.simulated()
        if isinstance(result, str):
            self.refusal = result
            return False
        if not result.feasible(self.probability):
            self.refusal = f"it holds {result.room}"
            return False
        return True


def _larger(job: Job, numbers: Sequence[int]) -> str:
    """How to ask for more GPUs than these: on a cluster that ends there, of another one."""
    try:
        job.cluster.resized(2 * max(numbers, default=job.cluster.world_size))
    except SpecError:
        return "a larger --cluster"
    return "--set cluster.gpus=N with a larger N"


def _why(answer: Answer | None) -> str:
    """Why no plan of a search fits."""
    near = answer.nearest if answer else None
    if near is None:
        return "every plan is refused"
    return f"the nearest needs {near.room}{' only (--fit-probability)' if near.fits else ''}"
