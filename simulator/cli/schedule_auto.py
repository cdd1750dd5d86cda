"""dtsim schedule auto: an order found for given times and a memory limit, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.errors import SpecError

if TYPE_CHECKING:
    from simulator.studies.automatic_schedule import AutomaticSchedule

__all__ = ["automatic_text", "check_automatic_form"]


def check_automatic_form(form: str) -> None:
    """Refuse a format that an order without a name has no file for.

    Raises:
        SpecError: it is one.
    """
    if form == "torch-csv-comms":
        raise SpecError(
            "an automatic order is written as compute actions: use --format torch-csv; PyTorch adds the rest"
        )


def automatic_text(found: AutomaticSchedule) -> str:
    """Return an order and its figures to read."""
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
