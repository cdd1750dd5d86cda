"""dtsim init: a commented job file to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.options import ForceOption
from simulator.cli.output import claim, note, tell_compiling, wrote
from simulator.errors import SpecError
from simulator.specs import write_text

__all__ = ["command"]


def command(
    model: Annotated[str, typer.Option("--model", help="A model's name, or a Hugging Face config.json.")] = "llama3_8b",
    cluster: Annotated[str, typer.Option("--cluster", help="A cluster (dtsim list clusters).")] = "dgx_h100",
    gpus: Annotated[int | None, typer.Option("--gpus", help="How many GPUs; default: the cluster's own size.")] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", help="Tokens per sequence; default: the model's, at most 8,192.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="File to write; - prints it.")
    ] = "job.toml",
    force: ForceOption = False,
) -> None:
    """Write a commented job file that runs as it is: a simple plan that fits the cluster."""
    from simulator.importers.jobs import is_foreign, model_of
    from simulator.studies.job_file import write_job
    from simulator.units import show

    if sequence_length is not None and sequence_length < 1:
        raise SpecError(f"--sequence-length: expected a whole number above zero, got {sequence_length}")
    path = Path(output)
    claim(force, path)
    described = model_of(model) if model.lower().endswith(".json") or is_foreign(model) else model
    name = described if isinstance(described, str) else str(described["name"])
    tell_compiling()
    made = write_job(f"{name} on {cluster}", described, cluster, gpus, sequence_length)
    if output == "-":
        print(made.text, end="")
        return
    write_text(path, made.text)
    wrote(path)
    p = made.prediction
    run = f"dtsim run {shlex.quote(f'./{output}' if output.startswith('-') else output)}"
    fit = f"dtsim fit {shlex.quote(model)} --cluster {shlex.quote(cluster)} --fewest gpus"
    note(
        f"{show(p.step_time, 's')} per step, {show(p.peak_memory, 'B')} of {show(p.capacity, 'B')} on the fullest rank"
        f"{'' if p.fits else ': does NOT fit'}. Next: {run if p.fits else fit}"
    )
