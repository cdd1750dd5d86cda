"""A table of measurements in, errors out: what `dtsim validate` answers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simulator.accuracy.gemm import gemm_outcomes
from simulator.accuracy.memory import memory_outcomes
from simulator.accuracy.nccl import nccl_outcomes
from simulator.accuracy.predictions import prediction_outcomes
from simulator.accuracy.published import published_outcomes
from simulator.accuracy.runs import run_outcomes
from simulator.accuracy.schedules import schedule_outcomes
from simulator.accuracy.scores import Outcome, Scores, band_scores, score, scores_by_group
from simulator.calibration.runs.peak_memory import PeakError, fit_memory_residuals
from simulator.calibration.runs.step_time import RunError, fit_run_residuals
from simulator.errors import SpecError, UnknownNameError
from simulator.hardware.run_residuals import load_run_residuals
from simulator.importers.table.columns import unread
from simulator.importers.table.rows import Row, read_rows, told_kind
from simulator.report.frames import Records, Tabular
from simulator.report.prediction import QUANTILE
from simulator.report.schema import SCHEMA_VERSION
from simulator.specs import data_roots, find_spec, names

__all__ = ["KINDS", "Table", "Validation", "load_table", "peak_errors", "run_errors", "without_own_source"]

PEAK = "peak_memory_bytes"
KINDS = ("runs", "memory", "nccl", "gemm", "schedules", "predictions")
PUBLISHED = "published runs shipped with the simulator"
NOT_FITTED = (
    "prices come from micro-benchmarks, data sheets and documents; of GPUs and networks only P100 and Piz Daint's GLOO were fitted to "
    "step times (no benchmark of them is published), of hosts two numbers were (training_pace and arm_pace of calibrations/host.toml). "
    "Besides, only the width of the band was learnt from whole runs (calibrations/run_residuals.toml)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that was read: its kind, where it is, its rows."""

    kind: str
    place: str
    rows: list[dict[str, str]]

    def outcomes(self, everything: bool = False) -> Iterator[list[Outcome]]:
        """Yield the outcomes row by row (of the shipped runs: run by run)."""
        if self.place == PUBLISHED:
            return itertools.chain(published_outcomes(), run_outcomes(self.rows, everything))
        if self.kind == "nccl":
            return nccl_outcomes(self.rows, Path(self.place), everything)
        readers = {
            "runs": run_outcomes,
            "memory": memory_outcomes,
            "gemm": gemm_outcomes,
            "schedules": schedule_outcomes,
            "predictions": prediction_outcomes,
        }
        rows: Sequence[Row] = self.rows
        return readers[self.kind](rows, everything)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Tabular):
    """The outcomes of a table.

    Args:
        left_out: whether each band was made without its own source.
        complete: False when it was interrupted.
    """

    table: Table
    outcomes: tuple[Outcome, ...]
    left_out: bool = False
    complete: bool = True

    @property
    def fitted_groups(self) -> frozenset[str]:
        """Groups whose rows were used in a fit: those that the calibrations name."""
        if self.left_out or self.table.kind in ("memory", "schedules", "predictions"):
            return frozenset()
        prefixes = {"runs": ("run_residuals",), "nccl": ("nccl_",), "gemm": ("gemm_", "attention_")}[self.table.kind]
        text = _calibration_text(prefixes)
        words = {
            o.group: o.group.split()[0] if self.table.kind == "gemm" else o.group for o in self.outcomes if o.group
        }
        return frozenset(group for group, word in words.items() if word.lower() in text)

    @property
    def not_read(self) -> dict[str, str]:
        """Columns of the table that say something and change no prediction -> the column that may be meant, "" = none."""
        return unread(self.table.kind, self.table.rows)

    @property
    def summary(self) -> Scores:
        """The scores of all rows."""
        return score(self.outcomes, bool(self.fitted_groups))

    @property
    def by_group(self) -> dict[str, Scores]:
        """The scores of each group."""
        return scores_by_group(self.outcomes, self.fitted_groups)

    @property
    def by_quantity(self) -> dict[str, Scores]:
        """The scores of each quantity."""
        names = dict.fromkeys(o.quantity for o in self.outcomes)
        return {name: score([o for o in self.outcomes if o.quantity == name]) for name in names}

    def tables(self) -> dict[str, Records]:
        """`rows`: a row per measured value; `groups`: scores of each source."""
        return {
            "rows": lambda: [o.record() for o in self.outcomes],
            "groups": lambda: [{"group": name} | s.record() for name, s in self.by_group.items()],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim validate`."""
        from simulator import __version__

        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.table.kind,
            "complete": self.complete,
            "not_read": [{"column": name, "meant": meant or None} for name, meant in self.not_read.items()],
            "rows": [o.to_dict() for o in self.outcomes],
            "summary": self.summary.to_dict(),
            "by_group": {name: scores.to_dict() for name, scores in self.by_group.items()},
            "bands": [asdict(scores) for scores in band_scores(self.outcomes)],
            "by_quantity": {name: scores.to_dict() for name, scores in self.by_quantity.items()},
            "provenance": {
                "version": __version__,
                "table": self.table.place,
                "engine": "compiled",
                "calibration": NOT_FITTED,
                "leave_one_out": self.left_out,
                "unpredicted": "rows whose inputs are given and that are not predicted count as an error of 100 %",
            },
        }


@functools.lru_cache(maxsize=8)
def _calibration_text(prefixes: tuple[str, ...]) -> str:
    """The calibrations whose names begin so, as text in lower case: they name their sources and logs."""
    files = [find_spec("calibrations", name) for name in names("calibrations") if name.startswith(prefixes)]
    return "\n".join(path.read_text(encoding="utf-8") for path in files).lower()


def load_table(path: str | None, kind: str | None) -> Table:
    """Return the table of this path, or the runs shipped with the simulator.

    Raises:
        SpecError: it cannot be read, or its columns do not tell its kind.
        UnknownNameError: no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of table", kind, KINDS)
    if path is None:
        if kind not in (None, "runs"):
            raise SpecError(f"--kind {kind} needs a FILE: the tables shipped with the simulator are of kind runs")
        return Table(kind="runs", place=PUBLISHED, rows=_shipped_rows())
    rows = read_rows(Path(path))
    return Table(kind=kind or told_kind(rows, Path(path)), place=path, rows=rows)


def _shipped_rows() -> list[dict[str, str]]:
    """The measured runs of workloads/published/*.csv, all tables together."""
    files = {
        path.name: path for root in reversed(data_roots()) for path in (root / "workloads/published").glob("*.csv")
    }
    return [row for name in sorted(files) for row in read_rows(files[name])]


def run_errors(outcomes: Sequence[Outcome]) -> list[RunError]:
    """Return the runs that were both measured and predicted, for the residuals of whole runs."""
    return [
        RunError(
            kind=o.kind,
            source=o.group,
            measured=o.measured,
            predicted=o.predicted,
            priced=o.priced,
            unknown=o.unknown,
            code=o.code,
            gpu=o.gpu,
            first=o.first,
        )
        for o in outcomes
        if o.quantity == "step_time_s" and o.counts and o.kind and o.measured and o.predicted
    ]


def peak_errors(outcomes: Sequence[Outcome]) -> list[PeakError]:
    """Return the peaks of memory that were both measured and predicted, for the residuals of memory."""
    return [
        PeakError(source=o.group, measured=o.measured, by_category=dict(o.terms), unseen=_unseen_code(o))
        for o in outcomes
        if o.quantity == PEAK and o.counts and o.measured and o.predicted
    ]


def _unseen_code(o: Outcome) -> bool:
    """Whether no measured run stands behind the code of a peak."""
    return "code" in {*o.unknown, *load_run_residuals().unseen(o.code, o.gpu)}


def _peaks_without_own_source(outcomes: Sequence[Outcome], peaks: Sequence[PeakError]) -> list[Outcome]:
    """Return the outcomes with bands of memory refitted to the peaks of all groups but each one's own."""
    groups = {peak.source for peak in peaks}
    others = {group: fit_memory_residuals(peak for peak in peaks if peak.source != group) for group in groups}
    out = []
    for o in outcomes:
        if o.group in others and o.predicted is not None and o.quantity == PEAK:
            width = QUANTILE * others[o.group].sigma(dict(o.terms), _unseen_code(o))
            o = replace(o, low=o.predicted * math.exp(-width), high=o.predicted * math.exp(width))
        out.append(o)
    return out


def without_own_source(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes with bands made without their own group: residuals are refitted to the other groups in turn.

    Left out is what the group's errors add to a width, not that its code was read on its GPU.

    Raises:
        SpecError: there are no two groups of runs, or of peaks of memory.
    """
    runs, peaks = run_errors(outcomes), peak_errors(outcomes)
    groups = {run.source for run in runs}
    if len({peak.source for peak in peaks}) > 1:
        return tuple(_peaks_without_own_source(outcomes, peaks))
    if len(groups) < 2:
        raise SpecError(
            f"--leave-one-out refits to all groups but one, but the table has {len(groups)} group of predicted runs. "
            "Way out: a table with two sources or more"
        )
    others = {group: fit_run_residuals(run for run in runs if run.source != group) for group in groups}
    whole = fit_run_residuals(runs)
    out = []
    for o in outcomes:
        if o.group not in others or o.predicted is None or o.low is None or not o.kind:
            out.append(o)
            continue
        refitted = others[o.group].of(o.kind, {*o.unknown, *whole.unseen(o.code, o.gpu)})
        down = QUANTILE * math.hypot(o.priced, refitted.sigma_faster)
        up = QUANTILE * math.hypot(o.priced, refitted.sigma_slower)
        out.append(replace(o, low=o.predicted * math.exp(-down), high=o.predicted * math.exp(up)))
    return tuple(out)
