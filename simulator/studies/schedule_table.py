"""Several schedules of one shape side by side, in abstract time: what each idles, holds and sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import SimulatorError, UnknownNameError
from simulator.report.frames import Records, Stacked, Tabular
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, percent, refusals
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.studies.changes import chunks_for
from simulator.studies.schedule_figures import ScheduleFigures, Times, schedule_figures

__all__ = ["ScheduleTable", "schedule_table"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleTable(Tabular):
    """Schedules in the order asked for.

    Args:
        shape: ranks and microbatches; chunks per rank where a schedule leaves the choice.
        figures: of those that can be.
        refused: (name, reason) of the others.
    """

    shape: Shape
    figures: tuple[ScheduleFigures, ...]
    refused: tuple[tuple[str, str], ...]

    def tables(self) -> dict[str, Records]:
        """`schedules`: a row per schedule; `ranks`, `actions`: those of all; `refused`."""
        stacked = Stacked(self.figures)
        return {
            "schedules": lambda: stacked.records("schedule") if self.figures else [],
            "ranks": lambda: stacked.records("ranks") if self.figures else [],
            "actions": lambda: stacked.records("actions") if self.figures else [],
            "refused": lambda: [{"schedule": name, "reason": reason} for name, reason in self.refused],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim schedule A,B,...`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "schedules",
            "ranks": self.shape.ranks,
            "microbatches": self.shape.microbatches,
            "schedules": [one.to_dict() for one in self.figures],
            "refused": [{"schedule": name, "reason": reason} for name, reason in self.refused],
        }

    def sections(self) -> list[Section]:
        """Return the table to read."""
        least = min((one.makespan for one in self.figures), default=0.0)
        rows = tuple(
            (
                one.schedule,
                str(one.shape.chunks_per_rank),
                f"{one.makespan:g}",
                percent(one.bubble_fraction),
                f"{one.bubble_overhead:.3f}",
                f"{one.peak_activations.max():g}",
                f"{one.peak_activations.min():g}",
                str(int(one.weight_copies.max())),
                f"{one.messages:g}",
                "shortest" if one.makespan <= least * (1 + 1e-9) else "",
            )
            for one in self.figures
        )
        heads = (
            "", "chunks", "makespan", "bubble", "idle/busy", "activations", "least rank", "weights", "messages", "",
        )  # fmt: skip
        title = f"{self.shape.ranks} ranks, {self.shape.microbatches} microbatches"
        below = (
            "bubble: part of the time in which ranks idle; activations: microbatches on the fullest and the emptiest rank; weights: copies",
        )
        out = [Section(title=title, table=Table(headings=heads, rows=rows, left=(0, 9)), below=below)]
        told = refusals(self.refused)
        return [*out, Section(title="cannot be", lines=told)] if told else out


def schedule_table(
    names: Sequence[str],
    shape: Shape,
    forward: Times = 1.0,
    input_grad: Times = 1.0,
    weight_grad: Times = 1.0,
    transfer: float = 0.0,
    engine: str = "compiled",
) -> ScheduleTable:
    """Return schedules of one shape; one that needs another number of chunks per rank gets the nearest it can take.

    Args:
        names: schedules, or files with orders of this shape.
        forward, input_grad, weight_grad, transfer: as `schedule_figures`.

    Raises:
        UnknownNameError: no schedule has such a name.

    >>> found = schedule_table(["gpipe", "zbv", "chimera"], Shape(3, 6))
    >>> [(one.schedule, one.shape.chunks_per_rank) for one in found.figures], [name for name, _ in found.refused]
    ([('gpipe', 1), ('zbv', 2)], ['chimera'])
    """
    figures, refused = [], []
    for name in dict.fromkeys(names):
        try:
            schedule = SCHEDULES.get(name)
            own = replace(shape, chunks_per_rank=chunks_for(schedule, shape) or shape.chunks_per_rank)
            figures.append(
                schedule_figures(
                    name,
                    own.ranks,
                    own.microbatches,
                    own.chunks_per_rank,
                    forward=forward,
                    input_grad=input_grad,
                    weight_grad=weight_grad,
                    transfer=transfer,
                    engine=engine,
                )
            )
        except UnknownNameError:
            raise
        except SimulatorError as error:
            refused.append((name, str(error)))
    return ScheduleTable(shape=shape, figures=tuple(figures), refused=tuple(refused))
