"""A validation as a page: what the screen prints, every point drawn, the worst row of each source, and what was fitted on what."""

from __future__ import annotations

import html
import tempfile
from collections.abc import Iterator
from pathlib import Path

from simulator.accuracy.scores import OUT_OF_MEMORY, Outcome
from simulator.accuracy.screen import describe_validation
from simulator.accuracy.validate import Validation
from simulator.html.page import page_html, picture_html
from simulator.report.accuracy_plot import plot_accuracy
from simulator.report.table import Section, Table, percent, sections_html
from simulator.specs import names, write_text
from simulator.studies.catalogue import show_member

__all__ = ["worst_of_each_group", "write_validation_page"]

_FEWEST_POINTS = 3
_CALIBRATIONS = {
    "runs": ("gemm_", "attention_", "memory_bound_", "interference", "nccl_", "run_residuals"),
    "memory": (),
    "nccl": ("nccl_",),
    "gemm": ("gemm_", "attention_", "memory_bound_"),
    "schedules": (),
}
"""Kind of table -> beginnings of the names of the calibrations that its predictions rest on."""


def write_validation_page(validation: Validation, path: str | Path) -> Path:
    """Write a validation as one HTML file and return its path.

    Raises:
        OSError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        first, *others = describe_validation(validation)
        parts = [sections_html([first]), *_pictures(validation, Path(folder)), sections_html(others)]
    parts.append(sections_html([worst_of_each_group(validation)]))
    parts += _calibrated(validation.table.kind)
    write_text(path, page_html(f"Validation: {validation.table.place}", parts))
    return Path(path)


def worst_of_each_group(validation: Validation) -> Section:
    """Return the row that is farthest off in each group, with the largest term of its step."""
    rows = []
    for group in validation.by_group:
        mine = [o for o in validation.outcomes if o.group == group and o.counts and o.error is not None]
        if mine:
            rows.append(_row(max(mine, key=lambda o: abs(o.error or 0.0))))
    heads = ("group", "row", "quantity", "measured", "predicted", "error", "largest term", "its share")
    return Section(
        title="The row farthest off in each group", table=Table(headings=heads, rows=tuple(rows), left=(0, 1, 2, 6))
    )


def _row(o: Outcome) -> tuple[str, ...]:
    term, seconds = max(o.terms, key=lambda term: term[1], default=("", 0.0))
    share = percent(seconds / o.predicted, 0) if term and o.predicted else ""
    return (
        o.group,
        o.case_id,
        o.quantity,
        f"{o.measured:.4g}",
        f"{o.predicted:.4g}",
        percent(o.error or 0.0, signed=True),
        term,
        share,
    )


def _pictures(validation: Validation, folder: Path) -> Iterator[str]:
    """One picture per quantity that has points enough, as HTML."""
    for quantity in validation.by_quantity:
        drawn = [
            (o.group, o.measured, o.predicted)
            for o in validation.outcomes
            if o.quantity == quantity != OUT_OF_MEMORY and o.counts and o.measured and o.predicted
        ]
        if len(drawn) >= _FEWEST_POINTS:
            groups, measured, predicted = zip(*drawn, strict=True)
            picture = plot_accuracy(groups, measured, predicted, quantity, folder / f"{len(drawn)}_{quantity}.png")
            yield picture_html(f"{quantity}: {len(drawn)} points", picture)


def _calibrated(kind: str) -> Iterator[str]:
    """Every calibration behind the predictions, number by number with what it was fitted on, folded away."""
    files = [name for name in names("calibrations") if name.startswith(_CALIBRATIONS[kind] or ("-",))]
    if not files:
        return
    yield "<section>\n<h2>Calibrated numbers, and the rows they were fitted on</h2>"
    for name in files:
        inside = sections_html(show_member("calibrations", name).sections())
        yield f"<details><summary>{html.escape(name)}</summary>\n{inside}\n</details>"
    yield "</section>"
