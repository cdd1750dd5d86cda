"""Run a script in a process of its own and bring back what it did; nothing of it outlives the call.

The process leads a session of its own, which is ended as a whole when it is done, when time is up, and when somebody stops us; should this
process vanish, the other one notices that its standard input closes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simulator.capture.meetings import connected
from simulator.capture.record import Capture, read_capture
from simulator.errors import SpecError
from simulator.processes import end_session

__all__ = ["capture", "captures", "script_of"]

_EXTRA = "pip install 'dtsim[torch]'"
_WAYS = {
    "DynamicOutputShapeException": "a shape that depends on data. Way out: fixed sizes, such as experts with a capacity",
    "DataDependentOutputException": "a value that depends on data. Way out: a branch that does not need it",
    "ModuleNotFoundError": "a library that is not installed here. Way out: install it beside torch",
    "UnsupportedFakeTensorException": "an operation without a rule for tensors without data. Way out: leave it out of the step",
}
"""Errors of a recording -> what they mean."""
_CUDA = (
    "not compiled with CUDA", "not linked with support for cuda", "No CUDA GPUs", "Found no NVIDIA driver", "CUDA driver",
    "at least two devices, cuda", "cuda:0 and cpu", "cpu and cuda:0", "_cuda_", "a tensor on cuda",
)  # fmt: skip
"""What PyTorch says of a GPU that is not there, or of one tensor on it beside others."""


def script_of(target: str) -> tuple[Path, str]:
    """Return file and function of FILE.py or FILE.py:FUNCTION.

    Raises:
        SpecError: there is no such file, or it is no Python script.
    """
    name, colon, function = target.rpartition(":")
    if not colon or function.endswith(".py") or os.sep in function:
        name, function = target, ""
    if not name.endswith(".py"):
        raise SpecError(
            f"{target}: expected a Python script, FILE.py, or a function of one that runs a step, FILE.py:step"
        )
    path = Path(os.path.expanduser(name))
    if not path.is_file():
        raise SpecError(f"{name}: there is no such script")
    if colon and name != target and not function.isidentifier():
        raise SpecError(f"{target}: after the colon comes the name of a function, such as FILE.py:step")
    return path, function


def capture(
    target: str,
    world: int,
    rank: int = 0,
    arguments: Sequence[str] = (),
    seconds: float = 600.0,
    builds: bool = False,
) -> Capture:
    """Return what one rank of a script does in a training step.

    This executes the script.

    Args:
        target: FILE.py, of which the step between two updates is recorded, or FILE.py:FUNCTION, which runs one step.
        world, rank: what it is told.
        arguments: its command line.
        seconds: when to give up.
        builds: whether FUNCTION makes a model, or a model and a batch, of which one forward is recorded.

    Raises:
        SpecError: torch is missing, or the script broke, took too long, needs a GPU or is no training step.
    """
    return captures(target, world, (rank,), arguments, seconds, builds)[0]


def captures(
    target: str,
    world: int,
    ranks: Sequence[int] = (),
    arguments: Sequence[str] = (),
    seconds: float = 600.0,
    builds: bool = False,
) -> list[Capture]:
    """Return what several ranks of a script do in a training step, each in a process of its own, side by side.

    Args:
        ranks: which; () = rank 0, and all ranks of its pipeline where it is part of one.
        target, world, arguments, seconds, builds: as of `capture`.

    Raises:
        SpecError: as of `capture`.
    """
    path, function = script_of(target)
    if not _has_torch():
        raise SpecError(f"recording a script needs PyTorch, which is not installed. Way out: {_EXTRA}")
    end = time.monotonic() + seconds
    wanted = tuple(ranks) or (0,)
    with _tidied_when_ended(), tempfile.TemporaryDirectory(prefix="dtsim-") as folder:
        while True:
            tasks = [
                {
                    "file": str(path), "function": function, "world": world, "rank": rank, "script": target,
                    "arguments": list(arguments), "output": str(Path(folder, f"{len(wanted)}-{rank}.json")), "builds": builds,
                    "ranks": wanted,
                }
                for rank in wanted
            ]  # fmt: skip
            answers = _run(tasks, end, seconds, target)
            alone = next((text for text in answers if text.startswith('{"peers"')), "")
            found = [] if alone else [read_capture(text) for text in answers]
            peers: tuple[int, ...] = tuple(json.loads(alone)["peers"]) if alone else _peers(found[0])
            if found and (len(wanted) > 1 or ranks or not peers):
                return found if ranks else connected(found)
            if ranks or len(wanted) > 1:
                raise SpecError(
                    f"{target}: a rank exchanges objects with another of its group {', '.join(map(str, peers[:8]))} that is not recorded. "
                    "Way out: all ranks of a pipeline together, --rank R,R,..., or no --rank"
                )
            if len(peers) > _MOST_PEERS:
                raise SpecError(
                    f"{target}: rank 0 exchanges messages in a group of {len(peers)} ranks. Way out: name the ranks of its pipeline, "
                    "--rank R,R,..."
                )
            wanted = peers


@contextlib.contextmanager
def _tidied_when_ended() -> Iterator[None]:
    """Leave by an exception when somebody ends this process, so that nothing stays behind; threads cannot be asked to."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_MOST_PEERS = 64
"""Ranks that are recorded side by side unless they are named."""


def _peers(found: Capture) -> tuple[int, ...]:
    """The ranks among which a rank sends, where it does."""
    groups = {event.group for event in found.events if event.work in ("send", "recv")}
    return tuple(sorted({rank for group in groups for rank in found.groups[group].ranks}))


def _has_torch() -> bool:
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # somebody hides it
        return False


_MEMORY = ". Way out: run it by itself with python to see why; tensors made before the recorder starts (in numpy, say) need real memory"


def _run(tasks: Sequence[dict[str, object]], end: float, seconds: float, target: str) -> list[str]:
    """Return what each child wrote; they and all their children are gone then."""
    children: list[_Child] = []
    try:
        for task in tasks:
            children.append(_Child(task))
        for child in children:
            while child.code() is None:
                if time.monotonic() > end:
                    raise SpecError(
                        f"{target}: no step was recorded within {seconds:g} s. Way out: a longer --time-limit; a smaller part of the work "
                        "before the first step; or FILE.py:step, a function that runs one step"
                    )
                if any(other.check(target).startswith('{"peers"') for other in children):
                    return [other.check(target) for other in children]
                time.sleep(_LOOK)
        return [child.check(target) for child in children]
    finally:
        for child in children:
            child.kill()


_LOOK = 0.02
"""Seconds between looks at children."""


class _Child:
    """A process that records one rank."""

    def __init__(self, task: dict[str, Any]) -> None:
        words = [sys.executable, "-m", "simulator.capture.worker"]
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH", "")])])
        environment = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
        errors = sys.stderr.fileno() if _has_number(sys.stderr) else subprocess.DEVNULL
        read, self._input = os.pipe()
        self._process = subprocess.Popen(
            words, stdin=read, stdout=errors, stderr=errors, env=environment, start_new_session=True
        )
        os.close(read)
        self._output = Path(task["output"])
        with contextlib.suppress(BrokenPipeError):
            os.write(self._input, (json.dumps(task) + "\n").encode())

    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def check(self, target: str) -> str:
        """Return what it wrote, "" while it runs; what went wrong is raised."""
        code = self.code()
        if code is None:
            return ""
        if not self._output.exists():
            raise SpecError(f"{target}: its process ended with {_ending(code)} before the step was recorded{_MEMORY}")
        text = self._output.read_text(encoding="utf-8")
        if text.startswith('{"error"'):
            raise SpecError(_told(target, json.loads(text)["error"]))
        return text

    def kill(self) -> None:
        """End it and all its children."""
        end_session(self._process.pid)
        self._process.wait()
        os.close(self._input)


def _has_number(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"


def _told(target: str, error: dict[str, Any]) -> str:
    """One message: what, where, and the way out."""
    kind, message, place = error["kind"], " ".join(error["message"].split())[:400], error["place"]
    at = f" at {place}" if place else ""
    if error["plain"]:
        return f"{target}: {message}" if error["builds"] else f"{target}: no training step: {message}"
    if any(word in message for word in _CUDA):
        return (
            f"{target}: it asks for a GPU{at}: {message}. "
            "Way out: device = 'cpu' where there is none (a recording computes nothing, so no time is lost)"
        )
    if ".numpy() is not supported" in message:
        return (
            f"{target}: it asks for the numbers of a tensor{at}, which has none here. Way out: leave it out of the step"
        )
    if kind in _WAYS:
        return f"{target}: it needs {_WAYS[kind]}. It was {message}{at}"
    if kind == "SystemExit":
        return f"{target}: it left with {message or 0} before a step was recorded{at}"
    return f"{target}: the script broke{at}: {kind}: {message}"
