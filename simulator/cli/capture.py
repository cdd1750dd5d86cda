"""dtsim capture: what a training script really does in a step, recorded without a GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, numbers
from simulator.cli.output import claim, note, print_json, print_sections, wrote
from simulator.errors import SpecError

__all__ = ["command"]

_MOST_RANKS = 10**6


def command(
    script: Annotated[
        str,
        typer.Argument(metavar="FILE.py[:STEP]", help="A training script, or a function of one that runs one step."),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The script's own arguments.")
    ] = None,
    world: Annotated[int, typer.Option("--world", metavar="N", help="Ranks that the script is told of.")] = 1,
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank",
            metavar="R,R,...",
            help="Which ranks; several are those of a pipeline. Left out: rank 0, with its pipeline where it is in one.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="PROGRAM", help="Write the step as a program, for dtsim run."),
    ] = None,
    framework: Annotated[
        str,
        typer.Option(metavar="F", help="The framework profile whose host costs apply; none = the host costs nothing."),
    ] = "pytorch_ddp",
    time_limit: Annotated[str, typer.Option("--time-limit", metavar="T", help="When to give up.")] = "10 min",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Record one training step of your own code: operators, messages and memory. This EXECUTES the script (extra: torch).

    Tensors have no data, and no GPU is needed. A script is recorded between its first and second optimizer step after a backward; a
    function is called twice, and the second call is recorded.
    """
    from simulator.capture.answer import describe_capture, to_dict
    from simulator.capture.child import captures, script_of
    from simulator.capture.program import captured_program
    from simulator.cli.options import quantity
    from simulator.plan.framework import load_framework
    from simulator.program.spec import verify
    from simulator.program.text import render_text
    from simulator.specs import write_text

    claim(force, output)
    if not 1 <= world <= _MOST_RANKS:
        raise SpecError(f"--world: expected 1 to {_MOST_RANKS} ranks, got {world}")
    wanted = () if rank is None else tuple(sorted(set(numbers("--rank", rank))))
    if wanted and wanted[-1] >= world:
        raise SpecError(f"--rank: expected ranks from 0 to {world - 1}, got {wanted[-1]}")
    seconds = quantity("--time-limit", time_limit, "s")
    profile = "" if framework == "none" else load_framework(framework).name
    who = f"rank{'s' * (len(wanted) > 1)} {', '.join(map(str, wanted or (0,)))}"
    script_of(script)
    note(f"executing {script} on tensors without data, as {who} of {world} ...")
    found = captures(script, world, wanted, arguments or (), seconds)
    program = captured_program(found, profile)
    verify(program)
    if output is not None:
        text = render_text(program)
        if output == "-":
            if as_json:
                raise SpecError("--json and -o - would both write to standard output. Leave one out")
            print(text, end="")
            return
        write_text(output, text)
        wrote(output)
    if as_json:
        print_json(to_dict(found, program), "capture")
    else:
        print_sections(describe_capture(found, program))
