"""dtsim schedule auto: an order found for given times and a memory limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cli.output import json_text, tell_compiling, wrote
from simulator.errors import SpecError
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.schedules.base import Shape
    from simulator.studies.automatic_schedule import AutomaticSchedule

__all__ = ["show_automatic"]


def show_automatic(
    shape: Shape,
    *,
    forward: float,
    input_grad: float,
    weight_grad: float,
    transfer: float,
    memory_limit: float | None,
    form: str,
    output: str | None,
    engine: str,
) -> None:
    """Find an order and print or write it.

    Raises:
        PlanError: a time or the limit is out of range.
        SpecError: a format that an order without a name has no file for.
    """
    from simulator.studies.automatic_schedule import automatic_schedule

    if form == "torch-csv-comms":
        raise SpecError(
            "an automatic order is written as compute actions: use --format torch-csv; PyTorch adds the rest"
        )
    tell_compiling()
    found = automatic_schedule(shape, forward, input_grad, weight_grad, transfer, memory_limit, engine)
    if form == "png":
        from simulator.report.plots import plot_timelines

        title = f"auto, {shape.ranks} ranks, {shape.microbatches} microbatches"
        wrote(plot_timelines([(title, found.program, found.trace)], output or "schedule.png"))
        return
    text = _text(found, form)
    if output:
        write_text(output, text + "\n")
        wrote(output)
    else:
        print(text)


def _text(found: AutomaticSchedule, form: str) -> str:
    from simulator import __version__

    if form == "json":
        return json_text(found.to_dict() | {"provenance": {"version": __version__, "engine": found.trace.engine}})
    if form == "torch-csv":
        return found.order.to_text(torch=True).rstrip("\n")
    from simulator.report.table import percent
    from simulator.report.timeline import render_timeline

    peaks = ", ".join(f"{peak:g}" for peak in found.peak_activations)
    return (
        f"{render_timeline(found.program, found.trace)}\n\n"
        f"auto: makespan {found.makespan:g}, bubble {percent(found.bubble_fraction)} of the time (idle / busy "
        f"{found.bubble_overhead:.3f}); at most {percent(found.gap)} above the best possible ({found.lower_bound:g} or more)\n"
        f"peak activations per rank (microbatches on one rank's share): {peaks}; limit {found.memory_limit:g}\n"
        f"found by: {found.policy}"
    )
