"""dtsim export: a step in another program's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import (
    ClusterOption,
    ForceOption,
    JobArgument,
    ModelOption,
    SetOption,
    read_job,
    with_plan_of_run,
)
from simulator.cli.output import TRACE, check_ending, claim, note, tell_compiling, wrote
from simulator.errors import SpecError, UnknownNameError
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.job import Job

__all__ = ["FORMS", "command"]

FORMS = {
    "chakra": "step",
    "chrome": "step.json.gz",
    "torch-csv": "-",
    "torch-csv-comms": "-",
    "megatron": "-",
    "torchtitan": "-",
    "deepspeed": "-",
}
"""What can be written, and to which file where none is named; - is standard output."""


_ANY_STAGES = ("chrome",)
"""What can be written where stages have ranks of their own."""


def command(
    form: Annotated[str, typer.Argument(metavar="FORM", help=" | ".join(FORMS))],
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="The file to write; - prints it.")] = None,
    force: ForceOption = False,
) -> None:
    """Write a step as Chakra traces (ASTRA-sim) or a Chrome trace (ui.perfetto.dev), its pipeline order for
    torch.distributed.pipelining, or its settings for a training framework.
    """
    if form not in FORMS:
        raise UnknownNameError("form to export", form, FORMS)
    path = output or FORMS[form]
    if form == "chrome":
        check_ending("trace", path, *TRACE)
    if form == "chakra" and path == "-":
        raise SpecError(
            "Chakra traces are a file for each GPU, but --output is -. Way out: --output DIR/NAME, of which each name begins"
        )
    claim(force, path)
    named = read_job(job, model, cluster, settings)
    the_job = with_plan_of_run(named, job, model, cluster)
    for assumption in the_job.assumptions[len(named.assumptions) :]:
        note(assumption)
    if form not in _ANY_STAGES:
        from simulator.job import check_equal_stages

        check_equal_stages(the_job, f"{form} is written for")
    if form in ("chrome", "chakra"):
        (_write_chrome if form == "chrome" else _write_chakra)(the_job, path)
        return
    text = (
        _torch(the_job, comms=form == "torch-csv-comms") if form.startswith("torch-csv") else _settings(the_job, form)
    )
    if path == "-":
        print(text, end="")
    else:
        write_text(path, text)
        wrote(path)


def _settings(job: Job, form: str) -> str:
    """The settings of a training framework; tells what they cannot say."""
    from simulator.importers.written import lost_on_the_way

    text, ending, in_code = _written(job, form)
    if lost := lost_on_the_way(job, text, ending, in_code):
        note(f"read back, it is another plan ({'; '.join(lost)})")
    return text


def _written(job: Job, form: str) -> tuple[str, str, tuple[str, ...]]:
    """(settings, ending of their file, what stands in user code); tells the last."""
    if form == "megatron":
        from simulator.importers.write_megatron import megatron_script

        return megatron_script(job), ".sh", ()
    from simulator.importers.write_others import deepspeed_json, torchtitan_toml

    if form == "torchtitan":
        return torchtitan_toml(job), ".toml", ()
    text, elsewhere = deepspeed_json(job)
    for line in elsewhere:
        note(f"not in this file, but in user code: {line.words}")
    return text, ".json", tuple(setting for line in elsewhere for setting in line.settings)


def _write_chrome(job: Job, path: str) -> None:
    from simulator.report.chrome_trace import write_prediction
    from simulator.simulation import simulate_job

    tell_compiling()
    wrote(write_prediction(simulate_job(job), path))


def _write_chakra(job: Job, prefix: str) -> None:
    """One trace per GPU, and the groups beside them."""
    from simulator.costs.price import price
    from simulator.importers.write_chakra import write_chakra
    from simulator.lowering import lower

    if job.cluster.parts:
        raise SpecError("Chakra traces are written for GPUs that are alike. Leave out cluster.parts")
    program = lower(job.workload, job.plan, job.cluster.world_size)
    made = write_chakra(program, price(program, job.cluster), prefix)
    nodes = ", ".join(f"{count:,} {kind}" for kind, count in made.nodes.items())
    note(f"wrote {len(made.paths) - 1} traces {made.paths[0]} ... and {made.paths[-1].name}: {nodes}")


def _torch(job: Job, comms: bool) -> str:
    from simulator.lowering import resolve_on
    from simulator.schedules.torch_comms import torch_file

    resolved = resolve_on(job.workload, job.plan, job.cluster)
    return torch_file(resolved.schedule, resolved.shape, comms)
