"""Signals at any moment: files are whole or not there, nobody outlives the program, Ctrl-C is answered and never lost."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.cli.app import main
from simulator.errors import SpecError
from simulator.processes import Helpers, processes_of
from tests.command import Dtsim
from tests.properties.writers import PATIENCE, WRITERS, begun_program, call, clear, environment, folder, output_of

__all__ = ["folder"]

SEED = os.environ.get("SEED", "")
FORKS = int(os.environ.get("FORKS", "6"))
"""Draws the moments of signals, and how many for each verb: SEED=7 FORKS=60 pytest -m slow tests/properties/test_signals.py"""


def _rows(left: bytes, full: bytes) -> bool:
    return full.startswith(left) and left.endswith(b"\n")


KEPT: dict[str, Callable[[bytes, bytes], bool]] = {
    "rows": _rows,
    "errors": lambda left, full: left.endswith(b"</html>\n"),
    "spread of errors": lambda left, full: left.endswith(b"\n"),
    "study": _rows,
    "study drawn": lambda left, full: left.endswith(b"IEND\xaeB`\x82"),
}
"""What a validation or a sweep that is stopped keeps: the rows it has, as a table, a page or a picture."""


@contextlib.contextmanager
def begun_fork(folder: Path, *arguments: str) -> Iterator[int]:
    """The command in a copy of this process, which has imported and compiled what it needs: all its time goes to the work.

    No signal reaches the copy before it stands as a program of its own: here pytest would take it for its user's Ctrl-C.
    """
    with (folder / "said").open("w") as said:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        child = os.fork()
        if not child:
            code: object = 1
            try:
                os.chdir(folder)
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                sys.stdout = sys.stderr = said
                faulthandler.register(signal.SIGUSR1, said, all_threads=True)  # `ended` asks where it waits
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the program itself has it around the verb
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
                main(arguments)
            except SystemExit as left:
                code = left.code or 0
            except BaseException:
                traceback.print_exc()
            finally:  # whatever happens, this copy must not go on as pytest
                with contextlib.suppress(BaseException):
                    said.flush()
                os._exit(code if isinstance(code, int) else 1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        yield child
    (folder / "said").unlink()


def ended(child: int, folder: Path) -> int:
    """The exit code of a copy; what has not ended in time tells where it waits."""
    until = time.monotonic() + PATIENCE
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGUSR1)
            time.sleep(1.0)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"has not ended after {PATIENCE} s: {(folder / 'said').read_text()}")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("what", WRITERS)
def test_killed_at_any_moment_a_file_is_whole_or_not_there(what: str, folder: Path) -> None:
    """Once each as a program of its own, then in copies of this process."""
    whole, draw = output_of(what, folder), random.Random(f"{what} {SEED}")
    begun = time.monotonic()
    assert 0 == call(*WRITERS[what], where=folder).returncode
    took, full = time.monotonic() - begun, whole.read_bytes()
    for kind in (signal.SIGKILL, signal.SIGINT):
        clear(folder)
        process = begun_program(folder, *WRITERS[what])
        time.sleep(draw.random() * took)
        process.send_signal(kind)
        said = process.communicate(timeout=PATIENCE)[1]
        check_stopped(what, folder, kind, process.returncode, said, full)
    for _ in range(2):  # the second time all is imported and compiled
        clear(folder)
        begun = time.monotonic()
        with contextlib.chdir(folder), contextlib.suppress(SystemExit):
            main(WRITERS[what])
        took = time.monotonic() - begun
    for attempt in range(FORKS):
        clear(folder)
        kind = signal.SIGKILL if attempt % 2 else signal.SIGINT
        with begun_fork(folder, *WRITERS[what]) as child:
            time.sleep(draw.random() * took)
            os.kill(child, kind)
            code = ended(child, folder)
            said = (folder / "said").read_text()
        check_stopped(what, folder, kind, code, said, full)


def check_stopped(what: str, folder: Path, kind: int, code: int, said: str, full: bytes) -> None:
    whole = output_of(what, folder)
    left = whole.read_bytes() if whole.exists() else full
    stopped = kind == signal.SIGINT and KEPT.get(what, lambda one, other: False)(left, full)
    assert len(left) == len(full) or stopped
    if kind == signal.SIGINT:
        assert code in (0, 130, -signal.SIGINT), said
        assert "Traceback" not in said, said
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".out")]


HALF_LOADED = """
import atexit, os, signal, sys, simulator.cli, simulator.cli.app

class Half:  # what a library leaves behind that Ctrl-C stopped while it was loaded
    def __del__(self, abort=os.abort):
        abort()

def stopped(words):
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
half, simulator.cli.app._run = Half(), stopped
atexit.register(print, "cleaned up")
simulator.cli.main()
"""


def left_by(program: str, folder: Path) -> tuple[int, str]:
    """What a program in Python leaves with, and what it said to its user."""
    left = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return left.returncode, left.stderr


def test_a_stopped_program_ends_before_half_loaded_libraries_are_taken_down(tmp_path: Path) -> None:
    assert (130, "") == left_by(HALF_LOADED, tmp_path)


POOL_LEFT = """
import os, signal, simulator.cli, simulator.cli.app
from simulator.processes import Helpers, processes_of

def stopped(words):
    global pool
    pool = processes_of(2)  # and nobody has come to the end of it
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
simulator.cli.app._run = stopped
simulator.cli.main()
"""


def test_a_stopped_program_ends_its_processes_before_their_queues(tmp_path: Path) -> None:
    assert (130, "") == left_by(POOL_LEFT, tmp_path)


POOL_LOST = """
import concurrent.futures.process as process, time

def slow(self, wake=process._ThreadWakeup.wakeup):
    if not self._closed:
        time.sleep(0.5)
        self._writer.send_bytes(b"")

process._ThreadWakeup.wakeup = slow
""" + POOL_LEFT.replace("    global pool\n    pool = ", "    ")  # lost, so it ends by itself


def test_a_stopped_program_does_not_mind_processes_that_end_by_themselves(tmp_path: Path) -> None:
    assert (130, "") == left_by(POOL_LOST, tmp_path)


def test_ctrl_c_at_the_start_of_processes_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits while they are forked, though Python is told of it at once: numpy has threads that any signal may go to."""
    usual, before = Helpers.submit, set(multiprocessing.active_children())
    told: list[object] = []

    def interrupted(pool: Helpers, *arguments: Any) -> Any:
        threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,)).start()
        found = usual(pool, *arguments)
        time.sleep(0.1)
        told.append(found)
        return found

    monkeypatch.setattr(Helpers, "submit", interrupted)
    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            processes_of(2)
    finally:
        signal.signal(signal.SIGINT, was)
    assert told
    assert set(multiprocessing.active_children()) <= before


SEARCH_LEFT = """
import multiprocessing
from simulator.search.run import Run
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.job import job_from_names

def interrupted(self, looked):
    self.executor.submit(__import__("time").sleep, 60.0)
    raise KeyboardInterrupt

Run.simulate = interrupted
job = job_from_names("gpt3_1_3b", "h100_x8", ["workload.global_batch_size=64"])
space = make_space(job, read_ranges(["tensor_parallel=1,2"]), {})
assert search(space, processes=2, partial=True).stopped
assert not multiprocessing.active_children()
"""


OF_A_SERVER = """
import multiprocessing, time
from simulator.processes import processes_of

if __name__ == "__main__":
    multiprocessing.set_start_method("forkserver")  # Python's default on Linux from 3.14 on
    with processes_of(2) as pool:
        time.sleep(1.5)
        assert [1, 2] == list(pool.map(abs, [-1, 2]))
"""


def test_processes_that_a_server_forks_stay_as_long_as_who_asked(tmp_path: Path) -> None:
    """Their parent is another process."""
    (tmp_path / "asks.py").write_text(OF_A_SERVER)
    assert (0, "") == left_by("import runpy; runpy.run_path('asks.py', run_name='__main__')", tmp_path)


WITH_THREADS = """
import multiprocessing, threading, time, warnings
from simulator.processes import processes_of

if __name__ == "__main__":
    warnings.simplefilter("error")
    usual, held = multiprocessing.get_start_method(), threading.Lock()
    with processes_of(2) as pool:
        assert usual == type(next(iter(pool._processes.values())))._start_method
        assert [1, 2] == list(pool.map(abs, [-1, 2]))
    threading.Thread(target=lambda: held.acquire() and time.sleep(30.0), daemon=True).start()
    with processes_of(2) as pool:
        assert "fork" != type(next(iter(pool._processes.values())))._start_method
        assert [1, 2] == list(pool.map(abs, [-1, 2]))
"""


def test_a_process_with_threads_is_not_forked_and_none_warns(tmp_path: Path) -> None:
    """A lock that another thread holds would be held for ever in a fork."""
    (tmp_path / "asks.py").write_text(WITH_THREADS)
    assert (0, "") == left_by("import runpy; runpy.run_path('asks.py', run_name='__main__')", tmp_path)


def test_a_stopped_search_ends_its_processes_before_it_answers(tmp_path: Path) -> None:
    """Python that leaves while a pool ends by itself wakes what is closed a moment later: bad file descriptor."""
    assert (0, "") == left_by(SEARCH_LEFT, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [("search", "gpt3_175b", "--processes", "2", "--deadline", "120s"), ("sweep", "many.toml", "--processes", "2")],
    ids=" ".join,
)
def test_helpers_do_not_outlive_who_asked(arguments: tuple[str, ...], kind: signal.Signals, tmp_path: Path) -> None:
    many = 'job = "gpt3_175b"\n[vary]\n"workload.global_batch_size" = ['
    (tmp_path / "many.toml").write_text(many + ", ".join(str(256 * n) for n in range(1, 2000)) + "]\n")
    process = begun_program(tmp_path, *arguments)
    try:
        helpers = patiently(lambda: found if len(found := children(process.pid)) == 2 else [])
        assert helpers
        process.send_signal(kind)
        said = process.communicate(timeout=PATIENCE)[1]
        assert "Traceback" not in said, said
        assert [True] == patiently(lambda: [True] if not any(map(runs, helpers)) else [])
    finally:
        process.kill()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def runs(pid: int) -> bool:
    """Whether a process is there; one that has ended may stay in the table for as long as nobody asks for its exit code."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def patiently(look: Callable[[], list[Any]]) -> list[Any]:
    """What `look` finds; the machine may be busy."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.1)
    return []


def swallowing(error: Exception) -> Callable[[str], None]:
    """What is stopped by Ctrl-C and raises an error of its own instead."""

    def stopped(name: str) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    return stopped


@contextlib.contextmanager
def heeded_ctrl_c() -> Iterator[None]:
    """As in a terminal: a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_inside_a_library_that_says_something_else(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.cli.app._verb", swallowing(ValueError("Error building a validator")))
    with heeded_ctrl_c():
        assert (130, "", "") == dtsim("list", "gpus")
    monkeypatch.setattr("simulator.cli.app._verb", lambda name: 1 / 0)
    assert dtsim("list", "gpus")[0] == 1  # without Ctrl-C it is our fault


def test_ctrl_c_that_leaves_too_little_to_write_is_still_ctrl_c(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    error = SpecError("a picture shows plans that were simulated, but none was")
    monkeypatch.setattr("simulator.cli.app._verb", swallowing(error))
    with heeded_ctrl_c():
        code, _, said = dtsim("list", "gpus")
    assert (130, True) == (code, "none was" in said)


def test_ctrl_c_inside_a_callback_of_compiled_code_is_not_lost(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(name: str) -> None:
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
        time.sleep(600)

    monkeypatch.setattr("simulator.cli.app._verb", compiled)
    begun = time.monotonic()
    with heeded_ctrl_c():
        assert (130, "", "") == dtsim("list", "gpus")
    assert time.monotonic() - begun < 300


def test_what_destructors_say_after_ctrl_c_is_not_shown(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        def __del__(self) -> None:
            raise AttributeError("half made")

    def stopped(name: str) -> None:
        half = Half()
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        del half
        raise KeyboardInterrupt

    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr("simulator.cli.app._verb", stopped)
    with heeded_ctrl_c():
        assert 130 == dtsim("list", "gpus")[0]
    assert [] == told


def test_ctrl_c_at_the_moment_it_is_first_heeded(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    heed = signal.signal

    def heeded(number: int, handler: Any) -> Any:
        before = heed(number, handler)
        if getattr(handler, "__name__", "") == "_stop":
            signal.raise_signal(signal.SIGINT)
        return before

    with heeded_ctrl_c():
        monkeypatch.setattr(signal, "signal", heeded)
        assert (130, "", "") == dtsim("list", "gpus")


def test_ctrl_c_while_the_answer_is_written_out(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(code: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.cli.app._flushed", interrupted)
    monkeypatch.setattr("simulator.cli.app._drop_output", lambda: None)
    with heeded_ctrl_c():
        assert 130 == dtsim("list", "gpus")[0]
        assert signal.default_int_handler is signal.getsignal(signal.SIGINT)
