"""dtsim list: what is known, by kind."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import JsonOption
from simulator.cli.output import print_json, print_sections

__all__ = ["command"]


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="models, clusters, schedules, ...; without: all kinds.")
    ] = "kinds",
    as_json: JsonOption = False,
) -> None:
    """List what is known of a kind: models, gpus, links, nodes, clusters, jobs, frameworks, schedules, ..."""
    from simulator.report.table import Section, Table
    from simulator.studies.catalogue import list_kind

    listed = list_kind(kind)
    if as_json:
        print_json({"names": [name for name, _ in listed]}, kind)
        return
    table = Table(headings=("", ""), rows=tuple(listed), left=(0, 1))
    print_sections([Section(title=f"{kind} ({len(listed)})", table=table)])
