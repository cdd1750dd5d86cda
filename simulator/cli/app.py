"""The command line: one file per verb, each imported only when it is asked for.

    dtsim VERB ... --> cli/VERB.py: command() --> job, simulate, studies, report --> text or one JSON object

Exit codes: 0 answered (out of memory is an answer), 2 the input is wrong or the machine refuses (one message, no traceback), 1 our own
fault, 130 stopped with Ctrl-C; `run --strict` leaves with 3 when the step does not fit.
The verbs read options and print; what they print is computed in `studies` and `report`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from simulator.cli.examples import epilog
from simulator.cli.output import INTERRUPTED, compile_cache_of, note
from simulator.cli.verb_command import VerbCommand
from simulator.compiled import interpreted_for
from simulator.errors import SimulatorError, UnknownNameError

__all__ = ["VERBS", "main"]

VERBS = {
    "run": "Predict one training step: time with a band, memory, and where both go.",
    "explain": "Say what binds a step and which single change helps most.",
    "schedule": "Show a pipeline schedule alone, in abstract time.",
    "search": "Find the best plan of a space, with a proof, and what each choice costs.",
    "fit": "Say on how few GPUs a model fits, or how large a batch, sequence or model does.",
    "advise": "Say which way to train in parallel suits a model and a machine, and why.",
    "sweep": "Simulate every point of a study, here or on a cluster; results outlive a kill.",
    "goodput": "Simulate a whole run: failures, checkpoints, days, money, energy.",
    "compare": "Put jobs, schedules, ZeRO stages or any setting side by side.",
    "collective": "Time one collective on a cluster.",
    "layout": "Derive the collectives of tensors laid on a mesh, by hand or by propagation.",
    "plan": "Let published planners place or cut a graph of costs, or divide a layer; each with its gap.",
    "calibrate": "Fit a cost model to measurements and write a profile.",
    "measure": "Measure this machine; writes what calibrate reads.",
    "validate": "Predict a table of measured runs and show the errors.",
    "serve": "Serve a page to change model, cluster and plan by hand.",
    "capture": "Record a step of your own training code: it is executed, without a GPU.",
    "import": "Read a config, script, log or trace of another program as a job.",
    "export": "Write a step as a Chrome or Chakra trace, its order for PyTorch, or settings of Megatron, torchtitan, DeepSpeed.",
    "init": "Write a commented job file.",
    "notebooks": "Copy the lessons, with their data, to a folder.",
    "list": "List what is known: models, clusters, schedules, ...",
    "show": "Show one of them with its numbers, units and sources.",
}
"""Verb -> its one line of help; module and function are `simulator.cli.VERB` and `command`."""

_INTERPRETED = 2_000_000
"""Array entries that loops meet in Python before they are compiled: about a second, as loading numba takes."""
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Verbs(TyperGroup):
    """The group `dtsim`: it knows the verbs by name and imports one at its first use."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            raise UnknownNameError("verb", cmd_name[:100], VERBS, shown_by="dtsim --help")
        return _verb(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _plain_app(add_completion: bool = False, **options: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=add_completion,
        context_settings=_SETTINGS,
        **options,
    )


@functools.cache
def _verb(name: str) -> object:
    """A verb as a command; made once, for a program may call `main` often."""
    app = _plain_app()
    module = importlib.import_module(f"simulator.cli.{name}")
    app.command(name=name, cls=VerbCommand, context_settings=_SETTINGS, epilog=epilog(name))(module.command)
    return typer.main.get_command(app)


@functools.cache
def _group() -> Any:
    app = _plain_app(cls=_Verbs, add_completion=True)

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
    if sys.stderr is None:  # closed by whoever started us: what would go there must not go elsewhere
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        note("error: standard output is closed. Way out: > FILE, or > /dev/null where only files are wanted")
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    _STOPPED.clear()
    if arguments is None:
        interpreted_for(_INTERPRETED)
    words, before = list(sys.argv[1:] if arguments is None else arguments), signal.getsignal(signal.SIGINT)
    if (
        before not in (signal.default_int_handler, signal.SIG_DFL)
        or threading.current_thread() is not threading.main_thread()
    ):
        sys.exit(_run(words))
    hook = sys.unraisablehook
    try:
        sys.unraisablehook = functools.partial(_lost, hook)
        signal.signal(signal.SIGINT, _stop)
        code = _run(words)
        signal.signal(signal.SIGINT, _noted)
    except KeyboardInterrupt:  # before the first byte of the answer, or between it and its last one
        signal.signal(signal.SIGINT, _noted)
        _drop_output()
        code = INTERRUPTED
    finally:
        if _STOPPED:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook
    if _STOPPED and arguments is None:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End this process as Python would, but for what destroys modules: a library stopped while it was loaded may abort there."""
    sys.unraisablehook = lambda what: None
    with contextlib.suppress(OSError):  # a pool that just then ended by itself
        threading._shutdown()  # type: ignore[attr-defined]  # pools end their processes, whose queues the functions below close
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


_STOPPED: list[int] = []
"""The Ctrl-C that came: a compiled library that is stopped in the middle may raise an error of its own, without a trace of why."""


def _stop(number: int, frame: FrameType | None) -> None:
    _noted(number, frame)
    signal.default_int_handler(number, frame)


def _noted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C when all is said."""
    _STOPPED.append(number)


_AGAIN = 0.01
"""Seconds after which a Ctrl-C that was swallowed comes again."""


def _comes_again() -> None:
    """A Ctrl-C that falls into a callback from compiled code (a compiler's, a destructor) is lost there: let it come again behind it."""
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN)


def _lost(hook: Callable[[Any], object], what: Any) -> None:
    """Where an error came that nobody can catch: a Ctrl-C comes again; after one, destructors of what is half made complain in vain."""
    if what.exc_type is KeyboardInterrupt:
        _comes_again()
    elif not _STOPPED:
        hook(what)


def _run(arguments: list[str]) -> int:
    """Return the exit code."""
    try:
        _group().main(args=arguments, prog_name="dtsim")
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return _hung_up()
        return _flushed(error.code if isinstance(error.code, int) else int(error.code is not None))
    except SimulatorError as error:
        note(f"error: {error}")
        return _flushed(INTERRUPTED if _STOPPED else 2)  # what Ctrl-C left may be too little to write
    except BrokenPipeError:
        return _hung_up()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if _interrupted(error):
            return INTERRUPTED
        return _users_code(error) or _machine_refuses(error) or _our_fault(error)
    return _flushed(0)


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: a library whose import it interrupts may say something else."""
    if _STOPPED:
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _machine_refuses(error: Exception) -> int:
    """Say what the machine does not give, and return 2; 0 when the error is another one."""
    cache = compile_cache_of(error)
    if cache is not None:
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else f"{type(error).__name__}: {str(error)[:200]}"
        )
        note(
            f"error: the compiled engine cannot be kept in or read from {cache} ({why}). Way out: delete its files *.nbi and "
            "*.nbc, make room, or NUMBA_CACHE_DIR=/another/folder"
        )
    elif isinstance(error, OSError):
        note(f"error: {error.filename or 'the machine refuses'}: {error.strerror or error}")
    elif isinstance(error, MemoryError):
        note("error: this machine has not enough memory for that. Way out: fewer GPUs, microbatches or samples")
    else:
        return 0
    return _flushed(2)


def _users_code(error: Exception) -> int:
    """Say where code of the user's own fails, and return 2; 0 when the error has nothing to do with such code."""
    own_code = sys.modules.get("simulator.schedules.own_code")
    told = own_code.blame(error) if own_code else None
    if not told:
        return 0
    note(f"error: {told}")
    return _flushed(2)


def _our_fault(error: Exception) -> int:
    if os.environ.get("DTSIM_DEBUG"):
        raise error
    note(
        f"internal error: {type(error).__name__}: {str(error)[:300]}\n"
        "This is a fault of dtsim, please report it with the command you gave; DTSIM_DEBUG=1 shows the traceback."
    )
    return _flushed(1)


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _hung_up()
    except OSError as error:
        if not code:
            note(f"error: standard output: {error.strerror or error}")
        _drop_output()
        return code or 2
    return code


def _hung_up() -> int:
    """Whoever read our output stopped reading: no error."""
    _drop_output()
    return 0


def _drop_output() -> None:
    """Let what could not be written go, or Python would try again when it closes its files."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
