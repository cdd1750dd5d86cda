"""A search under way: what has been looked at, what was simulated, the best so far; strategies decide what comes next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from simulator.search.bounds import ACTIVATION_FIELDS
from simulator.search.candidate import Candidate, Looked, look
from simulator.search.space import Point, Space

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
        tell: called with a line when there is something new to say.
    """

    space: Space
    objective: str
    probability: float
    top: int = 10
    until: float | None = None
    budget: float | None = None
    executor: Executor | None = None
    tell: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.refused: dict[int, str] = {}
        self.candidates: dict[int, Candidate] = {}
        self.bounds: dict[int, float] = {}
        self.large: dict[int, float] = {}
        self.bounded: set[int] = set()
        self.complete = False
        self.used = 0.0
        self._told = 0.0
        self._said: dict[str, str] = {}  # reasons: plans have few different ones
        self._too_large: dict[int, float] = {}  # families whose states do not fit: what they fill of the GPU
        self._best: list[Candidate] = []

    @property
    def over(self) -> bool:
        """Whether time or budget is up."""
        late = self.until is not None and time.monotonic() >= self.until
        return late or (self.budget is not None and self.used >= self.budget)

    def _clock(self) -> float:
        """Processor time, where somebody asks for it: the question itself takes time."""
        return time.process_time() if self.budget is not None else 0.0

    def looks(self, points: Iterable[Point], every: bool = False) -> Iterator[Looked]:
        """Yield the plans that may be and may fit, with their bounds; the others are written down.

        `large` has the plans that cannot fit, with the least part of the GPU that they fill; `every`: these are yielded too.
        """
        for point in points:
            if self.over:
                return
            if any(point.number in known for known in (self.refused, self.candidates, self.large)):
                continue
            family = self.space.family(point.number, ACTIVATION_FIELDS)
            full = self._too_large.get(family)
            if full is not None:
                self.large[point.number] = full
                self._progress()
                continue
            started = self._clock()
            cut = math.inf if self.cut is None else self.cut
            found = look(self.space, point, self.objective, None if every else self.probability, cut)
            self.used += self._clock() - started
            self._progress()
            if found.job is None:
                self.refused[point.number] = self._said.setdefault(found.refusal, found.refusal)
                continue
            if found.too_large:
                self.large[point.number] = found.full
                if found.by_states:
                    self._too_large[family] = found.full
                continue
            self.bounds[point.number] = found.bound
            yield found

    def looked(self, number: int) -> Looked:
        """Return a plan that was looked at, to be simulated: of all plans only their bounds are kept."""
        point = self.space.at(number)
        return Looked(point=point, job=self.space.job_of(point), bound=self.bounds[number], objective=self.objective)

    @property
    def points(self) -> Iterator[Point]:
        """Every plan: in order, or, where time may be up before all were looked at, spread."""
        return self.space.points() if self.until is None and self.budget is None else self.spread

    @property
    def spread(self) -> Iterator[Point]:
        """Every plan, in an order that soon has some of everything."""
        size = self.space.size
        stride = round(size * _GOLDEN)
        while math.gcd(stride, size) > 1:
            stride += 1
        return (self.space.at(stride * turn % size) for turn in range(size))

    def simulate(self, looked: Sequence[Looked]) -> list[Candidate]:
        """Simulate plans and write down what comes of them; return those that could be."""
        started = self._clock()
        if self.executor is None:
            found = [_timed(one) for one in looked]
        else:
            found = list(self.executor.map(_timed, looked, chunksize=max(1, len(looked) // 8)))
        self.used += sum(seconds for _, seconds in found) if self.executor else self._clock() - started
        out = []
        for one, (result, _) in zip(looked, found, strict=True):
            if isinstance(result, str):
                self.refused[one.point.number] = result
            else:
                self.candidates[one.point.number] = result
                out.append(result)
                if result.feasible(self.probability):
                    self._best.append(result)
        self._best.sort(key=self.rank)
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
        if len(self.refused) + len(self.large) + len(self.bounds) < self.space.size:
            return 0.0
        left = [
            b
            for n, b in self.bounds.items()
            if n not in self.candidates and n not in self.refused and n not in self.bounded
        ]
        return min(left, default=None)

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._told < 1.0:
            return
        self._told = now
        looked = len(self.refused) + len(self.large) + len(self.bounds)
        best = f", best {self._best[0].value(self.objective):.4g}" if self._best else ""
        self.tell(
            f"{looked:,} of {self.space.size:,} plans looked at, {len(self.refused):,} refused, "
            f"{len(self.large):,} too large, {len(self.candidates):,} simulated{best}"
        )


def _timed(looked: Looked) -> tuple[Candidate | str, float]:
    started = time.process_time()
    return looked.simulated(), time.process_time() - started
