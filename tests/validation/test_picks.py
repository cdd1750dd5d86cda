"""Of the plans that somebody measured, which one do predictions pick?  The table of docs/search.md; `python -m tests.validation.test_picks`
writes it anew.

A set is the runs of one model on so many GPUs.  The pick is the plan with the least predicted step time per sequence of those that ran;
"fits for sure" picks of those predicted to fit with a probability of 90 %.  The noise of a set is how far apart repetitions of the same
plan were measured.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from simulator.accuracy.attempt import attempt
from simulator.importers.table.rows import Row, read_rows
from simulator.search.candidate import fit_probability
from tests.package_sources import ROOT

PAGE = ROOT / "docs" / "search.md"
SOURCES = {"vTrain": "vTrain", "Hagemann": "Hagemann et al.", "BLOOM": "BLOOM"}
HEAD = (
    "| measured | runs | GPUs | slowest / quickest | rank correlation | pick | if it must fit for sure | noise |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)
PLAN = (
    "tp",
    "pp",
    "vp",
    "cp",
    "dp",
    "zero_stage",
    "seq_parallel",
    "mbs",
    "gbs",
    "recompute",
    "attn_kernel",
    "schedule",
)


class Run(NamedTuple):
    """A plan that ran: seconds per sequence as measured and as predicted, how likely it fits, and what it is."""

    measured: float
    predicted: float
    likely: float
    plan: tuple[str, ...]


class Set(NamedTuple):
    """Runs of a model on so many GPUs."""

    name: str
    gpus: int
    runs: tuple[Run, ...]

    @property
    def best(self) -> float:
        return min(run.measured for run in self.runs)

    def over(self, least_likely: float = 0.0) -> float:
        """How much slower the pick was measured than the best."""
        able = [run for run in self.runs if run.likely >= least_likely]
        return min(able, key=lambda run: run.predicted).measured / self.best - 1.0

    @property
    def correlation(self) -> float:
        """Spearman's, by midranks."""
        ranks = [stats.rankdata([getattr(run, what) for run in self.runs]) for what in ("measured", "predicted")]
        return float(np.corrcoef(ranks)[0, 1])

    @property
    def noise(self) -> float:
        """Slowest over quickest of the same plan, less 1, at most; 0 where none was measured twice."""
        by_plan: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for run in self.runs:
            by_plan[run.plan].append(run.measured)
        return max(max(some) / min(some) for some in by_plan.values()) - 1.0

    @property
    def line(self) -> str:
        noise = f"{self.noise:.1%}" if self.noise else "-"
        spread = max(run.measured for run in self.runs) / self.best
        cells = (
            self.name, len(self.runs), self.gpus, f"{spread:.2f}", f"{self.correlation:.2f}", f"+{self.over():.1%}",
            f"+{self.over(0.9):.1%}", noise,
        )  # fmt: skip
        return "| " + " | ".join(map(str, cells)) + " |"


def run_of(row: Row) -> Run | None:
    """A row as a run; None where it did not run, or is not predicted."""
    seconds = row.get("step_time_s")
    prediction = attempt(row, False).prediction if seconds and row.get("oom") != "1" else None
    if prediction is None or not seconds:
        return None
    batch = float(row["gbs"] or 1)
    return Run(
        float(seconds) / batch,
        prediction.step_time / batch,
        fit_probability(prediction),
        tuple(row.get(field) or "" for field in (*PLAN, "heads")),
    )


@functools.cache
def sets() -> tuple[Set, ...]:
    """The sets of at least eight runs."""
    by_set: dict[tuple[str, str, int, str], list[Run]] = defaultdict(list)
    for row in read_rows(ROOT / "workloads" / "published" / "measured_runs.csv"):
        source = next((name for word, name in SOURCES.items() if word in (row.get("source") or "")), None)
        run = run_of(row) if source else None
        if source and run:
            by_set[source, row["model"] or "", int(row["n_gpus"] or 0), row["seq_len"] or ""].append(run)
    return tuple(
        Set(f"{source}, {model}, {int(tokens):,} tokens", gpus, tuple(runs))
        for (source, model, gpus, tokens), runs in sorted(by_set.items())
        if len(runs) >= 8
    )


def table() -> str:
    return "\n".join((*HEAD, *(one.line for one in sets())))


def shown() -> str:
    """The table on the page."""
    return HEAD[0] + PAGE.read_text().partition(HEAD[0])[2].partition("\n\n")[0]


@pytest.mark.slow
def test_all_four_sets_are_there() -> None:
    found = [(one.name.split(",")[0], one.gpus) for one in sets()]
    assert {("vTrain", 64), ("vTrain", 512), ("BLOOM", 384), ("Hagemann et al.", 64)} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_the_pick_is_within_two_percent_of_the_best_or_within_the_noise_of_the_set(number: int) -> None:
    one = sets()[number]
    assert one.over() <= max(0.02, one.noise)
    assert one.correlation > 0.7
    assert len(sets()) == 7


@pytest.mark.slow
def test_the_page_has_these_figures() -> None:
    assert shown().splitlines() == table().splitlines()


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(shown(), table()))
