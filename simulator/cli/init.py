"""dtsim init: a commented job file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import note, warn_if_cold, wrote
from simulator.errors import SpecError

__all__ = ["command"]


def command(
    model: Annotated[str, typer.Option("--model", help="A model's name, or a Hugging Face config.json.")] = "llama3_8b",
    cluster: Annotated[str, typer.Option("--cluster", help="A cluster (dtsim list clusters).")] = "dgx_h100",
    gpus: Annotated[int | None, typer.Option("--gpus", help="How many GPUs; default: the cluster's own size.")] = None,
    sequence_length: Annotated[int | None, typer.Option("--sequence-length", help="Tokens per sequence.")] = None,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="File to write; - prints it.")] = "job.toml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented job file that runs as it is: a simple plan that fits the cluster."""
    from simulator.studies.hugging_face import model_from_config
    from simulator.studies.job_file import write_job
    from simulator.units import show

    if sequence_length is not None and sequence_length < 1:
        raise SpecError(f"--sequence-length: expected a whole number above zero, got {sequence_length}")
    path = Path(output)
    if output != "-" and path.exists() and not force:
        raise SpecError(f"{output}: exists already. Way out: --output another file, or --force to overwrite it")
    described = model_from_config(model) if model.lower().endswith(".json") else model
    name = described if isinstance(described, str) else str(described["name"])
    warn_if_cold()
    made = write_job(f"{name} on {cluster}", described, cluster, gpus, sequence_length)
    if output == "-":
        print(made.text, end="")
        return
    path.write_text(made.text, encoding="utf-8")
    wrote(path)
    p = made.prediction
    note(
        f"{show(p.step_time, 's')} per step, {show(p.peak_memory, 'B')} of {show(p.capacity, 'B')} on the fullest rank"
        f"{'' if p.fits else ': does NOT fit'}. Next: dtsim run {output}"
    )
