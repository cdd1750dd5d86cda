"""Which schedule wins at which hop latency: abstract times, and where the ranking turns round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SimulatorError, SpecError
from simulator.job import Job
from simulator.program.program import TRANSFER
from simulator.report.frames import Record, Records, Tabular
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, percent, refusals
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.simulation import simulate_job
from simulator.studies.changes import chunks_for
from simulator.studies.schedule_figures import Times, makespan_and_bubble

__all__ = ["LatencySweep", "Turn", "hop_of", "latency_sweep"]

_MOST_LATENCIES = 50
_HALVINGS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Where two schedules change places: above `latency` (in the unit of the times) `after` is quicker than `before`."""

    latency: float
    before: str
    after: str
    wins: bool
    """Whether the two are the quickest of all there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencySweep(Tabular):
    """Makespans of schedules over hop latencies.

    Args:
        shape: ranks and microbatches; chunks per rank by schedule.
        times: forward, input gradient and weight gradient of one microbatch on a rank's share; the unit of everything.
        latencies: ascending.
        names: of the schedules.
        makespan: [schedules, latencies].
        bubble: [schedules, latencies] share of the time in which ranks are idle.
        turns: where the ranking turns round, by latency.
        refused: (name, reason) of schedules that cannot be.
        hop: latency of a hop of the job asked about, in the same unit, if there is one.
    """

    shape: Shape
    chunks: dict[str, int]
    times: tuple[Times, Times, Times]
    latencies: tuple[float, ...]
    names: tuple[str, ...]
    makespan: NDArray[np.float64]
    bubble: NDArray[np.float64]
    turns: tuple[Turn, ...]
    refused: tuple[tuple[str, str], ...]
    hop: float | None = None

    def tables(self) -> dict[str, Records]:
        """`points`: a row per schedule and latency; `refused`: schedules that cannot be."""
        refused: list[Record] = [{"schedule": name, "reason": reason} for name, reason in self.refused]
        return {"points": self._points, "refused": lambda: refused}

    def _points(self) -> list[Record]:
        return [
            {
                "schedule": name,
                "ranks": self.shape.ranks,
                "microbatches": self.shape.microbatches,
                "chunks_per_rank": self.chunks[name],
                "latency": latency,
                "makespan": float(self.makespan[i, j]),
                "bubble_fraction": float(self.bubble[i, j]),
            }
            for i, name in enumerate(self.names)
            for j, latency in enumerate(self.latencies)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim compare --latency-sweep`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "ranks": self.shape.ranks,
            "microbatches": self.shape.microbatches,
            "times": dict(zip(("forward", "input_grad", "weight_grad"), self.times, strict=True)),
            "latencies": list(self.latencies),
            "schedules": {
                name: {
                    "chunks_per_rank": self.chunks[name],
                    "makespan": self.makespan[i].tolist(),
                    "bubble_fraction": self.bubble[i].tolist(),
                }
                for i, name in enumerate(self.names)
            },
            "turns": [{"latency": t.latency, "before": t.before, "after": t.after, "wins": t.wins} for t in self.turns],
            "refused": dict(self.refused),
            "hop_latency": self.hop,
        }

    def sections(self) -> list[Section]:
        """Return tables to read."""
        best = self.makespan.min(axis=0) if len(self.names) else np.zeros(0)
        rows = []
        for i, name in enumerate(self.names):
            cells = [
                percent(share) + (" <" if time <= quickest * (1 + 1e-9) else "  ")
                for share, time, quickest in zip(self.bubble[i], self.makespan[i], best, strict=True)
            ]
            chunks = f" ({self.chunks[name]} chunks)" if self.chunks[name] > 1 else ""
            rows.append((name + chunks, *cells))
        f, i_, w = (f"{t:g}" if isinstance(t, float | int) else "by rank" for t in self.times)
        title = f"bubble of {self.shape.ranks} ranks and {self.shape.microbatches} microbatches, by latency of a hop"
        where = f" A hop of this job takes {self.hop:.3g}." if self.hop is not None else ""
        unit = f"abstract time: F {f}, I {i_}, W {w} per microbatch and rank; < marks the quickest.{where}"
        table = Table(headings=("", *(f"{latency:g}  " for latency in self.latencies)), rows=tuple(rows))
        out = [Section(title=title, lines=(unit,), table=table)]
        if self.turns:
            turned = tuple(
                (f"{t.latency:.4g}", t.after, "passes", t.before, "and leads" if t.wins else "") for t in self.turns
            )
            heads = ("above", "", "", "", "")
            out.append(
                Section(title="the ranking turns round", table=Table(headings=heads, rows=turned, left=(1, 2, 3, 4)))
            )
        else:
            out.append(Section(title="the ranking is the same at all these latencies"))
        if self.refused:
            out.append(Section(title="cannot be", lines=refusals(self.refused)))
        return out


def latency_sweep(
    schedules: Sequence[str],
    shape: Shape,
    latencies: Sequence[float],
    *,
    forward: Times = 1.0,
    input_grad: Times = 1.0,
    weight_grad: Times = 1.0,
    hop: float | None = None,
) -> LatencySweep:
    """Return makespans over latencies, and where pairs of schedules change places (found by halving between two latencies).

    Args:
        schedules: names; one that needs another number of chunks per rank gets the nearest it can take.
        shape: ranks, microbatches, chunks per rank where a schedule leaves the choice.
        latencies: of a hop between ranks, in the unit of the times.
        hop: latency of a hop of a real job, for the reader.

    Raises:
        SpecError: fewer than two latencies, too many, or one that is negative.
        UnknownNameError: no such schedule.

    >>> found = latency_sweep(["gpipe", "interleaved_1f1b"], Shape(4, 16, 2), [0.0, 2.0])
    >>> [(turn.before, turn.after) for turn in found.turns]
    [('interleaved_1f1b', 'gpipe')]
    """
    points = tuple(sorted({float(latency) for latency in latencies}))
    if not 2 <= len(points) <= _MOST_LATENCIES or points[0] < 0 or not np.isfinite(points[-1]):
        raise SpecError(
            f"a sweep needs 2 to {_MOST_LATENCIES} different latencies >= 0, but got {len(points)}: "
            f"{', '.join(f'{latency:g}' for latency in points[:5])}"
        )
    times = (forward, input_grad, weight_grad)
    chunks: dict[str, int] = {}
    refused = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for asked in dict.fromkeys(schedules):
        schedule = SCHEDULES.get(asked)
        name = schedule.name
        fitting = chunks_for(schedule, shape)
        chunks[name] = fitting if fitting is not None else shape.chunks_per_rank
        try:
            curves[name] = [_figures(name, shape, chunks[name], times, latency) for latency in points]
        except SimulatorError as error:
            refused.append((name, str(error)))
    names = tuple(curves)
    table = np.array([curves[name] for name in names], np.float64).reshape(len(names), len(points), 2)
    turns = _turns(names, shape, chunks, times, points, table[:, :, 0])
    return LatencySweep(
        shape=shape,
        chunks={name: chunks[name] for name in names},
        times=times,
        latencies=points,
        names=names,
        makespan=table[:, :, 0],
        bubble=table[:, :, 1],
        turns=turns,
        refused=tuple(refused),
        hop=hop,
    )


def hop_of(job: Job) -> float | None:
    """Return the time of the slowest message between pipeline ranks over the mean time of a microbatch's forward on a rank;
    None without pipeline ranks.

    Raises:
        PlanError: the plan cannot be.
    """
    prediction = simulate_job(job)
    program, prices = prediction.program, prediction.prices
    sent = np.unique(program.item[program.kind == TRANSFER])
    forward = prediction.breakdown["forward"] / prediction.provenance["microbatches"]
    if not len(sent) or not forward:
        return None
    return float((prices.latency[sent] + prices.occupancy[sent]).max() / forward)


def _figures(
    name: str, shape: Shape, chunks: int, times: tuple[Times, Times, Times], latency: float
) -> tuple[float, float]:
    """Makespan and bubble fraction."""
    return makespan_and_bubble(name, replace(shape, chunks_per_rank=chunks), *times, latency)


def _turns(
    names: tuple[str, ...],
    shape: Shape,
    chunks: dict[str, int],
    times: tuple[Times, Times, Times],
    points: tuple[float, ...],
    makespan: NDArray[np.float64],
) -> tuple[Turn, ...]:
    """Halve every interval at whose ends two schedules stand in different order, until the place is known."""
    found = []
    for a in range(len(names)):
        for b in range(len(names)):
            ahead = makespan[a] < makespan[b] * (1 - 1e-9)
            behind = makespan[a] > makespan[b] * (1 + 1e-9)
            decided = np.flatnonzero(ahead | behind)
            for left, right in pairwise(decided.tolist()):
                if ahead[left] and behind[right]:
                    low, high = points[left], points[right]
                    for _ in range(_HALVINGS):
                        middle = (low + high) / 2
                        mine, other = (_figures(names[n], shape, chunks[names[n]], times, middle)[0] for n in (a, b))
                        low, high = (middle, high) if mine <= other else (low, middle)
                    best = [_figures(name, shape, chunks[name], times, high)[0] for name in names]
                    wins = best[b] <= min(best) * (1 + 1e-6)
                    found.append(Turn(latency=high, before=names[a], after=names[b], wins=wins))
    return tuple(sorted(found, key=lambda turn: (turn.latency, turn.after)))
