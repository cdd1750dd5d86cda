"""dtsim show: one model, cluster, schedule, ... with its numbers, units and sources; or the program of a job."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from simulator.cli.options import JsonOption, SetOption
from simulator.cli.output import print_answer, print_json
from simulator.errors import SpecError, UnknownNameError

__all__ = ["command"]


_ROWS = 200
"""Lines of a program, unless more are asked for."""


def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="model, cluster, job, schedule, ... or program.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; of a program: the job's.")],
    settings: SetOption = None,
    rows: Annotated[int | None, typer.Option("--rows", help="Lines of a program to print; 0 = all. [200]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one of a kind with its numbers, units and sources; `show program JOB` prints what happens in a step, `show schema run` the JSON
    Schema of an answer."""
    from simulator.studies.catalogue import program_text, show_member

    if kind in ("program", "programs"):
        rows = _ROWS if rows is None else rows
        if rows < 0:
            raise SpecError(f"--rows: expected 0 (all) or more, got {rows}")
        lines, total = program_text(name, settings or (), rows)
        if as_json:
            print_json({"name": name, "lines": total, "text": lines}, "program")
            return
        print("\n".join(lines))
        if len(lines) < total:
            print(f"... {total - len(lines)} more lines; --rows 0 prints all")
        return
    if rows is not None:
        raise SpecError(f"--rows cuts the lines of a program, but {kind} {name[:100]} is shown. Leave it out")
    if settings and kind not in ("job", "jobs"):
        way = "Leave it out, or: dtsim show job NAME --set ..."
        raise SpecError(f"--set changes a job, but {kind} {name[:100]} is shown. {way}")
    if kind in ("schema", "schemas"):
        from simulator.cli.answers import ANSWERS, json_schema

        if name not in ANSWERS:
            raise UnknownNameError("answer", name, ANSWERS)
        print(json.dumps(json_schema(name), indent=2))
        return
    shown = show_member(kind, name, settings or ())
    print_answer(shown, "show", as_json)
