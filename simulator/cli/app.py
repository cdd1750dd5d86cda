"""The command line: one file per verb, each imported only when it is asked for.

    dtsim VERB ... --> cli/VERB.py: command() --> job, simulate, studies, report --> text or one JSON object

Exit codes: 0 answered (out of memory is an answer), 2 the input is wrong (one message, no traceback), 1 our own fault.
The verbs read options and print; what they print is computed in `studies` and `report`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from simulator.errors import SimulatorError, UnknownNameError

__all__ = ["VERBS", "main"]

VERBS = {
    "run": "Predict one training step: time with a band, memory, and where both go.",
    "explain": "Say what binds a step and which single change helps most.",
    "schedule": "Show a pipeline schedule alone, in abstract time.",
    "compare": "Put schedules, ZeRO stages or any setting side by side.",
    "collective": "Time one collective on a cluster.",
    "calibrate": "Fit a cost model to measurements and write a profile.",
    "measure": "Measure this machine; writes what calibrate reads.",
    "validate": "Predict a table of measured runs and show the errors.",
    "export": "Write a step as a Chrome trace, or its pipeline order for PyTorch.",
    "init": "Write a commented job file.",
    "list": "List what is known: models, clusters, schedules, ...",
    "show": "Show one of them with its numbers, units and sources.",
}
"""Verb -> its one line of help; module and function are `simulator.cli.VERB` and `command`."""

_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_INTERRUPTED = 130


class _Verbs(TyperGroup):
    """The group `dtsim`: it knows the verbs by name and imports one at its first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            raise UnknownNameError("verb", cmd_name[:100], VERBS)
        return _verb(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _plain_app(**options: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings=_SETTINGS,
        **options,
    )


@functools.cache
def _verb(name: str) -> Any:
    """A verb as a command; made once, for a program may call `main` often."""
    app = _plain_app()
    app.command(name=name, context_settings=_SETTINGS)(importlib.import_module(f"simulator.cli.{name}").command)
    return typer.main.get_command(app)


@functools.cache
def _group() -> Any:
    app = _plain_app(cls=_Verbs)

    @app.callback(invoke_without_command=True, no_args_is_help=True)
    def dtsim(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
        """Predict the step time and memory of distributed training, with an error band, and say why.

        Start with: dtsim run gpt3_175b
        """
        if version:
            from simulator import __version__

            print(__version__)
            raise typer.Exit

    group = typer.main.get_command(app)
    group.subcommand_metavar = "VERB [OPTIONS]"  # type: ignore[attr-defined]
    return group


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `dtsim` with these arguments (by default those of the process) and leave with its exit code.

    Raises:
        SystemExit: always.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    """Return the exit code."""
    try:
        _group().main(args=arguments, prog_name="dtsim")
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return _hung_up()
        return _flushed(error.code if isinstance(error.code, int) else int(error.code is not None))
    except SimulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return _flushed(2)
    except BrokenPipeError:
        return _hung_up()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.filename is None:
            return _our_fault(error)
        print(f"error: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return _flushed(2)
    except Exception as error:
        return _our_fault(error)
    return _flushed(0)


def _our_fault(error: Exception) -> int:
    if os.environ.get("DTSIM_DEBUG"):
        raise error
    print(
        f"internal error: {type(error).__name__}: {str(error)[:300]}\n"
        "This is a fault of dtsim, please report it with the command you gave; DTSIM_DEBUG=1 shows the traceback.",
        file=sys.stderr,
    )
    return _flushed(1)


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _hung_up()
    return code


def _hung_up() -> int:
    """Whoever read our output stopped reading: no error, and nothing more to say when Python closes its files."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
