"""Feed inputs to the command, in this process, and judge what comes back.

    python -m tests.fuzz --minutes 120 --seed 7          all targets in turn until the time is up
    python -m tests.fuzz --target jobs --inputs 100000   one of them

An input fails that ends in a traceback, in exit code 1, in a warning of numpy, after more than 20 s, or with more memory than 2 GB.
Hypothesis shrinks it; the command and its files are printed.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings

from simulator.cli.app import main
from tests.fuzz.targets import TARGETS, Input, Target

__all__ = ["LONGEST", "MOST_MEMORY", "Tally", "feed", "fuzz"]

LONGEST = 20.0
"""Seconds that an input may take."""
MOST_MEMORY = 2 << 30
_BATCH = 25


@dataclass(slots=True)
class Tally:
    """What became of the inputs of a target."""

    inputs: int = 0
    answered: int = 0
    checked: int = 0
    deep: int = 0
    slowest: float = 0.0

    def line(self, name: str) -> str:
        """One line of the report."""
        past = (
            f"{self.deep / self.checked:4.0%} past the first check" if self.checked else "checked by the command itself"
        )
        answered = self.answered / max(self.inputs, 1)
        return f"{name:18} {self.inputs:8} inputs, {answered:4.0%} answered, {past}, slowest {self.slowest:.1f} s"


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Break off after `LONGEST` seconds of the processor: others may be at work on this machine."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"longer than {LONGEST:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def feed(what: Input) -> int:
    """Run the command on its files, in a folder of its own; return the exit code.

    Raises:
        AssertionError: something came back that must not.
    """
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, text in what.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            with _limits(), warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                main(what.arguments)
        except SystemExit as left:
            code = left.code or 0
        finally:
            os.chdir(here)
    said = err.getvalue()
    assert code in (0, 2), f"exit code {code}: {said[-500:]}"
    assert "Traceback" not in said
    assert "not enough memory" not in said
    assert len(said) < 20_000, f"a message of {len(said)} characters"
    if code == 2:
        assert "rror: " in said
        assert out.getvalue() == ""
    elif "--json" in what.arguments:
        json.loads(out.getvalue(), parse_constant=lambda word: _refuse(word))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert memory < MOST_MEMORY, f"{memory >> 20} MiB"
    return int(code == 2) * 2


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def fuzz(
    seconds: float, first_seed: int, targets: tuple[Target, ...] = TARGETS, most: int | None = None
) -> dict[str, Tally]:
    """Feed batches of inputs, target by target, until the time or the number is up.

    Raises:
        AssertionError: an input failed; hypothesis has shrunk it and prints it.
    """
    _warm()
    tallies = {target.name: Tally() for target in targets}
    begun, number = time.monotonic(), first_seed
    while True:
        for target in targets:
            tally = tallies[target.name]
            _batch(target, number, tally)
            if time.monotonic() - begun > seconds or (most is not None and tally.inputs >= most):
                return tallies
        number += 1


@functools.cache
def _warm() -> None:
    """Let everything be imported and compiled before an input's time is taken."""
    table = Path(__file__).resolve().parents[1] / "data" / "measured_runs.csv"
    for words in (("run", "gpt3_175b"), ("explain", "llama_7b_4x4090"), ("validate", str(table), "--kind", "runs")):
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(SystemExit),
        ):
            main(words)


def _batch(target: Target, number: int, tally: Tally) -> None:
    @seed(number)
    @settings(
        max_examples=_BATCH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @given(target.inputs)
    def check(what: Input) -> None:
        begun = time.monotonic()
        code = feed(what)
        tally.inputs += 1
        tally.answered += code == 0
        tally.checked += what.deep is not None
        tally.deep += bool(what.deep)
        tally.slowest = max(tally.slowest, time.monotonic() - begun)

    check()
