"""dtsim schedule: a pipeline schedule alone, or several side by side, in abstract time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli import completion
from simulator.cli.options import ForceOption, JsonOption, run_own_schedules, words
from simulator.cli.output import (
    check_some,
    claim,
    claim_table,
    json_text,
    line_width,
    save_table,
    tell_compiling,
    wrote,
)
from simulator.errors import PlanError, SpecError, UnknownNameError
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.program.program import Program
    from simulator.program.trace import Trace
    from simulator.report.frames import Tabular
    from simulator.schedules.base import Shape
    from simulator.studies.schedule_figures import ScheduleFigures, Times
    from simulator.studies.schedule_table import ScheduleTable

__all__ = ["FORMATS", "command"]

FORMATS = ("ascii", "json", "torch-csv", "torch-csv-comms", "png", "table", "actions")
"""What `--format` takes."""
_MOST_PICTURES = 4
"""Timelines that are printed below a table."""


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[,NAME...]",
            help="Schedules (dtsim list schedules), auto or all; or your own order FILE.csv, your own code FILE.py.",
            autocompletion=completion.schedules,
        ),
    ],
    ranks: Annotated[int | None, typer.Option("-p", "--ranks", help="Pipeline ranks (a file has its own).")] = None,
    microbatches: Annotated[int | None, typer.Option("-m", "--microbatches", help="Microbatches of one step.")] = None,
    chunks: Annotated[int | None, typer.Option("-v", "--chunks", help="Chunks per rank. [the fewest]")] = None,
    forward: Annotated[str, typer.Option(metavar="T[,T,...]", help="Time of a forward; one, or one per rank.")] = "1",
    backward: Annotated[
        str | None,
        typer.Option(metavar="T[,T,...]", help="Time of a whole backward: half input, half weight. [2]"),
    ] = None,
    input_grad: Annotated[
        str | None, typer.Option(metavar="T[,T,...]", help="Time of the input half of a backward.")
    ] = None,
    weight_grad: Annotated[str | None, typer.Option(metavar="T[,T,...]", help="Time of the weight half.")] = None,
    transfer: Annotated[float, typer.Option(help="Time of a message between ranks.")] = 0.0,
    latencies: Annotated[
        str | None,
        typer.Option("--latency-sweep", metavar="0,0.1,...", help="Instead: the bubble by time of a message."),
    ] = None,
    memory_limit: Annotated[
        float | None, typer.Option("--memory-limit", metavar="UNITS", help="With auto: activations a rank may hold.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "ascii",
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Write to this file (png: schedule.png; table, actions: .csv or .parquet)."
        ),
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="compiled or simpy.")] = "compiled",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a pipeline schedule alone, or several side by side: times are of one microbatch on one rank's whole share.

    NAME auto looks for an order itself, under --memory-limit.  FILE.csv holds one line per rank, cells such as 2F0 (chunk,
    numbered over all ranks, action, microbatch) separated by commas; PyTorch's compute_only and compute_comms files do.  FILE.py holds a
    subclass of simulator.schedules.Schedule and is executed.
    """
    names = words("NAME", name)
    form = _form(form, as_json, latencies is not None or len(names) > 1 or name == "all")
    _claim(form, output, force)
    run_own_schedules(names)
    shape = _shape(names, ranks, microbatches, chunks)
    times = _times(shape.ranks, forward, backward, input_grad, weight_grad)
    if name == "auto":
        _automatic(shape, times, transfer, memory_limit, form, output, engine, latencies is not None)
        return
    if memory_limit is not None:
        raise SpecError("--memory-limit belongs to an automatic order: dtsim schedule auto ...")
    if "auto" in names:
        raise SpecError(
            "auto makes an order for times and a memory limit, not one to compare by name. Ask for it alone"
        )
    if form.startswith("torch-csv"):
        _show(_torch(name, shape, form), output)
        return
    tell_compiling()
    if latencies is not None:
        _sweep(_names(names), shape, times, transfer, latencies, form, output)
    elif len(names) > 1 or name == "all":
        from simulator.studies.schedule_table import schedule_table

        table = schedule_table(_names(names), shape, *times, transfer=transfer, engine=engine)
        check_some(len(table.figures), [reason for _, reason in table.refused], "schedules")
        runs = [(_title(one), one.program, one.trace) for one in table.figures]
        _give(table, _side_by_side(table) if form == "ascii" else "", runs, form, output, engine, "schedules")
    else:
        from simulator.studies.schedule_figures import schedule_figures

        sizes = (shape.ranks, shape.microbatches, shape.chunks_per_rank)
        f, i, w = times
        one = schedule_figures(name, *sizes, forward=f, input_grad=i, weight_grad=w, transfer=transfer, engine=engine)
        _give(one, _picture(one), [(_title(one), one.program, one.trace)], form, output, engine)


def _form(form: str, as_json: bool, several: bool) -> str:
    """The format asked for, by either option."""
    if form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    if as_json and form not in ("ascii", "json"):
        raise SpecError(f"--json is --format json, but --format {form} came with it. Leave one out")
    if several and form.startswith("torch-csv"):
        raise SpecError(f"--format {form} is a file of one schedule, but several were asked for, or a sweep")
    return "json" if as_json else form


def _claim(form: str, output: str | None, force: bool) -> None:
    if form in ("table", "actions"):
        if output is None:
            raise SpecError(f"--format {form} writes a file: give --output OUT.csv or OUT.parquet")
        claim_table(force, output)
    else:
        claim(force, output or ("schedule.png" if form == "png" else None))


def _names(asked: list[str]) -> list[str]:
    """The schedules asked for; `all` is every one that is known."""
    if asked != ["all"]:
        return asked
    from simulator.schedules import SCHEDULES

    return [schedule.name for schedule in SCHEDULES]


def _title(figures: ScheduleFigures) -> str:
    chunks = f", {figures.shape.chunks_per_rank} chunks per rank" if figures.shape.chunks_per_rank > 1 else ""
    return f"{figures.schedule}, {_size(figures.shape)}{chunks}"


def _size(shape: Shape) -> str:
    ranks = "1 rank" if shape.ranks == 1 else f"{shape.ranks} ranks"
    return f"{ranks}, 1 microbatch" if shape.microbatches == 1 else f"{ranks}, {shape.microbatches} microbatches"


def _give(
    answer: Tabular,
    text: str,
    runs: list[tuple[str, Program, Trace]],
    form: str,
    output: str | None,
    engine: str,
    kind: str = "schedule",
) -> None:
    """Print or write an answer in the format asked for."""
    if form == "png":
        from simulator.report.abstract_plot import plot_abstract

        wrote(plot_abstract(runs, output or "schedule.png"))
    elif form in ("table", "actions"):
        save_table(answer, output, "actions" if form == "actions" else None)
    elif form == "json":
        from simulator import __version__

        provenance = {"version": __version__, "engine": engine}
        _show(json_text(answer.to_dict() | {"provenance": provenance}, kind), output)
    else:
        _show(text, output)


def _automatic(
    shape: Shape,
    times: tuple[Times, Times, Times],
    transfer: float,
    memory_limit: float | None,
    form: str,
    output: str | None,
    engine: str,
    sweeps: bool,
) -> None:
    """Find an order and give it."""
    from simulator.cli.schedule_auto import automatic_text, check_automatic_form
    from simulator.studies.automatic_schedule import automatic_schedule

    check_automatic_form(form)
    if sweeps:
        raise SpecError("--latency-sweep compares schedules by name; auto makes another order for every latency")
    tell_compiling()
    found = automatic_schedule(shape, *times, transfer, memory_limit, engine)
    title = f"auto, {_size(shape)}"
    if form == "torch-csv":
        _show(found.order.to_text(torch=True).rstrip("\n"), output)
    else:
        _give(found, automatic_text(found), [(title, found.program, found.trace)], form, output, engine)


def _sweep(
    names: list[str],
    shape: Shape,
    times: tuple[Times, Times, Times],
    transfer: float,
    latencies: str,
    form: str,
    output: str | None,
) -> None:
    """The bubble of schedules by the time of a message."""
    from simulator.cli.compare import draw_sweep, latency_points
    from simulator.report.table import render_sections
    from simulator.studies.latency_sweep import latency_sweep

    f, i, w = times
    if transfer:
        raise SpecError("--latency-sweep gives the times of a message, and --transfer another one. Leave one out")
    points = latency_points(words("--latency-sweep", latencies))
    sweep = latency_sweep(names, shape, points, forward=f, input_grad=i, weight_grad=w)
    if form == "actions":
        raise SpecError("--format actions lists the actions of schedules, but a sweep times many. Use --format table")
    if form == "png":
        wrote(draw_sweep(sweep, output or "schedule.png"))
    else:
        text = render_sections(sweep.sections(), width=line_width()) if form == "ascii" else ""
        _give(sweep, text, [], form, output, "compiled", "latency_sweep")


def _side_by_side(table: ScheduleTable) -> str:
    """The table, and the timelines of a few."""
    from simulator.report.table import render_sections
    from simulator.report.timeline import render_timeline

    text = render_sections(table.sections(), width=line_width())
    if len(table.figures) > _MOST_PICTURES:
        return text
    return text + "".join(f"\n\n{one.schedule}\n{render_timeline(one.program, one.trace)}" for one in table.figures)


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


def _times(
    ranks: int, forward: str, backward: str | None, input_grad: str | None, weight_grad: str | None
) -> tuple[Times, Times, Times]:
    """Return the times of a forward and of both halves of a backward, each one number or one per rank."""
    from simulator.studies.schedule_figures import check_times

    if backward is not None and (input_grad is not None or weight_grad is not None):
        raise SpecError(
            "a backward is given whole or in halves, but --backward came with --input-grad or --weight-grad. Leave one out"
        )
    first = _time("--forward", forward, ranks)
    if input_grad is None and weight_grad is None:
        whole = _time("--backward", "2" if backward is None else backward, ranks)
        check_times({"backward": whole})
        half = whole / 2 if isinstance(whole, float) else [value / 2 for value in whole]
        return first, half, half
    return (
        first,
        1.0 if input_grad is None else _time("--input-grad", input_grad, ranks),
        1.0 if weight_grad is None else _time("--weight-grad", weight_grad, ranks),
    )


def _time(option: str, text: str, ranks: int) -> Times:
    try:
        values = [float(word) for word in words(option, text)]
    except ValueError:
        raise SpecError(f"{option}: expected a number, or one per rank such as 1,1.2,1,1, got {text[:80]!r}") from None
    if len(values) not in (1, ranks):
        raise SpecError(f"{option}: one time, or one per rank; got {len(values)} for {ranks} ranks")
    return values if len(values) > 1 else values[0]


def _shape(names: list[str], ranks: int | None, microbatches: int | None, chunks: int | None) -> Shape:
    """Return the shape that the options name, or the one of the file; a schedule alone has the chunks that it needs."""
    from simulator.schedules import SCHEDULES
    from simulator.schedules.base import Shape
    from simulator.schedules.own_schedule import is_order_file, read_schedule
    from simulator.studies.changes import chunks_for
    from simulator.studies.sizes import check_actions

    name = names[0]
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
    check_actions(ranks, microbatches, chunks or 1)
    if chunks is None and names == [name] and name in SCHEDULES:
        chunks = chunks_for(SCHEDULES.get(name), Shape(ranks, microbatches, 1))
    return Shape(ranks, microbatches, 1 if chunks is None else chunks)


_SYMBOLS = (
    "digits: forwards by the last digit of their microbatch; letters: backwards, a of microbatch 0, capitals: weight halves; "
    "# two as one; . idle"
)
"""What a character of a picture is (see `report.timeline`)."""


def _picture(figures: ScheduleFigures) -> str:
    from simulator.report.table import percent
    from simulator.report.timeline import render_timeline

    peaks = ", ".join(f"{peak:g}" for peak in figures.peak_activations)
    picture = render_timeline(figures.program, figures.trace)
    idle = f"bubble {percent(figures.bubble_fraction)} of the time (idle / busy {figures.bubble_overhead:.3f})"
    return (
        f"{picture}\n{_SYMBOLS}\n\n"
        f"{figures.schedule}: makespan {figures.makespan:g}, {idle}, {figures.messages:g} messages\n"
        f"peak activations per rank (microbatches on one rank's share): {peaks}"
    )
