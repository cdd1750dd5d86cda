"""dtsim layout: what a layout of named dimensions on a mesh makes of a model, operation by operation."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, words
from simulator.cli.output import claim, print_json, print_sections, wrote
from simulator.errors import SpecError

__all__ = ["command"]


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, its file, or a config.json.")],
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="NAME=N,NAME=N", help="Axes of the mesh and their ranks.")
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="DIM=NAME",
            help="Lay a dimension (batch, sequence, heads, ffn, ...) on an axis; or that of one tensor: TENSOR.DIM=NAME. Repeatable.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", metavar="FILE|NAME", help="A layout's TOML file, or a strategy (megatron, summa_2d, ...)."
        ),
    ] = None,
    propagate: Annotated[
        bool, typer.Option("--propagate", help="Maps annotate weights and token ids only; all else follows.")
    ] = False,
    choose: Annotated[
        bool,
        typer.Option(
            "--choose", help="Maps annotate likewise; each operation then divides what has to be moved least for it."
        ),
    ] = False,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Sequences; default: one for every part of the batch.")
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option("--sequence", metavar="N", help="Tokens of a sequence; default: the model's, at most 8,192."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="C", help="Add seconds on this cluster (dtsim list clusters).")
    ] = None,
    compare: Annotated[
        str | None, typer.Option("--compare", metavar="A,B", help="Layouts (files, strategies) side by side.")
    ] = None,
    sbp: Annotated[bool, typer.Option("--sbp", help="Say how operands lie in OneFlow's words: S(i), B, P.")] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="OUT.png", help="Draw which part of every tensor a rank has.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Derive what a layout makes of a model: local shapes, collectives with their bytes, seconds."""
    from simulator.studies.layout_question import answer_layout, read_layout
    from simulator.studies.layout_text import comparison, sections

    if compare is not None and (layout or plot or sbp):
        raise SpecError(
            "--compare puts layouts side by side and takes neither --layout, --plot nor --sbp: ask for one of them alone"
        )
    if choose and (propagate or compare is not None):
        raise SpecError(
            "--choose stands beside what --propagate finds from the same maps, and takes neither --propagate nor --compare: ask for one"
        )
    names = words("--compare", compare) if compare is not None else [layout]
    if compare is not None and len(names) < 2:
        raise SpecError(f"--compare: expected two layouts or more, such as one.toml,two.toml, got {compare[:80]!r}")
    claim(force, plot)
    asked = [read_layout(name, mesh, maps or ()) for name in names]
    found = [answer_layout(model, one, propagate, batch, sequence, cluster, choose) for one in asked]
    if plot:
        from simulator.studies.layout_picture import draw_layout

        draw_layout(found[0], plot)
    if compare is not None:
        if as_json:
            print_json({"model": found[0].model, "layouts": [one.to_dict() for one in found]}, "layouts")
        else:
            print_sections(comparison(found))
    elif as_json:
        print_json(found[0].to_dict(), "layout")
    else:
        print_sections(sections(found[0], sbp))
    if plot:
        wrote(plot)
