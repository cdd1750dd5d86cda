"""dtsim schedule: a pipeline schedule alone, in abstract time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.output import json_text, warn_if_cold, wrote
from simulator.errors import PlanError, SpecError, UnknownNameError

if TYPE_CHECKING:
    from simulator.studies.schedule_figures import ScheduleFigures

__all__ = ["FORMATS", "command"]

FORMATS = ("ascii", "json", "torch-csv", "png")
"""What `--format` takes."""
_COMMS = (
    "torch-csv-comms lists sends and receives beside the compute; this version writes only the compute orders. "
    "Use --format torch-csv: PyTorch adds the communication itself when it loads a compute_only file"
)


def command(
    name: Annotated[str, typer.Argument(help="A schedule (dtsim list schedules).")],
    ranks: Annotated[int, typer.Option("-p", "--ranks", help="Pipeline ranks.")],
    microbatches: Annotated[int, typer.Option("-m", "--microbatches", help="Microbatches of one step.")],
    chunks: Annotated[int, typer.Option("-v", "--chunks", help="Chunks per rank.")] = 1,
    forward: Annotated[float, typer.Option(help="Time of a forward.")] = 1.0,
    backward: Annotated[
        float | None, typer.Option(help="Time of a whole backward: half input, half weight. [2]")
    ] = None,
    input_grad: Annotated[float | None, typer.Option(help="Time of the input half of a backward.")] = None,
    weight_grad: Annotated[float | None, typer.Option(help="Time of the weight half.")] = None,
    transfer: Annotated[float, typer.Option(help="Time of a message between ranks.")] = 0.0,
    form: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "ascii",
    output: Annotated[str | None, typer.Option("--output", help="Write to this file (png: schedule.png).")] = None,
    engine: Annotated[str, typer.Option("--engine", help="compiled or simpy.")] = "compiled",
) -> None:
    """Show a pipeline schedule alone: times are of one microbatch on one rank's whole share."""
    from simulator.studies.schedule_figures import schedule_figures

    _check_format(form)
    halves = _halves(backward, input_grad, weight_grad)
    _check_size(ranks, microbatches, chunks)
    warn_if_cold(["report/memory_kernel"])
    figures = schedule_figures(
        name,
        ranks,
        microbatches,
        chunks,
        forward=forward,
        input_grad=halves[0],
        weight_grad=halves[1],
        transfer=transfer,
        engine=engine,
    )
    if form == "png":
        from simulator.report.plots import plot_timelines

        title = f"{figures.schedule}, {ranks} ranks, {microbatches} microbatches"
        wrote(plot_timelines([(title, figures.program, figures.trace)], output or "schedule.png"))
    elif output:
        Path(output).write_text(_text(figures, form) + "\n", encoding="utf-8")
        wrote(output)
    else:
        print(_text(figures, form))


def _check_format(form: str) -> None:
    if form == "torch-csv-comms":
        raise SpecError(_COMMS)
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)


def _halves(backward: float | None, input_grad: float | None, weight_grad: float | None) -> tuple[float, float]:
    """Return the times of the input and the weight half of a backward."""
    if backward is not None and (input_grad is not None or weight_grad is not None):
        raise SpecError(
            "a backward is given whole or in halves, but --backward came with --input-grad or --weight-grad. Leave one out"
        )
    if input_grad is None and weight_grad is None:
        whole = 2.0 if backward is None else backward
        return whole / 2, whole / 2
    return (1.0 if input_grad is None else input_grad), (1.0 if weight_grad is None else weight_grad)


def _check_size(ranks: int, microbatches: int, chunks: int) -> None:
    from simulator.studies.sizes import MOST_SCHEDULE_ACTIONS

    actions = 2 * max(ranks, 1) * max(microbatches, 1) * max(chunks, 1)
    if actions > MOST_SCHEDULE_ACTIONS:
        raise PlanError(
            f"a schedule may have at most {MOST_SCHEDULE_ACTIONS} actions, but 2 x {ranks} ranks x {microbatches} "
            f"microbatches x {chunks} chunks = {actions}. Use fewer of them"
        )


def _answer(figures: ScheduleFigures) -> dict[str, object]:
    from simulator import __version__

    return figures.to_dict() | {"provenance": {"version": __version__, "engine": figures.trace.engine}}


def _text(figures: ScheduleFigures, form: str) -> str:
    if form == "torch-csv":
        return figures.order.to_text().rstrip("\n")
    if form == "json":
        return json_text(_answer(figures))
    from simulator.report.timeline import render_timeline

    peaks = ", ".join(f"{peak:g}" for peak in figures.peak_activations)
    picture = render_timeline(figures.program, figures.trace)
    return (
        f"{picture}\n\n{figures.schedule}: makespan {figures.makespan:g}, bubble {figures.bubble_fraction:.1%} of the time "
        f"(idle / busy {figures.bubble_overhead:.3f}), {figures.messages:g} messages\n"
        f"peak activations per rank (microbatches on one rank's share): {peaks}"
    )
