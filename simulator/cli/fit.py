"""dtsim fit: the fewest GPUs, or the largest batch, sequence or model that fits."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, SetOption, read_job
from simulator.cli.output import check_job_file, claim, print_answer, tell_compiling, telling, wrote
from simulator.errors import SpecError
from simulator.specs import write_text

__all__ = ["command"]


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, or its config.json.")],
    cluster: Annotated[str, typer.Option("--cluster", metavar="C", help="A cluster (dtsim list clusters).")],
    fewest: Annotated[str | None, typer.Option(metavar="gpus", help="On how few GPUs of the cluster it fits.")] = None,
    largest: Annotated[
        str | None, typer.Option(metavar="batch|sequence|layers|model", help="How much of it fits.")
    ] = None,
    settings: SetOption = None,
    ranges: Annotated[
        list[str] | None, typer.Option("--range", metavar="FIELD=V,V,...", help="As for dtsim search.")
    ] = None,
    fixed: Annotated[list[str] | None, typer.Option("--fix", metavar="FIELD=V", help="As for dtsim search.")] = None,
    fit_probability: Annotated[
        float,
        typer.Option("--fit-probability", metavar="P", help="With which a plan must fit; 0 = the point estimate."),
    ] = 0.9,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="JOB.toml", help="Write the answer as a job.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say on how few GPUs a model fits, or how large a batch, sequence or model does, and with which plan."""
    from simulator.search.fit import fewest_gpus
    from simulator.search.fit import largest as largest_of
    from simulator.search.space import read_ranges

    if (fewest is None) == (largest is None):
        raise SpecError("dtsim fit answers one question: --fewest gpus, or --largest batch|sequence|layers|model")
    if fewest not in (None, "gpus"):
        raise SpecError(f"--fewest: expected gpus, got {fewest[:40]!r}")
    if not 0 <= fit_probability <= 1:
        raise SpecError(f"--fit-probability lies between 0 (the point estimate) and 1, got {fit_probability:g}")
    claim(force, output)
    check_job_file(output)
    job = read_job(None, model, cluster, settings)
    asked, held = read_ranges(ranges or ()), read_ranges(fixed or (), "--fix")
    tell_compiling()
    with telling() as tell:
        if largest is None:
            found = fewest_gpus(job, asked, held, fit_probability, tell)
        else:
            found = largest_of(job, largest, asked, held, fit_probability, tell)
    if output and found.job is not None and found.plan is not None:
        from simulator.search.job_text import job_text

        write_text(output, job_text(found.job, found.plan.settings))
        wrote(output)
    print_answer(found, "fit", as_json)
    if output and found.plan is None:
        raise SpecError(f"{output}: not written, since nothing fits. Way out: --range with more choices")
