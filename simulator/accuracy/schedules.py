"""Published schedules: makespan, bubble, activations and messages in abstract time (columns of schedule_goldens.csv)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from simulator.accuracy.scores import Outcome
from simulator.errors import SimulatorError
from simulator.importers.table.rows import CannotPlace, Row, count, number, text
from simulator.schedules import SCHEDULES
from simulator.studies.schedule_figures import ScheduleFigures, schedule_figures
from simulator.units import plain_number

__all__ = ["schedule_outcomes"]

_NUMBERS = {
    "makespan": "makespan",
    "bubble_ratio": "bubble_fraction",
    "max_device_span": "longest_rank_span",
    "max_idle_within_device_span": "longest_idle_in_span",
    "p2p_volume_total": "messages",
}
_LISTS = {
    "peak_activations_per_device": "peak_activations",
    "peak_activations_if_freed_at_input_grad": "peak_activations_if_freed_at_input_grad",
    "weight_copies_per_device": "weight_copies",
}
"""Column of the table -> figure of ours."""


def schedule_outcomes(rows: Sequence[Row], everything: bool = False) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each row: one per quantity, and of lists one per rank.

    Args:
        everything: makes no difference here; all rows are complete.
    """
    for i, row in enumerate(rows, 1):
        yield _outcomes(row, text(row, "case_id") or f"schedules-{i:04d}")


def _outcomes(row: Row, case: str) -> list[Outcome]:
    name = text(row, "schedule")
    figures, reason, counts = None, "", True
    try:
        figures = _figures(row, name)
    except CannotPlace as why:
        reason, counts = why.reason, why.counts
    out = []
    for column in (*_NUMBERS, *_LISTS):
        words = [word for word in text(row, column).split(";") if word]
        values = _values(figures, column, len(words))
        for rank, word in enumerate(words):
            try:
                measured = plain_number(word)
            except ValueError:
                continue
            out.append(
                Outcome(
                    case_id=case,
                    quantity=column,
                    group=name,
                    measured=measured,
                    predicted=values[rank] if rank < len(values) else None,
                    reason=reason or ("" if rank < len(values) else f"the schedule has {len(values)} ranks"),
                    counts=counts,
                    rank=rank if len(words) > 1 else None,
                )
            )
    return out


def _figures(row: Row, name: str) -> ScheduleFigures:
    if not name or name not in SCHEDULES:
        raise CannotPlace(f"no schedule {name[:60]!r}")
    ranks, microbatches = count(row, "p"), count(row, "m")
    if ranks is None or microbatches is None:
        raise CannotPlace("the row gives no p or no m", counts=False)
    times: dict[str, Any] = {
        "forward": number(row, "tf"),
        "input_grad": number(row, "tb"),
        "weight_grad": number(row, "tw"),
        "transfer": number(row, "tcomm"),
    }
    given = {key: value for key, value in times.items() if value is not None}
    try:
        return schedule_figures(name, ranks, microbatches, count(row, "v") or 1, **given)
    except SimulatorError as error:
        raise CannotPlace(str(error)) from None


def _values(figures: ScheduleFigures | None, column: str, wanted: int) -> list[float]:
    """Return the figure of a column, one value per rank where the table has a list; of a list the maximum else."""
    if figures is None:
        return []
    if column in _NUMBERS:
        return [float(getattr(figures, _NUMBERS[column]))]
    values = [float(x) for x in getattr(figures, _LISTS[column])]
    return values if wanted > 1 or len(values) == 1 else [max(values)]
