"""Feed inputs to the command, in this process, and judge what comes back.

    python -m tests.fuzz --minutes 120 --seed 7          all kinds in turn until the time is up
    python -m tests.fuzz --target jobs --inputs 100000   one of them

An input fails that ends in a traceback, in exit code 1, in a warning of numpy, after more than 20 s of the processor, or with more
memory than 2 GB.  What failed is printed with its files; the other inputs go on.  Kind, seed and number name an input for ever.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from simulator.cli import app
from simulator.errors import SpecError
from tests.fuzz.inputs import DATA, Input, Request, Target
from tests.fuzz.requests import REFUSED, sent
from tests.fuzz.targets import TARGETS

__all__ = ["LONGEST", "MOST_MEMORY", "Answer", "Tally", "feed", "fuzz", "input_of"]

LONGEST = 20.0
"""Seconds of the processor that an input may take."""
MOST_MEMORY = 2 << 30
_TURN, _FIRST = 3.0, 10
"""Seconds of the processor that a kind gets in each child; inputs of the first."""
_FILLS = 0.1
"""Seconds of the processor below which an input cannot have filled `MOST_MEMORY`; the kernel takes a millisecond to say how much."""
_WATCH, _PATIENCE = 2.0, 5.0
"""Times `LONGEST` of the processor after which a child that says nothing is ended; seconds between looks at its clock."""
_STILL = 300.0
"""Seconds after which a child that says nothing is ended however little it computes: it waits for what never comes."""


@dataclass(slots=True)
class Tally:
    """What became of the inputs of a kind."""

    inputs: int = 0
    answered: int = 0
    deep: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def line(self, name: str) -> str:
        """One line of the report."""
        many = max(self.inputs, 1)
        return (
            f"{name:18} {self.inputs:8} inputs, {self.deep / many:4.0%} past the first check, {self.answered / many:4.0%} answered, "
            f"{self.inputs / max(self.seconds, 1e-9):5.0f} a second, slowest {self.slowest:.1f} s, {len(self.failures)} failed"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command said to an input.

    Args:
        code: the exit code.
        deep: whether the input got past the check of its files and words: it was answered, or refused by a rule behind that check.
    """

    code: int
    deep: bool


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


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A fresh working directory, in memory where the machine has such."""
    home = Path.cwd()
    path = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        os.chdir(path)
        yield path
    finally:
        os.chdir(home)
        shutil.rmtree(path)


@contextlib.contextmanager
def _watched() -> Iterator[list[BaseException]]:
    """The errors that the command turns into messages."""
    seen: list[BaseException] = []
    before = app.note

    def note(message: str) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            seen.append(error)
        before(message)

    app.note = note  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        app.note = before  # type: ignore[attr-defined]


def feed(what: Input) -> Answer:
    """Run the command on its files, in a folder of its own.

    Raises:
        AssertionError: something came back that must not.
    """
    if what.request is not None:
        return _asked(what.request)
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    before, begun = _memory_at_first(os.getpid()), time.process_time()
    with _folder(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _watched() as errors:
        for name, text in what.files.items():
            if "/" in name:
                os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
        try:
            with _limits(), warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                app.main(what.arguments)
        except SystemExit as left:
            code = left.code or 0
    said = err.getvalue()
    assert code in (0, 2), (
        f"exit code {code}: {said[-500:]}\n{''.join(traceback.format_exception(*errors[-1:]))[-3000:] if errors else ''}"
    )
    assert "Traceback" not in said, said[-2000:]
    assert "not enough memory" not in said, said[-2000:]
    assert len(said) < 20_000, f"a message of {len(said)} characters: {said[:300]}"
    if code == 2:
        assert "rror: " in said, said[-500:]
        assert out.getvalue() == "", out.getvalue()[:500]
    elif "--json" in what.arguments:
        json.loads(out.getvalue(), parse_constant=_refuse)
    if time.process_time() - begun > _FILLS:
        more = _most_memory() - before
        assert more < MOST_MEMORY, f"{more >> 20} MiB"
    return Answer(int(code == 2) * 2, code == 0 or not any(isinstance(error, SpecError) for error in errors))


def _asked(request: Request) -> Answer:
    """Send a request; it must be answered, or refused with one sentence, and leave nothing on standard error."""
    err = io.StringIO()
    with _limits(), contextlib.redirect_stderr(err):
        status, said = sent(request)
    assert status == 200 or status in REFUSED, f"status {status}: {said[-1500:]}"
    assert "Traceback" not in said + err.getvalue(), (said + err.getvalue())[-2000:]
    if status == 200 and (request.method, request.path) == ("GET", "/"):
        assert said.startswith("<!doctype html>"), said[:300]
        return Answer(0, True)  # the page itself
    found = json.loads(said or "{}", parse_constant=_refuse)  # what is no HTTP gets a status alone
    assert len(str(found.get("error", ""))) < 20_000, said[:300]
    return Answer(0 if status == 200 else 2, status == 200)


def _most_memory() -> int:
    """The most that this process had at any time [B]; a fork begins with what its parent had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@functools.cache
def _memory_at_first(process: int) -> int:
    return _most_memory()


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def input_of(target: Target, seed: int, number: int) -> Input:
    """The input of a kind with this number."""
    return target.draw(Random(f"{target.name} {seed} {number}"))


def fuzz(
    seconds: float, seed: int, targets: tuple[Target, ...] = TARGETS, most: int | None = None, first: int = 0
) -> dict[str, Tally]:
    """Feed inputs, kind by kind, each for as long, until the time or the number of inputs of each kind is up.

    What fails is printed and kept in the tally.  Inputs are fed in a child, so that compiled code that never returns can be ended.
    """
    _warm()
    tallies = {target.name: Tally() for target in targets}
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        rest = [target for target in targets if most is None or tallies[target.name].inputs < most]
        if not rest:
            break
        work = []
        for target in rest:
            tally = tallies[target.name]
            many = min(max(_turn(tally), 1), most - tally.inputs) if most is not None else max(_turn(tally), 1)
            work += [(target, first + tally.inputs + number) for number in range(many)]
        _in_a_child(work, seed, tallies, begun + seconds)
    return tallies


def _turn(tally: Tally) -> int:
    """Inputs of a kind in one child: all kinds get the same time, a second of the processor or so."""
    return int(_TURN * tally.inputs / tally.seconds) if tally.seconds else _FIRST


def _in_a_child(work: list[tuple[Target, int]], seed: int, tallies: dict[str, Tally], end: float) -> None:
    """Feed these inputs in a copy of this process; what hangs ends it, is noted as failed, and the next copy goes on behind it."""
    while work:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            code = 1
            try:
                _answer(writer, work, seed, end)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        done = _collected(reader, child, work, tallies)
        work = work[done:]
        if work and os.waitpid(child, 0)[1]:
            target, number = work[0]
            _tell(
                tallies[target.name],
                target,
                seed,
                number,
                f"no answer after {_WATCH * LONGEST:g} s of the processor or {_STILL:g} s of the clock, or the process died",
            )
            tallies[target.name].inputs += 1
            work = work[1:]
        elif work:
            return


def _answer(writer: int, work: list[tuple[Target, int]], seed: int, end: float) -> None:
    with open(writer, "w", encoding="utf-8") as answers:
        for target, number in work:
            if time.monotonic() > end:
                return
            print(json.dumps(_one(target, seed, number)), file=answers, flush=True)


def _collected(reader: int, child: int, work: list[tuple[Target, int]], tallies: dict[str, Tally]) -> int:
    """Take the child's answers as they come; end it when one does not come.  Returns how many came."""
    with open(reader, encoding="utf-8") as answers:
        for done, (target, _) in enumerate(work):
            if not _speaks(reader, child):
                os.kill(child, signal.SIGKILL)
                return done
            line = answers.readline()
            if not line:
                return done
            answered, deep, took, failure = json.loads(line)
            tally = tallies[target.name]
            tally.inputs += 1
            tally.answered += answered
            tally.deep += deep
            tally.seconds += took
            tally.slowest = max(tally.slowest, took)
            tally.failures += [failure] if failure else []
    os.waitpid(child, 0)
    return len(work)


def _speaks(reader: int, child: int) -> bool:
    """Wait for the child's next answer; False when it has spent too much of the processor on it, or waits for what never comes."""
    clock = ~child << 3 | 2  # of another process, as clock_getcpuclockid(3) makes it
    begun, until = time.clock_gettime(clock), time.monotonic() + _STILL
    while not select.select([reader], [], [], _PATIENCE)[0]:
        if time.clock_gettime(clock) - begun > _WATCH * LONGEST or time.monotonic() > until:
            return False
    return True


def _one(target: Target, seed: int, number: int) -> tuple[bool, bool, float, str]:
    """Feed one input: whether it was answered, whether it went deep, seconds of the processor, and what failed."""
    what = input_of(target, seed, number)
    begun = time.process_time()
    try:
        answer = feed(what)
    except Exception as error:
        tally = Tally()
        _tell(tally, target, seed, number, f"{type(error).__name__}: {error}")
        return False, False, time.process_time() - begun, tally.failures[0]
    return answer.code == 0, answer.deep, time.process_time() - begun, ""


def _tell(tally: Tally, target: Target, seed: int, number: int, why: str) -> None:
    tally.failures.append(f"{target.name}, seed {seed}, number {number}: {why}")
    print(f"FAILED {tally.failures[-1]}\n{input_of(target, seed, number)}", file=sys.stderr, flush=True)


_FIRST_WORDS = (
    ("run", "gpt3_175b", "--json"),
    ("explain", "llama_7b_4x4090", "--json"),
    ("goodput", "gpt2_124m_2gpu", "--samples", "5", "--no-levers", "--json"),
    ("search", "gpt2_124m_2gpu", "--range", "plan.zero_stage=0,1", "--json"),
    ("layout", "gpt2_124m", "--mesh", "rows=2", "--map", "ffn=rows", "--propagate", "--json"),
    ("collective", "all_reduce", "--cluster", "dgx_h100", "--ranks", "16", "--size", "1MiB", "--json"),
    ("schedule", "1f1b", "-p", "2", "-m", "4", "--json"),
    ("show", "gpus", "h100_80gb_sxm", "--json"),
    ("import", str(DATA / "imports" / "kineto.json"), "--json"),
    ("validate", str(DATA / "measured_runs.csv"), "--kind", "runs", "--json"),
)


@functools.cache
def _warm() -> None:
    """Let everything be imported and compiled before an input's time is taken."""
    for words in _FIRST_WORDS:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(SystemExit),
        ):
            app.main(words)
    gc.collect()
    gc.freeze()  # children need not look at what is there for good
