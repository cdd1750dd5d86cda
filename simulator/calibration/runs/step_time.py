"""Whole runs -> how far predictions were from them, by kind of run: the last term of every band (design 5b O).

    sigma_slower: the least s for which  log(measured / predicted) <= q sqrt(priced^2 + s^2) in 90 % of the runs
    sigma_faster: the least s for which -log(measured / predicted) <= q sqrt(priced^2 + s^2) in 90 % of the runs

q encloses 80 % of a normal distribution, 10 % on each side of it; `priced` is the spread that the prices of that run explain
already.  The two sides differ because their causes do: what nobody modelled makes a run slower more often than faster.  A source counts
with the square root of its runs: neither does one sweep of hundreds decide, nor a single run as much as a sweep.  A kind leans
on its first tries, which count as `LENT_SOURCES` more: few sources of one kind are no spread, and sources that were looked up show less
of one than the next will.  Kinds with too few of them lean on theirs together; where there are none, all runs stand for them.

What had to be assumed of a run (its code, its plan, its machine) widens the band besides: the kinds are fitted to runs of which all
was told, and each assumption to the runs that have it, as the spread that is left beside their kind and what else was assumed.
Of codes and machines the first tries alone count: a source that was looked up since is no measure, its code was read, its profile
written.  A code is known on the machines on which looked-up runs of it were measured, by rows that name both.

No price is fitted here: a run only widens or narrows the band of predictions of its kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simulator.calibration.runs.residual_file import write_residuals
from simulator.errors import CalibrationError
from simulator.hardware.run_residuals import UNKNOWNS, KindResidual, RunResiduals, Unknown, unseen_of
from simulator.report.prediction import QUANTILE

__all__ = ["ANY", "RunError", "export_run_residuals", "fit_run_residuals"]

ANY = "any"
"""The kind that stands for runs of no kind of their own."""
FEWEST_RUNS = 8
"""A kind with fewer runs than these shares the residuals of all runs."""
LENT_SOURCES = 4.0
"""Sources as which the first tries together count beside the runs of a kind."""
LOOKED_UP: tuple[Unknown, ...] = ("code", "machine")
"""What looking up a source mends; a part of the plan that nobody told stays untold."""
SMALLEST_SIGMA = 0.01
_BELOW = 0.9
_LARGEST = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """One measured run and its prediction, both in seconds.

    Args:
        kind: from `run_kind`.
        priced: log spread that its prices explain.
        unknown: what had to be assumed, as its row tells less.
        code, gpu: framework profile and machine (`Cluster.machine`) that it was predicted with.
        first: whether it was predicted before anybody had looked at its source's errors.
    """

    kind: str
    source: str
    measured: float
    predicted: float
    priced: float = 0.0
    unknown: tuple[Unknown, ...] = ()
    code: str = ""
    gpu: str = ""
    first: bool = False


def fit_run_residuals(runs: Iterable[RunError]) -> RunResiduals:
    """Return the residuals of each kind that has runs enough, of all runs together ("any"), and of what had to be assumed.

    Raises:
        CalibrationError: no runs.

    >>> run = RunError(kind="tensor", source="a", measured=1.0, predicted=1.1)
    >>> residual = fit_run_residuals([run]).kind["any"]
    >>> round(residual.sigma_faster, 3), residual.sigma_slower
    (0.074, 0.01)
    """
    listed = list(runs)
    if not listed:
        raise CalibrationError(
            "residuals of whole runs need at least one run that was measured and predicted, got none"
        )
    measured = _measured(listed)
    everything = [_with_unseen(run, measured) for run in listed]
    told = [run for run in everything if not run.unknown] or everything
    first = [run for run in told if run.first]
    tries = Counter(run.kind for run in first)
    few = [run for run in first if tries[run.kind] < FEWEST_RUNS]
    kinds = {ANY: _residual(told, first)}
    for kind in sorted({run.kind for run in told}):
        own = [run for run in told if run.kind == kind]
        lent = few if tries[kind] < FEWEST_RUNS else [run for run in first if run.kind == kind]
        if len(own) >= FEWEST_RUNS:
            kinds[kind] = _residual(own, lent or told)
    found = RunResiduals(
        name="run_residuals",
        kind=kinds,
        measured=measured,
    )
    for name in UNKNOWNS:
        own = [run for run in everything if name in run.unknown]
        tried = [run for run in own if run.first and name in LOOKED_UP]
        own = tried if len(tried) >= FEWEST_RUNS else own
        if len(own) >= FEWEST_RUNS and told is not everything:
            found = found.model_copy(update={"unknown": {**found.unknown, name: _residual(own, [], found)}})
    return found


def _measured(runs: list[RunError]) -> dict[str, tuple[str, ...]]:
    """Code -> the machines on which it was measured, by runs that were looked up and whose rows tell both."""
    found: dict[str, set[str]] = {}
    for run in runs:
        if run.code and run.gpu and not run.first and not {"code", "machine"} & set(run.unknown):
            found.setdefault(run.code, set()).add(run.gpu)
    return {code: tuple(sorted(found[code])) for code in sorted(found)}


def _with_unseen(run: RunError, measured: dict[str, tuple[str, ...]]) -> RunError:
    """A run with what no measured run stands behind beside what its row leaves open."""
    more = unseen_of(measured, run.code, run.gpu) if run.code and run.gpu else frozenset()
    return replace(run, unknown=tuple(sorted({*run.unknown, *more})))


def _residual(runs: list[RunError], lent: list[RunError], known: RunResiduals | None = None) -> KindResidual:
    """The residual of some runs, that lean on the lent ones; with `known`, what is left beside the residuals known already."""
    count = Counter(run.source for run in runs)
    weight = _weights(runs) * len(count)
    if lent:
        weight = np.concatenate([weight, _weights(lent) * LENT_SOURCES])
    both = runs + lent
    log = np.array([math.log(run.measured / run.predicted) for run in both])
    priced = np.array([run.priced for run in both])
    already = [known.of(run.kind, run.unknown) if known else None for run in both]
    slower = np.hypot(priced, [residual.sigma_slower if residual else 0.0 for residual in already])
    faster = np.hypot(priced, [residual.sigma_faster if residual else 0.0 for residual in already])
    error = np.array([abs(run.predicted / run.measured - 1.0) for run in runs])
    each = np.array([1.0 / count[run.source] for run in runs])
    return KindResidual(
        sigma_slower=max(SMALLEST_SIGMA, round(_spread(log, slower, weight), 4)),
        sigma_faster=max(SMALLEST_SIGMA, round(_spread(-log, faster, weight), 4)),
        median=round(_weighted_median(error, each), 4),
        runs=len(runs),
        sources=len(count),
    )


def _weights(runs: list[RunError]) -> np.ndarray:
    """[runs] weights that sum to 1: a source counts with the square root of its runs."""
    count = Counter(run.source for run in runs)
    weight = np.array([count[run.source] ** -0.5 for run in runs])
    return np.asarray(weight / weight.sum())


def _spread(log: np.ndarray, priced: np.ndarray, weight: np.ndarray) -> float:
    """The least spread beside that of the prices for which 90 % of the runs lie below the upper end of their bands."""
    needed = np.sqrt(np.maximum((np.maximum(log, 0.0) / QUANTILE) ** 2 - priced**2, 0.0))
    order = np.argsort(needed, kind="stable")
    cumulative = np.cumsum(weight[order])
    return min(float(needed[order][np.searchsorted(cumulative, _BELOW * cumulative[-1])]), _LARGEST)


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


def export_run_residuals(residuals: RunResiduals, sources: Iterable[str], path: Path) -> None:
    """Write residuals as the data file `calibrations/run_residuals.toml`.

    Args:
        sources: names of the tables that the runs were published in.
    """
    write_residuals(residuals, "step times", "whole predictions were from measured runs", sources, path)
