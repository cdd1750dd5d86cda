"""dtsim import: files of other programs as a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption
from simulator.cli.output import claim, note, print_json, print_sections, tell_compiling, wrote
from simulator.errors import SpecError
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.importers.imported import Findings

__all__ = ["command"]


def command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files of other programs; dtsim list importers.")
    ],
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="C", help="The cluster it runs on.")] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="JOB.toml", help="Write a job file; - prints it.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option("--images", metavar="N", min=1, help="Of import graph: images of the measured minibatch."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read files of other programs; say what is a field of a job, what was assumed, and what was not understood.

    `dtsim import torch FILE.py:BUILD -o model.toml` reads the model that a function of yours makes; this EXECUTES it (extra: torch).
    `dtsim import graph NAME|FILE --images N -o model.toml` makes a model of layers that were measured (PipeDream's graph.txt).
    """
    if files[0] == "graph":
        _graph(files[1:], cluster, images, output, force, as_json)
        return
    if images is not None:
        raise SpecError("--images: the images of a minibatch that was measured belong to import graph. Leave it out")
    if files[0] == "torch":
        _model(files[1:], cluster, output, force, as_json)
        return
    from simulator.importers.jobs import import_files
    from simulator.importers.show import sections_of, write_files

    claim(force, output)
    imported = import_files(files, cluster)
    if output is not None:
        from simulator.studies.other_plan import imported_plan

        name = Path(files[0]).stem
        tell_compiling()
        _write(imported_plan(imported, name), output, name, as_json)
        for path in write_files(imported):
            wrote(path)
    if as_json:
        print_json(imported.to_dict(), "import")
    elif output != "-":
        print_sections(sections_of(imported))


def _write(imported: Findings, output: str, name: str, as_json: bool) -> None:
    from simulator.importers.show import job_text

    text = job_text(imported, name)
    if output != "-":
        write_text(output, text)
        wrote(output)
    elif as_json:
        raise SpecError("--json and -o - would both write to standard output. Leave one out")
    else:
        print(text, end="")


def _graph(
    files: list[str], cluster: str | None, images: int | None, output: str | None, force: bool, as_json: bool
) -> None:
    """A graph of measured layers as a model file."""
    from simulator.importers.cost_graphs import read_cost_graph
    from simulator.importers.cost_graphs.network import model_text

    if len(files) != 1:
        raise SpecError(f"import graph: expected one graph, the name of a shipped one or a file, got {len(files)}")
    if images is None:
        raise SpecError(
            "import graph: how many images the measured minibatch had is not in the file. Way out: --images 64"
        )
    if cluster is not None:
        raise SpecError(
            "--cluster: a model runs on none. Way out: leave it out, and dtsim run --model MODEL.toml --cluster C"
        )
    if as_json:
        raise SpecError("--json: a model of measured layers is TOML. Way out: leave it out")
    claim(force, output)
    graph = read_cost_graph(files[0])
    name = Path(output).stem if output not in (None, "-") else graph.name
    text = model_text(graph, name, images, f"{files[0]}, {images:,} images a minibatch")
    if output in (None, "-"):
        print(text, end="")
    else:
        write_text(str(output), text)
        wrote(str(output))


def _model(targets: list[str], cluster: str | None, output: str | None, force: bool, as_json: bool) -> None:
    """The model of a build function as a model file."""
    from simulator.capture.child import capture, script_of
    from simulator.capture.model import model_fields
    from simulator.specs.toml_text import toml_value

    if len(targets) != 1 or not script_of(targets[0])[1]:
        raise SpecError("import torch: expected one function that makes a model, FILE.py:build")
    if cluster is not None:
        raise SpecError(
            "--cluster: a model runs on none. Way out: leave it out, and dtsim run --model MODEL.toml --cluster C"
        )
    claim(force, output)
    note(f"executing {targets[0]} on tensors without data ...")
    found = capture(targets[0], 1, builds=True)
    name = Path(output).stem if output not in (None, "-") else script_of(targets[0])[0].stem
    fields, assumed = model_fields(found, name)
    assumed += found.notes
    text = "".join(f"# assumed: {one}\n" for one in assumed)
    text += "".join(f"{key} = {toml_value(value)}\n" for key, value in fields.items())
    source = f"{targets[0]}, recorded with torch {found.versions['torch']}"
    text += f'\n[sources]\n"*" = {toml_value(source)}\n'
    if output not in (None, "-"):
        write_text(str(output), text)
        wrote(str(output))
    if as_json:
        job = {"workload": {"model": fields}}
        facts = [{"field": "workload.model", "value": None, "why": one} for one in assumed]
        print_json(
            {
                "source_format": "a function that makes a PyTorch model",
                "job": job,
            }
            | {"read": [], "assumed": facts, "no_effect": [], "not_understood": []},
            "import",
        )
    elif output in (None, "-"):
        print(text, end="")
