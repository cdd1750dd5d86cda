"""dtsim collective: the time of one collective on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import JsonOption, quantity
from simulator.cli.output import print_json, print_sections

__all__ = ["command"]


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="all_reduce, all_gather, reduce_scatter, all_to_all, ...")
    ],
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Largest buffer of a rank, such as 1GiB.")],
    cluster: Annotated[str, typer.Option("--cluster", metavar="C", help="A cluster (dtsim list clusters).")],
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks that take part.")],
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Nodes they lie on; default: as few as hold them.")
    ] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", help="auto, ring, tree, ...")] = "auto",
    protocol: Annotated[str, typer.Option("--protocol", help="auto, ll, ll128 or simple.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Time one collective: seconds with a band, algorithm and bus bandwidth, and what NCCL would choose."""
    from simulator.studies.collective_figures import collective_figures

    figures = collective_figures(kind, quantity("--size", size, "B"), cluster, ranks, nodes, algorithm, protocol)
    if as_json:
        print_json(figures.to_dict())
    else:
        print_sections([figures.section()])
