"""dtsim goodput: a whole run on top of simulated steps."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import (
    ClusterOption,
    ForceOption,
    JobArgument,
    JsonOption,
    ModelOption,
    SetOption,
    TableOption,
    quantity,
    read_job,
    with_plan_of_run,
)
from simulator.cli.output import (
    HTML,
    INTERRUPTED,
    check_ending,
    claim_table,
    note,
    print_answer,
    save_table,
    tell_compiling,
    wrote,
)
from simulator.errors import SpecError
from simulator.report.picture import check_picture

__all__ = ["command"]


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    tokens: Annotated[str | None, typer.Option(metavar="N", help="Tokens to train on, such as 15T.")] = None,
    days: Annotated[float | None, typer.Option(metavar="N", help="Instead: days of wall time (default 30).")] = None,
    samples: Annotated[int, typer.Option(metavar="S", help="Runs to simulate.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="K", help="Of the failures; the same seed, the same runs.")] = 0,
    levers: Annotated[bool, typer.Option("--levers/--no-levers", help="Try what single changes would buy.")] = True,
    plot: Annotated[
        str | None, typer.Option(metavar="OUT.png", help="Draw the middle run, where time goes, and the levers.")
    ] = None,
    report: Annotated[
        str | None, typer.Option(metavar="OUT.html", help="Write a page with tables and picture.")
    ] = None,
    output: TableOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate a whole run: days, goodput, failures, GPU-hours, price, energy. Failures are those of the job's [reliability]."""
    from simulator.goodput.study import goodput
    from simulator.units import parse

    if tokens is not None and days is not None:
        raise SpecError("--tokens and --days both say when a run ends: give one of them")
    check_ending("page", report, *HTML)
    claim_table(force, output, plot, report)
    check_picture(plot)
    the_job = read_job(job, model, cluster, settings, neighbours=True)
    wanted = None if tokens is None else quantity("--tokens", tokens, "tokens")
    span = None if days is None else days * parse("1 d", "s")
    tell_compiling()
    the_job = with_plan_of_run(the_job, job, model, cluster)
    found = goodput(the_job, wanted, span, samples, seed, levers, note)
    save_table(found, output)
    if plot:
        from simulator.goodput.picture import plot_goodput

        wrote(plot_goodput(found, plot))
    if report:
        from simulator.goodput.picture import write_goodput_page

        wrote(write_goodput_page(found, report))
    print_answer(found, "goodput", as_json)
    if found.stopped:
        note(f"stopped after {len(found.runs):,} of {samples:,} runs; the answer is of these")
        raise typer.Exit(INTERRUPTED)
