"""A sweep: every point of a study simulated, on any workers, each result written down as it comes and never computed twice.

study --points not in the journal, in blocks--> workers --rows--> journal --in the order of the points--> a table
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulator.errors import SimulatorError
from simulator.report.frames import Records, Tabular
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section
from simulator.simulation import simulate_job
from simulator.studies.crew import Crew
from simulator.studies.journal import Journal
from simulator.studies.study_file import Study
from simulator.units import show

__all__ = ["Sweep", "run_sweep"]

_LARGEST_BLOCK = 64
"""Points handed out together: some seconds of work, and they share what they have in common."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep(Tabular):
    """The results of a study.

    Args:
        study: what was asked.
        journal: where the results stand.
        keys: of the points, by number.
        counts: points by status: "ok", "refused" (with the rule) or "failed" (a fault, or a worker that was lost).
        found: how many of them were there before; `seconds`: that the others took.
        stopped: whether Ctrl-C stopped it before all points were there.
    """

    study: Study
    journal: Journal
    keys: dict[str, int]
    counts: dict[str, int]
    found: int
    seconds: float
    stopped: bool = False

    def tables(self) -> dict[str, Records]:
        """See `Tabular.tables`."""
        return {"points": partial(self._points)}

    def _points(self) -> list[dict[str, Any]]:
        rows = {self.keys[key]: row for key, row in self.journal.rows(self.keys)}
        return [_row(self.study, number) | rows[number] for number in sorted(rows)]

    @property
    def best(self) -> dict[str, Any] | None:
        """The quickest point that fits."""
        fits = (row for row in self._points() if row.get("fits"))
        return min(fits, key=lambda row: row["step_time_s"], default=None)

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
        counts = ", ".join(f"{count:,} {status}" for status, count in sorted(self.counts.items()))
        done = sum(self.counts.values())
        lines = [f"{done:,} of {self.study.size:,} points: {counts}; {self.found:,} of them were there before"]
        best = self.best
        if best is not None:
            settings = " ".join(f"--set {setting}" for setting in self.study.settings(best["point"]))
            lines.append(f"the quickest that fits: {show(best['step_time_s'], 's')}: {settings}")
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
    origin = study.origin()
    keys = {study.key(number, origin): number for number in range(study.size)}
    found = len(journal.keys & keys.keys())
    missing = [number for key, number in keys.items() if key not in journal.keys]
    name = {number: key for key, number in keys.items()}
    told, done, stopped = started, found, False
    crew_blocks = _blocks(missing, crew.size)
    results: Iterator[list[tuple[int, dict[str, Any]]]] = crew.run(
        _simulated, study, crew_blocks, lambda number, why: [(number, _lost(why))]
    )
    try:
        for rows in results:
            journal.append([(name[number], row) for number, row in rows])
            done += len(rows)
            if time.monotonic() - told >= 1.0:
                told = time.monotonic()
                tell(f"{done:,} of {study.size:,} points")
    except KeyboardInterrupt:
        stopped = True
    counts = Counter(row["status"] for _, row in journal.rows(keys))
    return Sweep(
        study=study,
        journal=journal,
        keys=keys,
        counts=dict(counts),
        found=found,
        seconds=time.monotonic() - started,
        stopped=stopped,
    )


def _blocks(numbers: Sequence[int], side_by_side: int) -> Iterator[list[int]]:
    """Cut the points into blocks of neighbours, at least some for every worker."""
    size = max(1, min(_LARGEST_BLOCK, len(numbers) // (4 * side_by_side)))
    return (list(numbers[start : start + size]) for start in range(0, len(numbers), size))


def _simulated(study: Study, numbers: list[int]) -> list[tuple[int, dict[str, Any]]]:
    """Return (number, row) of each point; one that cannot be is a row with its reason."""
    return [(number, _result(study, number)) for number in numbers]


def _result(study: Study, number: int) -> dict[str, Any]:
    try:
        prediction = simulate_job(study.job(number))
    except SimulatorError as refusal:
        return {"status": "refused", "reason": str(refusal)}
    except Exception as error:  # a fault of one point must not end the others
        return {"status": "failed", "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    record = next(iter(prediction.records()))
    return {"status": "ok", "reason": None} | {key: _plain(value) for key, value in record.items()}


def _lost(why: str) -> dict[str, Any]:
    return {"status": "failed", "reason": f"its worker was lost every time it was tried ({why})"}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _row(study: Study, number: int) -> dict[str, Any]:
    """What says which point it is."""
    values = {
        field: value if isinstance(value, int | float | str | bool) else str(value)
        for field, value in study.values(number).items()
    }
    return {"point": number, **values}
