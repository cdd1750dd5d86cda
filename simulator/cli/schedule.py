"""dtsim schedule: a pipeline schedule alone, in abstract time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption
from simulator.cli.output import claim, json_text, tell_compiling, wrote
from simulator.errors import PlanError, SpecError, UnknownNameError
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.schedules.base import Shape
    from simulator.studies.schedule_figures import ScheduleFigures

__all__ = ["FORMATS", "command"]

FORMATS = ("ascii", "json", "torch-csv", "torch-csv-comms", "png")
"""What `--format` takes."""


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A schedule (dtsim list schedules), or your own order: FILE.csv.")
    ],
    ranks: Annotated[int | None, typer.Option("-p", "--ranks", help="Pipeline ranks (a file has its own).")] = None,
    microbatches: Annotated[int | None, typer.Option("-m", "--microbatches", help="Microbatches of one step.")] = None,
    chunks: Annotated[int | None, typer.Option("-v", "--chunks", help="Chunks per rank. [1]")] = None,
    forward: Annotated[float, typer.Option(help="Time of a forward.")] = 1.0,
    backward: Annotated[
        float | None, typer.Option(help="Time of a whole backward: half input, half weight. [2]")
    ] = None,
    input_grad: Annotated[float | None, typer.Option(help="Time of the input half of a backward.")] = None,
    weight_grad: Annotated[float | None, typer.Option(help="Time of the weight half.")] = None,
    transfer: Annotated[float, typer.Option(help="Time of a message between ranks.")] = 0.0,
    memory_limit: Annotated[
        float | None, typer.Option("--memory-limit", metavar="UNITS", help="With auto: activations a rank may hold.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "ascii",
    output: Annotated[str | None, typer.Option("--output", help="Write to this file (png: schedule.png).")] = None,
    engine: Annotated[str, typer.Option("--engine", help="compiled or simpy.")] = "compiled",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a pipeline schedule alone: times are of one microbatch on one rank's whole share.

    NAME auto looks for an order itself, under --memory-limit.  FILE.csv holds one line per rank, cells such as 2F0 separated by
    commas; PyTorch's compute_only and compute_comms files do.
    """
    from simulator.studies.schedule_figures import schedule_figures

    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if as_json and form not in ("ascii", "json"):
        raise SpecError(f"--json is --format json, but --format {form} came with it. Leave one out")
    form = "json" if as_json else form
    claim(force, output or ("schedule.png" if form == "png" else None))
    halves = _halves(backward, input_grad, weight_grad)
    shape = _shape(name, ranks, microbatches, chunks)
    if name == "auto":
        from simulator.cli.schedule_auto import show_automatic

        show_automatic(
            shape,
            forward=forward,
            input_grad=halves[0],
            weight_grad=halves[1],
            transfer=transfer,
            memory_limit=memory_limit,
            form=form,
            output=output,
            engine=engine,
        )
        return
    if memory_limit is not None:
        raise SpecError("--memory-limit belongs to an automatic order: dtsim schedule auto ...")
    if form.startswith("torch-csv"):
        _show(_torch(name, shape, form), output)
        return
    tell_compiling()
    figures = schedule_figures(
        name,
        shape.ranks,
        shape.microbatches,
        shape.chunks_per_rank,
        forward=forward,
        input_grad=halves[0],
        weight_grad=halves[1],
        transfer=transfer,
        engine=engine,
    )
    if form == "png":
        from simulator.report.plots import plot_timelines

        title = f"{figures.schedule}, {shape.ranks} ranks, {shape.microbatches} microbatches"
        wrote(plot_timelines([(title, figures.program, figures.trace)], output or "schedule.png"))
    else:
        _show(_text(figures, form), output)


def _show(text: str, output: str | None) -> None:
    if output:
        write_text(output, text + "\n")
        wrote(output)
    else:
        print(text)


def _torch(name: str, shape: Shape, form: str) -> str:
    from simulator.schedules import SCHEDULES
    from simulator.schedules.torch_comms import torch_file

    return torch_file(SCHEDULES.get(name), shape, comms=form == "torch-csv-comms").rstrip("\n")


def _halves(backward: float | None, input_grad: float | None, weight_grad: float | None) -> tuple[float, float]:
    """Return the times of the input and the weight half of a backward."""
    from simulator.studies.schedule_figures import check_times

    if backward is not None and (input_grad is not None or weight_grad is not None):
        raise SpecError(
            "a backward is given whole or in halves, but --backward came with --input-grad or --weight-grad. Leave one out"
        )
    if input_grad is None and weight_grad is None:
        whole = 2.0 if backward is None else backward
        check_times({"backward": whole})
        return whole / 2, whole / 2
    return (1.0 if input_grad is None else input_grad), (1.0 if weight_grad is None else weight_grad)


def _shape(name: str, ranks: int | None, microbatches: int | None, chunks: int | None) -> Shape:
    """Return the shape that the options name, or the one of the file."""
    from simulator.schedules.base import Shape
    from simulator.schedules.own_schedule import is_order_file, read_schedule
    from simulator.studies.sizes import MOST_SCHEDULE_ACTIONS

    if is_order_file(name):
        own = read_schedule(name)[1]
        given = {"ranks": ranks, "microbatches": microbatches, "chunks_per_rank": chunks}
        for what, value in given.items():
            if value not in (None, getattr(own, what)):
                raise PlanError(
                    f"an order from a file has its own shape: {name} has {own}, but {what}={value}. Leave it out"
                )
        return own
    if ranks is None or microbatches is None:
        raise SpecError(
            f"a schedule by name needs -p RANKS and -m MICROBATCHES, but {name!r} came without. Your own order is a file that "
            "ends in .csv and needs neither"
        )
    chunks = 1 if chunks is None else chunks
    actions = 2 * max(ranks, 1) * max(microbatches, 1) * max(chunks, 1)
    if actions > MOST_SCHEDULE_ACTIONS:
        raise PlanError(
            f"a schedule may have at most {MOST_SCHEDULE_ACTIONS} actions, but 2 x {ranks} ranks x {microbatches} "
            f"microbatches x {chunks} chunks = {actions}. Use fewer of them"
        )
    return Shape(ranks, microbatches, chunks)


def _answer(figures: ScheduleFigures) -> dict[str, object]:
    from simulator import __version__

    return figures.to_dict() | {"provenance": {"version": __version__, "engine": figures.trace.engine}}


def _text(figures: ScheduleFigures, form: str) -> str:
    if form == "json":
        return json_text(_answer(figures))
    from simulator.report.table import percent
    from simulator.report.timeline import render_timeline

    peaks = ", ".join(f"{peak:g}" for peak in figures.peak_activations)
    picture = render_timeline(figures.program, figures.trace)
    return (
        f"{picture}\n\n{figures.schedule}: makespan {figures.makespan:g}, bubble {percent(figures.bubble_fraction)} of the time "
        f"(idle / busy {figures.bubble_overhead:.3f}), {figures.messages:g} messages\n"
        f"peak activations per rank (microbatches on one rank's share): {peaks}"
    )
