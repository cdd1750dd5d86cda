"""dtsim import: files of other programs as a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption
from simulator.cli.output import claim, print_json, print_sections, wrote
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.importers.imported import Imported

__all__ = ["command"]


def command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files of other programs; dtsim list importers.")
    ],
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="C", help="The cluster it runs on.")] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="JOB.toml", help="Write a job file; - prints it.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read files of other programs; say what is a field of a job, what was assumed, and what was not understood."""
    from simulator.importers.jobs import import_files
    from simulator.importers.show import sections_of, write_files

    claim(force, output)
    imported = import_files(files, cluster)
    if output is not None:
        _write(imported, output, Path(files[0]).stem, as_json)
        for path in write_files(imported):
            wrote(path)
    if as_json:
        print_json(imported.to_dict(), "import")
    elif output != "-":
        print_sections(sections_of(imported))


def _write(imported: Imported, output: str, name: str, as_json: bool) -> None:
    from simulator.errors import SpecError
    from simulator.importers.show import job_text

    text = job_text(imported, name)
    if output != "-":
        write_text(output, text)
        wrote(output)
    elif as_json:
        raise SpecError("--json and -o - would both write to standard output. Leave one out")
    else:
        print(text, end="")
