"""dtsim export: a step in another program's form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ClusterOption, JobArgument, ModelOption, SetOption, read_job
from simulator.cli.output import warn_if_cold, wrote
from simulator.errors import SpecError, UnknownNameError

if TYPE_CHECKING:
    from simulator.job import Job

__all__ = ["FORMS", "command"]

FORMS = {"chrome": "step.json.gz", "torch-csv": "-", "torch-csv-comms": "-"}
"""What can be written, and to which file where none is named; - is standard output."""


def command(
    form: Annotated[str, typer.Argument(metavar="FORM", help=" | ".join(FORMS))],
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    output: Annotated[str | None, typer.Option("--output", help="The file to write; - prints a CSV.")] = None,
) -> None:
    """Write a step: its Chrome trace (ui.perfetto.dev), or its pipeline order for torch.distributed.pipelining."""
    if form not in FORMS:
        raise UnknownNameError("form to export", form, FORMS)
    the_job = read_job(job, model, cluster, settings)
    path = output or FORMS[form]
    if form == "chrome":
        _write_chrome(the_job, path)
        return
    text = _torch(the_job, comms=form == "torch-csv-comms")
    if path == "-":
        print(text, end="")
    else:
        Path(path).write_text(text, encoding="utf-8")
        wrote(path)


def _write_chrome(job: Job, path: str) -> None:
    from simulator.report.chrome_trace import export_chrome_trace
    from simulator.simulation import simulate_job

    if path == "-":
        raise SpecError("a Chrome trace goes to a file, but --output is -. Name one that ends in .json or .json.gz")
    warn_if_cold()
    prediction = simulate_job(job)
    wrote(export_chrome_trace(prediction.program, prediction.prices, prediction.trace, path))


def _torch(job: Job, comms: bool) -> str:
    from simulator.lowering import settle
    from simulator.schedules.torch_comms import torch_file

    settled = settle(job.workload, job.plan, job.cluster.world_size, f"cluster {job.cluster.name!r}")
    return torch_file(settled.schedule, settled.shape, comms)
