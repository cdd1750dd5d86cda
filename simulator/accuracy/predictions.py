"""Predictions that were made and kept: a table that `dtsim validate --output` wrote, scored again, or made bands of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.accuracy.scores import Outcome
from simulator.hardware.run_residuals import UNKNOWNS
from simulator.importers.table.rows import CannotPlace, Row, flag, number, text
from simulator.program.program import CATEGORIES
from simulator.report.columns import category_column

__all__ = ["prediction_outcomes"]


def prediction_outcomes(rows: Sequence[Row], everything: bool = False) -> Iterator[list[Outcome]]:
    """Yield the outcome that each row keeps: nothing is simulated.

    Args:
        everything: also rows that did not count; all are yielded, and `counts` stays as it was written.
    """
    for row in rows:
        yield [_outcome(row)]


def _outcome(row: Row) -> Outcome:
    """The outcome of a row; one that does not count where a number is none."""
    said = {word.strip() for word in text(row, "unknown").split(";")}
    try:
        terms = tuple((name, number(row, category_column(name)) or 0.0) for name in CATEGORIES)
        return Outcome(
            case_id=text(row, "case_id"),
            quantity=text(row, "quantity"),
            group=text(row, "group"),
            measured=number(row, "measured"),
            predicted=number(row, "predicted"),
            low=number(row, "low"),
            high=number(row, "high"),
            reason=text(row, "reason"),
            counts=bool(flag(row, "counts")),
            assumed=tuple(word for word in text(row, "assumed").split("; ") if word),
            kind=text(row, "kind"),
            unknown=tuple(name for name in UNKNOWNS if name in said),
            priced=number(row, "priced") or 0.0,
            code=text(row, "code"),
            gpu=text(row, "gpu"),
            first=bool(flag(row, "first")),
            terms=terms if any(value for _, value in terms) else (),
        )
    except CannotPlace as why:
        return Outcome(
            case_id=text(row, "case_id"),
            quantity=text(row, "quantity"),
            group=text(row, "group"),
            measured=None,
            reason=why.reason,
            counts=False,
        )
