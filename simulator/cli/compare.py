"""dtsim compare: several settings of one job side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import (
    ClusterOption,
    EngineOption,
    JobArgument,
    JsonOption,
    ModelOption,
    numbers,
    read_job,
    words,
)
from simulator.cli.output import print_json, print_sections, warn_if_cold, wrote

__all__ = ["command"]


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    schedule: Annotated[str | None, typer.Option(metavar="A,B,...", help="Schedules, such as gpipe,1f1b.")] = None,
    zero: Annotated[str | None, typer.Option(metavar="0,1,...", help="ZeRO stages.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=A,B,C", help="Values of any setting; one alone holds for all rows."),
    ] = None,
    engine: EngineOption = "compiled",
    plot: Annotated[
        str | None, typer.Option(metavar="OUT.png", help="Draw time, bubble and memory side by side.")
    ] = None,
    timelines: Annotated[
        str | None, typer.Option(metavar="OUT.png", help="Draw the timelines below one another.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put schedules, ZeRO stages or any setting side by side: one table, one picture. Rows that cannot be say why."""
    from simulator.studies.comparison import compare, variants

    if job is None or model or cluster:
        read_job(job, model, cluster, None)
    asked = variants(words("--schedule", schedule), numbers("--zero", zero), settings or ())
    warn_if_cold()
    comparison = compare(job, asked, model=model, cluster=cluster, engine=engine)
    if plot:
        from simulator.report.comparison_plot import plot_comparison

        wrote(plot_comparison(comparison.predicted, plot, comparison.name))
    if timelines:
        from simulator.report.plots import plot_timelines

        wrote(plot_timelines([(name, p.program, p.trace) for name, p in comparison.predicted], timelines))
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_sections(comparison.sections())
