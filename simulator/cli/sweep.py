"""dtsim sweep: every point of a study, on this machine's processes or a cluster's, with results that outlive a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, TableOption
from simulator.cli.output import INTERRUPTED, check_some, claim_table, print_answer, save_table, telling, wrote
from simulator.errors import SpecError
from simulator.report.picture import check_picture

__all__ = ["command"]


def command(
    study: Annotated[str, typer.Argument(metavar="STUDY.toml", help="A job, and the values that its settings take.")],
    resume: Annotated[bool, typer.Option("--resume", help="Take over the results that are there.")] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="tcp://HOST:PORT", help="Workers of dask.distributed; pip install 'dtsim[cluster]'."),
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Of this machine; default: one for each of its cores.")] = None,
    output: TableOption = None,
    plot: Annotated[str | None, typer.Option(metavar="OUT.png", help="Draw step time over the first setting.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Simulate every combination of a study's values. Results are kept point by point: --resume goes on where a kill left off."""
    from simulator.studies.crew import cluster_crew, local_crew
    from simulator.studies.journal import Journal
    from simulator.studies.study_file import load_study
    from simulator.studies.sweep import run_sweep

    if scheduler is not None and processes is not None:
        raise SpecError("--scheduler names workers elsewhere, --processes those of this machine. Give one of them")
    the_study = load_study(study)
    path = Path(output or Path(study).with_suffix(".csv").name)
    results = path.with_suffix(".results.jsonl")
    if results.exists() and not (resume or force):
        raise SpecError(f"{results}: results are there already. Way out: --resume takes them over, --force drops them")
    claim_table(force or resume, str(path), plot)
    check_picture(plot)
    wanted = len(os.sched_getaffinity(0)) if processes is None else processes
    crew = cluster_crew(scheduler) if scheduler else local_crew(wanted, the_study.size)
    with Journal(results, fresh=force and not resume) as journal:
        with telling(steady=True) as tell:
            found = run_sweep(the_study, journal, crew, tell)
        if found.counts:
            save_table(found, str(path))
        if plot and (found.counts.get("ok") or not found.stopped):
            from simulator.report.sweep_plot import plot_sweep

            wrote(plot_sweep(found.records(), [field for field, _ in the_study.vary], plot, the_study.name))
        refused = found.counts.get("refused", 0) if not found.stopped else 0
        check_some(the_study.size - refused, (str(row["reason"]) for row in found.records()), "points")
        print_answer(found, "sweep", as_json)
    if found.stopped:
        raise typer.Exit(INTERRUPTED)
