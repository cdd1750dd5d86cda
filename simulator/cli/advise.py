"""dtsim advise: which way to train in parallel suits a model and a machine, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from simulator.cli.options import ClusterOption, JobArgument, JsonOption, ModelOption, SetOption, quantity, read_job
from simulator.cli.output import print_answer, tell_compiling, telling
from simulator.errors import SpecError

__all__ = ["command"]


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    network: Annotated[
        str | None, typer.Option(metavar="B", help="Bandwidth of each node's network instead of its own: '10 Gb/s'.")
    ] = None,
    fit_probability: Annotated[
        float,
        typer.Option("--fit-probability", metavar="P", help="With which a plan must fit; 0 = the point estimate."),
    ] = 0.9,
    as_json: JsonOption = False,
) -> None:
    """Try every family of plans - data parallel, ZeRO, tensor, pipeline, all three, offload - and say which to take and why."""
    from simulator.studies.guide import advise, with_network

    if not 0 <= fit_probability <= 1:
        raise SpecError(f"--fit-probability lies between 0 (the point estimate) and 1, got {fit_probability:g}")
    the_job = read_job(job, model, cluster, settings)
    if network is not None:
        if the_job.cluster.network is None:
            raise SpecError(f"--network: cluster {the_job.cluster.name!r} has no network between its nodes")
        the_job = replace(the_job, cluster=with_network(the_job.cluster, quantity("--network", network, "B/s")))
    tell_compiling()
    with telling() as tell:
        guide = advise(the_job, fit_probability, tell)
    print_answer(guide, "advise", as_json)
