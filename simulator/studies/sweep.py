"""A sweep: every point of a study simulated, on any workers, each result written down as it comes and never computed twice.

study --points not in the journal, in blocks--> workers --rows--> journal --in the order of the points--> a table
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simulator.errors import SimulatorError
from simulator.remembered import remember_at_most, undisturbed
from simulator.report.frames import Records, Tabular
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, set_options
from simulator.simulation import simulate_job
from simulator.specs import files_as_they_are
from simulator.studies.crew import Crew
from simulator.studies.journal import Journal
from simulator.studies.study_file import Study
from simulator.units import show

__all__ = ["Sweep", "run_sweep"]

_SECONDS = 2.0
"""Of work that is handed out together, about: neighbours share what they have in common, and a kill costs no more."""
_FIRST = 4
"""Points in a block while nobody knows yet how long one takes."""
_KEPT_BYTES = 64 * 2**20
"""What a worker keeps at most of any one kind of thing for points to come."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep(Tabular):
    """The results of a study.

    Args:
        study: what was asked.
        journal: where the results stand.
        places: of each point's row in the journal, by number; below 0 where there is none.
        best: the quickest point that fits, with its settings.
        counts: points by status: "ok", "refused" (with the rule) or "failed" (a fault, or a worker that was lost).
        first: of each of the last two, the point of the lowest number, and why.
        found: how many of them were there before; `seconds`: that the others took.
        stopped: whether Ctrl-C stopped it before all points were there.
    """

    study: Study
    journal: Journal
    places: np.ndarray[Any, Any]
    best: dict[str, Any] | None
    counts: dict[str, int]
    first: dict[str, tuple[int, str]]
    found: int
    seconds: float
    stopped: bool = False

    def tables(self) -> dict[str, Records]:
        """See `Tabular.tables`."""
        return {"points": partial(self._points)}

    def _points(self) -> Iterator[dict[str, object]]:
        numbers = np.flatnonzero(self.places >= 0)
        rows = self.journal.rows(self.places[numbers])
        return (_row(self.study, int(number)) | row for number, row in zip(numbers, rows, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim sweep`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "sweep",
            "study": self.study.name,
            "vary": {field: list(values) for field, values in self.study.vary},
            "points": self.study.size,
            "done": sum(self.counts.values()),
            **{status: self.counts.get(status, 0) for status in ("ok", "refused", "failed")},
            "resumed": self.found,
            "seconds": self.seconds,
            "journal": str(self.journal.path),
            "best": self.best,
        }

    def sections(self) -> list[Section]:
        """Return what was done, to read."""
        counts = ", ".join(f"{count:,} {status}" for status, count in sorted(self.counts.items())) or "none yet"
        done = sum(self.counts.values())
        lines = [f"{done:,} of {self.study.size:,} points: {counts}; {self.found:,} of them were there before"]
        best = self.best
        if best is not None:
            settings = set_options(self.study.settings_to_run(best["point"]))
            lines.append(f"the quickest that fits: {show(best['step_time_s'], 's')}: {settings}")
        for status, (number, reason) in sorted(self.first.items()):
            lines.append(f"{status}, the first: {set_options(self.study.settings(number))}: {reason}")
        lines += ["stopped; --resume goes on"] if self.stopped else []
        return [Section(title=f"{self.study.name}: {show(self.seconds, 's')}", lines=tuple(lines))]


def run_sweep(study: Study, journal: Journal, crew: Crew, tell: Callable[[str], None] = lambda line: None) -> Sweep:
    """Return the results of a study, those in the journal taken over; stopped with Ctrl-C, what is there.

    Args:
        study: what is asked.
        journal: open; points whose settings, data and version are the same are not computed again.
        crew: where points are simulated; the answer does not depend on it.
        tell: called with a line about once a second.
    """
    started = time.monotonic()
    kept = _Kept(study, journal)
    found = kept.done
    told, stopped = started, False
    missing = np.flatnonzero(kept.places < 0)
    blocks = _blocks(missing, crew.size, lambda: (kept.done - found) / (time.monotonic() - started))
    results: Iterator[list[tuple[int, dict[str, Any]]]] = crew.run(
        _simulated, study, blocks, lambda number, why: [(number, _lost(why))]
    )
    try:
        for rows in results:
            kept.keep(rows)
            if time.monotonic() - told >= 1.0:
                told = time.monotonic()
                left = (told - started) * (study.size - kept.done) / (kept.done - found)
                tell(f"{kept.done:,} of {study.size:,} points, {show(left, 's')} left")
    except KeyboardInterrupt:
        stopped = True
    return Sweep(
        study=study,
        journal=journal,
        places=kept.places,
        best=kept.best,
        counts=dict(kept.counts),
        first=kept.first,
        found=found,
        seconds=time.monotonic() - started,
        stopped=stopped,
    )


class _Kept:
    """What is known of the results in the journal: where they stand, 8 bytes per point, and which is the best."""

    def __init__(self, study: Study, journal: Journal) -> None:
        self._study, self._journal, self._origin = study, journal, study.origin()
        self.places = np.full(study.size, -1, np.int64)
        self.counts: Counter[str] = Counter()
        self.first: dict[str, tuple[int, str]] = {}
        self.best: dict[str, Any] | None = None
        number_of: Callable[[str], int | None] | None = None
        for place, key, row in journal.entries():
            number_of = number_of or study.numbers(self._origin)
            number = number_of(key)
            if number is not None and self.places[number] < 0:
                self._add(number, row, place)

    @property
    def done(self) -> int:
        """Points that have a result."""
        return self.counts.total()

    def keep(self, rows: list[tuple[int, dict[str, Any]]]) -> None:
        """Write some results down."""
        places = self._journal.append([(self._study.key(number, self._origin), row) for number, row in rows])
        for (number, row), place in zip(rows, places, strict=True):
            self._add(number, row, place)

    def _add(self, number: int, row: dict[str, Any], place: int) -> None:
        self.places[number] = place
        self.counts[row["status"]] += 1
        if row["status"] != "ok":
            why = number, str(row["reason"])
            self.first[row["status"]] = min(why, self.first.get(row["status"], why))
        best = self.best
        if row.get("fits") and (best is None or (row["step_time_s"], number) < (best["step_time_s"], best["point"])):
            self.best = _row(self._study, number) | row


def _blocks(numbers: np.ndarray[Any, Any], side_by_side: int, pace: Callable[[], float]) -> Iterator[list[int]]:
    """Cut the points into blocks of neighbours, each some seconds of work, smaller ones at the end, so that nobody waits long.

    Args:
        pace: points per second up to now.
    """
    start = 0
    while start < len(numbers):
        each = pace()
        size = max(1, int(_SECONDS * each / side_by_side)) if each else _FIRST
        size = max(1, min(size, (len(numbers) - start) // (4 * side_by_side)))
        yield numbers[start : start + size].tolist()
        start += size


def _simulated(study: Study, numbers: list[int]) -> list[tuple[int, dict[str, object]]]:
    """Return (number, row) of each point; one that cannot be is a row with its reason."""
    remember_at_most(_KEPT_BYTES)
    with undisturbed(), files_as_they_are():
        return [(number, _result(study, number)) for number in numbers]


def _result(study: Study, number: int) -> dict[str, object]:
    try:
        prediction = simulate_job(study.job(number))
    except SimulatorError as refusal:
        return {"status": "refused", "reason": str(refusal)}
    except Exception as error:  # a fault of one point must not end the others
        return {"status": "failed", "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    record = next(iter(prediction.records()))
    return {"status": "ok", "reason": None} | {key: _plain(value) for key, value in record.items()}


def _lost(why: str) -> dict[str, object]:
    return {"status": "failed", "reason": f"its worker was lost every time it was tried ({why})"}


def _plain(value: Any) -> object:
    return value.item() if hasattr(value, "item") else value


def _row(study: Study, number: int) -> dict[str, Any]:
    """What says which point it is."""
    values = {
        field: value if isinstance(value, int | float | str | bool) else str(value)
        for field, value in study.values(number).items()
    }
    return {"point": number, **values}
