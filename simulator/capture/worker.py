"""The child process of a capture: `python -m simulator.capture.worker`; it runs the user's script and writes what it did.

It reads its task as JSON from the first line of standard input, and ends when that is closed: whoever started it is gone then.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from simulator.capture.letters import Alone, Letters
from simulator.processes import end_session

__all__ = ["main"]

_WARM_UP = 1
"""Steps that run before the one that is recorded: buffers and optimizer states are made at first use."""


class _Done(BaseException):
    """The step has been recorded: nothing more of the script is needed."""


def main() -> int:
    """Record one step; the result or the reason why there is none goes to the file that the task names."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, args=(sys.stdin,), daemon=True).start()
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # a script that asks somebody is told that there is no one
    try:
        answer = _record(task)
    except Alone as error:
        answer = json.dumps({"peers": error.ranks})
    except BaseException as error:  # also SystemExit of the script
        answer = json.dumps({"error": _told(error) | {"builds": task["builds"]}})
    Path(task["output"]).write_text(answer, encoding="utf-8")
    sys.stdout.flush()
    return 0


def _end_with_parent(parent: Any) -> None:
    while parent.read(1):
        pass
    end_session(os.getsid(0))


def _record(task: dict[str, Any]) -> str:
    import warnings

    warnings.filterwarnings("ignore")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from simulator.capture.record import write_capture
    from simulator.capture.recorder import dispatch_mode
    from simulator.capture.sandbox import Sandbox

    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # what breaks is told once, by us
    steps = 0

    def stepped() -> None:
        nonlocal steps
        steps += 1
        if steps == _WARM_UP:
            sandbox.begin()
        elif steps > _WARM_UP:
            raise _Done

    function = task["function"]
    letters = Letters(os.path.dirname(task["output"]), task["rank"], task["ranks"])
    sandbox = Sandbox(task["world"], task["rank"], (lambda: None) if function else stepped, letters)
    path = Path(task["file"]).resolve()
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *task["arguments"]]
    with FakeTensorMode(allow_non_fake_inputs=True), dispatch_mode(sandbox.recorder):
        if task["builds"]:
            return write_capture(_build(path, function, sandbox, task["script"]))
        if function:
            _call(path, function, sandbox)
        else:
            try:
                runpy.run_path(str(path), run_name="__main__")
            except _Done:
                pass
            else:
                raise _NotAStep(
                    f"it ended after {steps} optimizer step{'s' * (steps != 1)} after a backward; a recording needs "
                    f"{_WARM_UP + 1}: one to warm up, one to record. Way out: let it run longer, or name a function that runs a step, "
                    "FILE.py:step"
                )
    capture = sandbox.finished(task["script"])
    if not any(event.phase == "backward" for event in capture.events):
        raise _NotAStep(f"{function} ran no backward. Way out: a function of forward, backward and update")
    return write_capture(capture)


class _NotAStep(Exception):
    """What ran is no training step."""


def _build(path: Path, name: str, sandbox: Any, script: str) -> Any:
    """Record one forward of the model that a function makes."""
    import dataclasses

    import torch

    from simulator.capture.sandbox import plain_name

    made = _function(path, name)()
    model, *inputs = made if isinstance(made, tuple) else (made,)
    if not isinstance(model, torch.nn.Module):
        raise _NotAStep(f"{name} makes no model: it returned {type(model).__name__}, expected a torch.nn.Module")
    shapes = {plain_name(key): tuple(value.shape) for key, value in model.named_parameters()}
    sandbox.begin()
    model(*(inputs or [torch.zeros(1, _TOKENS, dtype=torch.long)]))
    if not inputs:
        sandbox.recorder.assume(f"sequence_length = {_TOKENS}: {name} returned no batch of tokens beside the model")
    return dataclasses.replace(sandbox.finished(script), shapes=shapes)


_TOKENS = 2048
"""Tokens of a sequence where nobody says how many."""


def _function(path: Path, name: str) -> Any:
    module = runpy.run_path(str(path), run_name="captured")
    function = module.get(name)
    if not callable(function):
        known = ", ".join(
            sorted(k for k, v in module.items() if callable(v) and getattr(v, "__module__", "") == "captured")
        )
        raise _NotAStep(f"it has no function {name!r}. Its own: {known or 'none'}")
    return function


def _call(path: Path, name: str, sandbox: Any) -> None:
    function = _function(path, name)
    for _ in range(_WARM_UP):
        function()
    sandbox.begin()
    function()


def _told(error: BaseException) -> dict[str, Any]:
    """What happened, for the parent: kind of error, message, and the innermost place in the user's own files."""
    libraries = (str(Path(__file__).resolve().parents[1]), os.path.dirname(os.__file__), "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(libraries) and "site-packages" not in f.filename]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    return {
        "kind": type(error).__name__,
        "message": str(error)[:2000],
        "place": place,
        "plain": isinstance(error, _NotAStep),
    }


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # also where the script has left threads that run on
