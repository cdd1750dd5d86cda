"""dtsim validate: every row of a table of measurements predicted, and the errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import ForceOption, JsonOption, TableOption
from simulator.cli.output import (
    HTML,
    INTERRUPTED,
    check_ending,
    claim_table,
    note,
    print_json,
    print_sections,
    save_table,
    tell_compiling,
    wrote,
)

if TYPE_CHECKING:
    from simulator.accuracy.scores import Outcome
    from simulator.accuracy.validate import Table

__all__ = ["command"]


def command(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE.csv", help="A table; none = the shipped published runs.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="runs, memory, nccl, gemm, schedules, or predictions kept by --output; told from the columns if left out."
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Make each band without the row's own source.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also rows whose inputs are incomplete (quality C, unhealthy logs).")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print errors per source as a Markdown table.")] = False,
    report: Annotated[
        str | None,
        typer.Option(metavar="OUT.html", help="Write a page: errors, scatter plots, what was fitted on what."),
    ] = None,
    output: TableOption = None,
    residuals: Annotated[
        str | None, typer.Option(metavar="OUT.toml", help="Write the spread of these runs, the last term of a band.")
    ] = None,
) -> None:
    """Predict every row of a table of measured runs, collectives, kernels or schedules, and show the errors."""
    from simulator.accuracy.screen import describe_validation, markdown_table
    from simulator.accuracy.validate import Validation, load_table, without_own_source
    from simulator.errors import SpecError

    check_ending("page", report, *HTML)
    claim_table(force, output, report, residuals)
    table = load_table(file, kind)
    if (leave_one_out or residuals) and table.kind not in ("runs", "memory", "predictions"):
        raise SpecError(
            f"--leave-one-out and --residuals are about whole runs and their memory, but this table is of kind {table.kind}"
        )
    tell_compiling()
    outcomes, complete = _all_outcomes(table, everything)
    if leave_one_out:
        outcomes = list(without_own_source(outcomes))
    validation = Validation(table=table, outcomes=tuple(outcomes), left_out=leave_one_out, complete=complete)
    if residuals:
        _write_residuals(table.kind, outcomes, Path(residuals))
        wrote(residuals)
    save_table(validation, output)
    if report:
        from simulator.html.validation import write_validation_page

        wrote(write_validation_page(validation, report))
    if as_json:
        print_json(validation.to_dict(), "validate")
    elif markdown:
        print(markdown_table(validation))
    else:
        print_sections(describe_validation(validation))
    if not complete:
        raise typer.Exit(INTERRUPTED)


def _write_residuals(kind: str, outcomes: list[Outcome], path: Path) -> None:
    from simulator.accuracy.validate import peak_errors, run_errors
    from simulator.calibration.runs.peak_memory import export_memory_residuals, fit_memory_residuals
    from simulator.calibration.runs.step_time import export_run_residuals, fit_run_residuals

    peaks = peak_errors(outcomes)
    if kind == "memory" or (kind == "predictions" and peaks):
        export_memory_residuals(fit_memory_residuals(peaks), {peak.source for peak in peaks}, path)
    else:
        runs = run_errors(outcomes)
        export_run_residuals(fit_run_residuals(runs), {run.source for run in runs}, path)


def _all_outcomes(table: Table, everything: bool) -> tuple[list[Outcome], bool]:
    """Return (outcomes, whether all rows are in them): an interruption keeps what is done."""
    done: list[Outcome] = []
    try:
        with _progress(len(table.rows)) as advance:
            for some in table.outcomes(everything):
                done += some
                advance()
    except KeyboardInterrupt:
        note(f"interrupted after {len(done)} values; they are shown")
        return done, False
    return done, True


@contextmanager
def _progress(rows: int) -> Iterator[Any]:
    """A bar on standard error when that is a terminal; nothing else."""
    if not sys.stderr.isatty() or rows < 2:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rows", total=rows)
        yield lambda: bar.advance(task)
