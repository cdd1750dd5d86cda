"""dtsim collective: the time of one collective on a cluster, at one size or over many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, TableOption, cluster_changes, quantity, words
from simulator.cli.output import claim_table, print_json, print_sections, save_table, wrote
from simulator.errors import SpecError
from simulator.report.picture import check_picture

if TYPE_CHECKING:
    from simulator.studies.collective_figures import CollectiveFigures

__all__ = ["command"]


def command(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="all_reduce, all_gather, reduce_scatter, all_to_all, ...")
    ],
    cluster: Annotated[str, typer.Option("--cluster", metavar="C", help="A cluster (dtsim list clusters).")],
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks that take part.")],
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE[,...]", help="Largest buffer of a rank, such as 1GiB; or several."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="FROM:TO", help="A table, each size twice the last: 1KiB:1GiB.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Nodes they lie on; default: as few as hold them.")
    ] = None,
    groups: Annotated[
        int, typer.Option("--groups", min=1, help="Such groups, side by side in every node, that run at the same time.")
    ] = 1,
    algorithm: Annotated[str, typer.Option("--algorithm", help="auto, ring, tree, ...")] = "auto",
    protocol: Annotated[str, typer.Option("--protocol", help="auto, ll, ll128 or simple.")] = "auto",
    servers: Annotated[
        int | None,
        typer.Option(
            "--servers",
            min=0,
            help="Machines without GPUs that add up; of byteps, parameter_server, parameter_server_dedicated.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option("--backend", help="nccl (the vendor's library) or gloo.")] = "nccl",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="cluster.KEY=VALUE",
            help="Change what the cluster is made of, e.g. cluster.nics=4. Repeatable.",
        ),
    ] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="OUT.png", help="Draw time and bandwidth over sizes.")
    ] = None,
    output: TableOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Time one collective: seconds with a band, algorithm and bus bandwidth, and what NCCL would choose."""
    from simulator.report.frames import Stacked
    from simulator.studies.collective_figures import collective_table, table_sections

    claim_table(force, output, plot)
    check_picture(plot)
    messages = _messages(size, sizes)
    changes = cluster_changes(settings or ())
    rows = collective_table(
        kind, messages, cluster, ranks, nodes, algorithm, protocol, groups, backend, servers, changes
    )
    whole = Stacked(tuple(rows))
    save_table(whole, output)
    single = sizes is None and len(rows) == 1
    if plot:
        _plot(rows, plot)
    if as_json:
        print_json(rows[0].to_dict() if single else whole.to_dict(), "collectives")
    else:
        print_sections([rows[0].section()] if single else table_sections(rows))
    if plot:
        wrote(plot)


def _messages(size: str | None, sizes: str | None) -> list[float]:
    from simulator.studies.collective_figures import MOST_SIZES, sizes_between

    if (size is None) == (sizes is None):
        raise SpecError("how large? Give --size 1GiB (or several: --size 1MiB,1GiB), or --sizes 1KiB:1GiB, not both")
    if sizes is None:
        found = [quantity("--size", word, "B") for word in words("--size", size)]
    else:
        ends = sizes.split(":")
        if len(ends) != 2:
            raise SpecError(f"--sizes: expected FROM:TO such as 1KiB:1GiB, got {sizes[:60]!r}")
        found = sizes_between(*(quantity("--sizes", end.strip(), "B") for end in ends))
    if len(found) > MOST_SIZES:
        raise SpecError(f"a table has at most {MOST_SIZES} sizes, got {len(found)}")
    return found


def _plot(rows: list[CollectiveFigures], path: str) -> None:
    from simulator.report.collective_plot import plot_collective

    ordered = sorted(rows, key=lambda row: row.message)
    first = ordered[0]
    plot_collective(
        [row.message for row in ordered],
        [row.time.seconds for row in ordered],
        [row.band for row in ordered],
        [row.bus_bandwidth for row in ordered],
        [f"{row.time.algorithm}, {row.time.protocol}" for row in ordered],
        path,
        f"{first.kind} over {first.place.ranks} ranks of {first.cluster}",
    )
