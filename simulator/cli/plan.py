"""dtsim plan: published planners on a graph of costs, each with its gap."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, numbers, quantity, words
from simulator.cli.output import claim, print_answer, wrote

__all__ = ["command"]


def command(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH|MODEL|JOB",
            help="A graph of costs (workloads/graphs), or a file as these are; of meshes and layouts a model; of unlike_replicas a job.",
        ),
    ],
    problem: Annotated[
        str,
        typer.Option(
            "--problem",
            metavar="P",
            help="placement: operators on devices; pipeline: stages with replicas; synchronous: drained every step; "
            "drained: the same, gradients reduced at its end; hybrid: with tensor degrees and recomputation; "
            "meshes: a model on parts of a cluster, drained; layout: a layer; "
            "unlike_replicas: GPUs of several kinds to pipelines, and layers to them.",
        ),
    ] = "placement",
    planner: Annotated[
        str, typer.Option("--planner", metavar="NAME,NAME", help="One or several; all: each that solves the problem.")
    ] = "all",
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices", metavar="N[,N]", help="How many; of a pipeline per level of the network, the lowest first."
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", metavar="B[,B]", help="At which outputs move, such as '1 GB/s'; per level."),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option("--hosts", metavar="N", help="Processors that take operators, too (placement).")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="M", help="Of a device, such as '16 GB' (placement, hybrid, meshes, layout)."),
    ] = None,
    transfers: Annotated[
        bool, typer.Option("--transfers/--no-transfers", help="Whether messages between stages count (pipelines).")
    ] = True,
    microbatches: Annotated[
        int | None,
        typer.Option("--microbatches", metavar="M", help="Of a step (synchronous, drained, hybrid, meshes)."),
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="NAME=N,NAME=N", help="Axes and their ranks (layout).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Sequences: of a step (meshes); default 1 (layout).")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="C", help="Whose GPUs and links (meshes).")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="For each planner.")] = 60.0,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of planners that draw.")] = 0,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="OUT.png", help="Draw cost over evaluations, a line per planner.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let published planners place or cut a graph of costs or a model, or divide a layer, and say how far each is from the best."""
    from simulator.planners.base import Budget
    from simulator.report.picture import check_picture
    from simulator.studies.planning import Asked, chosen_planners, make_problem, plan

    claim(force, plot)
    check_picture(plot)
    asked = Asked(
        devices=tuple(numbers("--devices", devices)),
        bandwidths=tuple(quantity("--bandwidth", word, "B/s") for word in words("--bandwidth", bandwidth)),
        hosts=hosts,
        memory=None if memory is None else quantity("--memory", memory, "B"),
        transfers=transfers,
        microbatches=microbatches,
        mesh=mesh,
        batch=batch,
        cluster=cluster,
    )
    the_problem = make_problem(problem, graph, asked)
    planned = plan(
        graph, the_problem, chosen_planners(words("--planner", planner), the_problem), Budget(seconds=seconds), seed
    )
    if plot:
        from simulator.report.planners_plot import plot_planners

        plot_planners(
            [(one.planner, one.evaluations, one.history) for one in planned.found],
            planned.lower_bound,
            the_problem.unit,
            plot,
            f"{graph}: {the_problem.name}",
            the_problem.objective,
        )
    print_answer(planned, "plan", as_json)
    if plot:
        wrote(plot)
