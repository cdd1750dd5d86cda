"""dtsim layout: what a layout of named dimensions on a mesh makes of a model, operation by operation."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import JsonOption
from simulator.cli.output import print_json, print_sections

__all__ = ["command"]


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, its file, or a config.json.")],
    mesh: Annotated[str, typer.Option("--mesh", metavar="NAME=N,NAME=N", help="Axes of the mesh and their ranks.")],
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="DIM=NAME", help="A dimension lies on this axis: batch, sequence, heads, ffn, ..."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Sequences; default: one for every part of the batch.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", metavar="N", help="Tokens of a sequence; default: the model's.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="C", help="Add seconds on this cluster (dtsim list clusters).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Derive what a layout makes of a model: local shapes, collectives with their bytes, seconds."""
    from simulator.studies.layout_question import answer_layout
    from simulator.studies.layout_text import sections

    found = answer_layout(model, mesh, maps or (), batch, sequence, cluster)
    if as_json:
        print_json(found.to_dict(), "layout")
    else:
        print_sections(sections(found))
