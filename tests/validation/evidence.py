"""What the widths of bands are made of: looked-up runs and peaks as predicted today, the blind sets as predicted at first.

    python -m tests.validation.evidence [PEAKS.csv ...]

writes `hardware_specs/calibrations/run_residuals.toml`, and of the tables of measured peaks given `memory_residuals.toml`, and
prints the table of `docs/accuracy.md`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulator.accuracy.memory import memory_outcomes
from simulator.accuracy.predictions import prediction_outcomes
from simulator.accuracy.runs import run_outcomes
from simulator.accuracy.scores import Outcome, score
from simulator.accuracy.validate import load_table, peak_errors, run_errors, without_own_source
from simulator.calibration.runs.peak_memory import export_memory_residuals, fit_memory_residuals
from simulator.calibration.runs.step_time import export_run_residuals, fit_run_residuals
from simulator.hardware.run_residuals import load_run_residuals
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.table.rows import CannotPlace, Row, read_rows
from simulator.specs import names

DATA = Path(__file__).parents[1] / "data"
WRITTEN = Path(__file__).parents[2] / "hardware_specs" / "calibrations"
ROUNDS = (
    "blind",
    "blind2",
    "blind3",
    "blind4",
    "blind5",
    "blind6",
    "blind7",
    "blind8",
    "blind9",
    "blind10",
    "blind11",
    "blind12",
    "blind13",
    "blind14",
    "blind15",
    "blind16",
)
"""The blind sets, in the order of their making."""


def first(table: str) -> list[Outcome]:
    """The first predictions of a blind table, with what its rows leave open as they are read today."""
    rows = {row["case_id"]: row for row in read_rows(DATA / f"{table}.csv")}
    kept = (o for some in prediction_outcomes(read_rows(DATA / f"{table}_first.csv")) for o in some)
    return [replace(_as_read_today(rows[o.case_id], o), first=True) for o in kept if o.quantity != "out_of_memory"]


@functools.cache
def runs() -> tuple[Outcome, ...]:
    """Step times: the shipped runs and the held-out ones as predicted now, the blind ones at first."""
    now = [*load_table(None, None).outcomes(), *run_outcomes(read_rows(DATA / "held_out_runs.csv"))]
    looked_up = [o for some in now for o in some if o.quantity == "step_time_s"]
    return (*looked_up, *(o for name in ROUNDS for o in first(f"{name}_runs") if o.quantity == "step_time_s"))


def peaks(tables: Sequence[Path]) -> tuple[Outcome, ...]:
    """Peaks of memory: those of some tables and the held-out ones as predicted now, the blind ones at first."""
    now = [
        o
        for table in (*tables, DATA / "held_out_memory.csv")
        for some in memory_outcomes(read_rows(table))
        for o in some
    ]
    return (*now, *(o for name in ROUNDS for o in first(f"{name}_memory")))


def lines() -> list[str]:
    """The rows of the table of `docs/accuracy.md`: errors over sources, and the share inside bands made without the own source."""
    judged = [o for o in without_own_source(runs()) if o.counts and o.error is not None]
    return [_line(words, [o for o in judged if _known(o) == what]) for what, words in WORDS.items()]


WORDS = {
    "": "**known code on a machine it was measured on**",
    "machine": "**known code on another machine**",
    "code": "**unknown code**",
}


def _known(o: Outcome) -> str:
    unknown = {*o.unknown, *load_run_residuals().unseen(o.code, o.gpu)}
    return next((name for name in ("code", "machine") if name in unknown), "")


def _line(words: str, outcomes: list[Outcome]) -> str:
    cells = [words]
    for some in ([o for o in outcomes if o.first], [o for o in outcomes if not o.first]):
        s, n = score(some), len({o.group for o in some})
        cells += [
            f"{len(some)} of {n}",
            *(f"{100 * (x or 0.0):.0f} %" for x in (s.median_over_groups, s.band_coverage)),
        ]
    return f"| {' | '.join(cells)} | {score(outcomes).band_width:.1f} |"


def _as_read_today(row: Row, o: Outcome) -> Outcome:
    try:
        placed = row_simulation(row)
    except CannotPlace:
        return o
    unknown, card = set(placed.unknown), o.gpu.partition(" ")[0]
    if card in names("gpus") and card != placed.cluster.gpu.name:
        unknown.add("machine")  # predicted for another card than was found out since
    return replace(o, unknown=tuple(sorted(unknown)), gpu=placed.cluster.machine)


def main() -> None:
    """Write the widths anew."""
    times = run_errors(runs())
    export_run_residuals(fit_run_residuals(times), {run.source for run in times}, WRITTEN / "run_residuals.toml")
    load_run_residuals.cache_clear()
    if sys.argv[1:]:
        found = peak_errors(peaks([Path(path) for path in sys.argv[1:]]))
        export_memory_residuals(
            fit_memory_residuals(found), {peak.source for peak in found}, WRITTEN / "memory_residuals.toml"
        )
    print("\n".join(lines()))


if __name__ == "__main__":
    main()
