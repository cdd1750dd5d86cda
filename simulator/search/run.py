"""A search under way: what has been looked at, what was simulated, the best so far; strategies decide what comes next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.report.table import percent
from simulator.search.candidate import Candidate, Looked, look, shown
from simulator.search.deciding import deciding_fields
from simulator.search.held import ACTIVATION_FIELDS, GATHERS, MICROBATCH, ZERO
from simulator.search.ledger import Ledger
from simulator.search.lighter import Lighter
from simulator.search.space import Space
from simulator.search.split import BALANCED, SPLIT
from simulator.units import show

__all__ = ["BATCH", "Run"]

BATCH = 8
"""Plans handed out together; the same whatever the number of processes, so that the answer is."""


_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it, without their whole part, are spread evenly however many there are."""


@dataclass
class Run:
    """What a strategy works on.

    Args:
        space: the plans.
        objective: one of `OBJECTIVES`.
        probability: with which a plan must fit; 0 = by the point estimate.
        top: how many of the best must be right.
        until: when to stop, on the clock of `time.monotonic()`; None = never.
        budget: seconds of processor time after which to stop, of all processes together; None = any.
        executor: where plans are simulated; None = here.
        whole: whether the strategy comes to an end when nothing is left, so that it can be said when.
        tell: called with a line when there is something new to say.
    """

    space: Space
    objective: str
    probability: float
    top: int = 10
    until: float | None = None
    budget: float | None = None
    executor: Executor | None = None
    whole: bool = True
    tell: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.space)
        self.refused, self.large, self.bounds = self.ledger.refused, self.ledger.large, self.ledger.bounds
        self.candidates: dict[int, Candidate] = {}
        self.complete = False
        self.used = 0.0
        self._told = self._started = time.monotonic()
        self._simulating = 0.0
        self._lighter = Lighter(self.space, self.objective)
        self._counts = {field: len(values) for field, values in self.space.ranges.items()}
        self._best: list[Candidate] = []

    @property
    def over(self) -> bool:
        """Whether time or budget is up."""
        late = self.until is not None and time.monotonic() >= self.until
        return late or (self.budget is not None and self.used >= self.budget)

    def _clock(self) -> float:
        """Processor time, where somebody asks for it: the question itself takes time."""
        return time.process_time() if self.budget is not None else 0.0

    def looks(self, numbers: Iterable[int], every: bool = False) -> Iterator[Looked]:
        """Yield the plans that may be and may fit, with their bounds; the others are written down, those that share what decides with them.

        `large` has the plans that cannot fit, with the least part of the GPU that they fill; `every`: these are yielded too.
        """
        for number in numbers:
            if not self.ledger.is_open(number):
                continue
            if self.over:
                return
            started = self._clock()
            point = self.space.at(number)
            cut = math.inf if self.cut is None else self.cut
            found = look(self.space, point, self.objective, None if every else self.probability, cut)
            if found.job is None:
                decide = deciding_fields(self.space, point, found.refusal)
                self.ledger.refuse(
                    number, found.refusal, {f: range(n) for f, n in self._counts.items() if f not in decide}
                )
            elif found.too_large:
                self.ledger.too_large(number, found.full, self._as_large(found))
            else:
                self.ledger.bound(number, found.bound)
            self.used += self._clock() - started
            self._progress()
            if found.job is not None and not found.too_large:
                yield found

    def promising(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the plans that may be better than the best, as far as the kernels of the lightest of each family say (`lighter.py`).

        Of the others nobody asks whether they may be or fit: their families are written down with that bound.
        """
        for number in numbers:
            cut = self.cut
            if cut is not None and self.objective != "memory" and self.ledger.is_open(number):
                started = self._clock()
                bound, others = self._lighter.bound(number, cut)
                if bound > cut:
                    self.ledger.bound(number, bound, others)
                self.used += self._clock() - started
                self._progress()
                if bound > cut:
                    continue
            yield number

    def _as_large(self, found: Looked) -> dict[str, Sequence[int]]:
        """Field -> numbers of values that leave no more room than those of a plan that has none."""
        if found.point.values.get(SPLIT, BALANCED) != BALANCED:  # other choices, other layers on a rank
            return {}
        out: dict[str, Sequence[int]] = {}
        if found.by_states:
            out |= {field: range(count) for field, count in self._counts.items() if field in ACTIVATION_FIELDS}
        elif found.by_tokens and MICROBATCH in self.space.ranges:
            own = found.point.values[MICROBATCH]
            out[MICROBATCH] = [place for place, size in enumerate(self.space.ranges[MICROBATCH]) if size >= own]
        if found.surely and ZERO in self.space.ranges and (own := found.point.values[ZERO]) < GATHERS:
            out[ZERO] = [place for place, stage in enumerate(self.space.ranges[ZERO]) if stage <= own]
        return out

    def looked(self, number: int) -> Looked:
        """Return a plan that was looked at, to be simulated: of all plans only their bounds are kept."""
        point = self.space.at(number)
        return Looked(point=point, job=self.space.job_of(point), bound=self.bounds[number], objective=self.objective)

    @property
    def numbers(self) -> Iterable[int]:
        """Every plan: in order, or, where time may be up before all were looked at, spread."""
        return self._in_order if self.until is None and self.budget is None else self.spread

    @property
    def _in_order(self) -> Iterator[int]:
        """Every plan, those that shard more of the states first: where they have no room, the others have none."""
        stages = list(self.space.ranges.get(ZERO, ()))
        stride = self.space.strides[ZERO] if stages else 1
        order = sorted(range(len(stages)), key=lambda place: -stages[place]) or [0]
        for before in range(0, self.space.size, stride * len(order)):
            for place in order:
                yield from range(before + place * stride, before + (place + 1) * stride)

    @property
    def spread(self) -> Iterator[int]:
        """Every plan, in an order that soon has some of everything."""
        size = self.space.size
        stride = round(size * _GOLDEN)
        while math.gcd(stride, size) > 1:
            stride += 1
        return (stride * turn % size for turn in range(size))

    def simulate(self, looked: Sequence[Looked]) -> list[Candidate]:
        """Simulate plans and write down what comes of them; return those that could be."""
        started, begun = self._clock(), time.monotonic()
        if self.executor is None:
            found = [_timed(one) for one in looked]
        else:
            found = list(self.executor.map(_timed, looked, chunksize=max(1, len(looked) // 8)))
        self.used += sum(seconds for _, seconds in found) if self.executor else self._clock() - started
        out = []
        for one, (result, _) in zip(looked, found, strict=True):
            if isinstance(result, str):
                self.ledger.refuse(one.point.number, result)
            else:
                self.candidates[one.point.number] = result
                out.append(result)
                if result.feasible(self.probability):
                    self._best.append(result)
        self._best.sort(key=self.rank)
        self._simulating += time.monotonic() - begun
        self._progress()
        return out

    def rank(self, candidate: Candidate) -> tuple[float, int]:
        """Order among plans: by the objective, equal ones by their number."""
        return candidate.value(self.objective), candidate.point.number

    @property
    def best(self) -> list[Candidate]:
        """Plans that fit, the best first."""
        return self._best

    @property
    def cut(self) -> float | None:
        """What a plan's objective must be below to be among the best that are asked for; None while too few are known."""
        return self._best[self.top - 1].value(self.objective) if len(self._best) >= self.top else None

    @property
    def open_bound(self) -> float | None:
        """The least bound of the plans that nobody disposed of; None if there are none, or some have not been looked at."""
        if len(self.ledger.open):
            return 0.0
        left = self.left
        return float(self.ledger.least(left).min()) if len(left) else None

    @property
    def left(self) -> NDArray[np.int64]:
        """The plans that may be and may fit, and were neither simulated nor disposed of by their bound."""
        known = np.fromiter(self.candidates, np.int64, len(self.candidates))
        found = np.setdiff1d(self.bounds.numbers, self.ledger.bounded.numbers, assume_unique=True)
        return np.asarray(np.setdiff1d(found, known, assume_unique=True), np.int64)

    def weighed(self, candidate: Candidate) -> float:
        """Return what is made least of a simulated plan, and more where it lacks memory."""
        value = candidate.value(self.objective)
        if candidate.feasible(self.probability):
            return value
        return value * (2.0 + _TOO_MUCH * max(0.0, candidate.peak_memory / candidate.capacity - 1.0))

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._told < _EVERY:
            return
        self._told = now
        size, open_, fits = self.space.size, len(self.ledger.open), len(self._best)
        refused = len(self.refused)
        large = len(self.large) + sum(number not in self.large for number in self.candidates) - fits
        waiting = None if open_ else self.ledger.waiting(self.candidates)
        done, of = (size - open_) / size, f"{size:,} plans looked at"
        if waiting is not None:
            last = self._promising(waiting) + len(self.candidates)
            done, of = len(self.candidates) / max(1, last), f"{last:,} promising plans simulated"
        said = [f"{'#' * round(_BAR * done):-<{_BAR}} {percent(done, 0)} of {of}"]
        if self._best:
            first = self._best[0]
            said.append(f"best {shown(first, self.objective)}")
            if waiting is not None and len(waiting):
                said.append(f"gap {percent(max(0.0, 1.0 - float(waiting.min()) / first.value(self.objective)))}")
        left = self._time_left(now, size, open_, waiting)
        said += [] if left is None else [f"{show(left, 's')} left" + (" of looking" if open_ and self.whole else "")]
        counts = {
            "refused": refused,
            "too large": large,
            "bounded or waiting": size - open_ - refused - large - fits,
            "fit": fits,
            "open": open_,
        }
        self.tell(", ".join(said) + "; " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))

    def _time_left(self, now: float, size: int, open_: int, waiting: NDArray[np.float64] | None) -> float | None:
        """Seconds until the end, about: as long for each plan as up to now, and no later than the deadline; None = nobody knows."""
        left = math.inf if self.until is None else self.until - now
        if self.whole and size > open_:
            if waiting is None:
                left = min(left, (now - self._started) * open_ / (size - open_))
            elif self.candidates:
                left = min(left, self._promising(waiting) * self._simulating / len(self.candidates))
        return max(0.0, left) if left < math.inf else None

    def _promising(self, waiting: NDArray[np.float64]) -> int:
        """How many plans that wait may be among the best, by their bounds."""
        return int((waiting < (math.inf if self.cut is None else self.cut)).sum())


_TOO_MUCH = 10.0
"""How much worse a plan counts that lacks as much memory as the GPU has."""
_EVERY = 1.0
"""Seconds between two lines that tell how far it is."""
_BAR = 20
"""Characters of a bar."""


def _timed(looked: Looked) -> tuple[Candidate | str, float]:
    started = time.process_time()
    return looked.simulated(), time.process_time() - started
