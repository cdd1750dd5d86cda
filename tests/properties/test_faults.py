"""What the machine does to us: full disks, closed outputs, deleted folders, pipes for files, signals at any moment."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "simulator"]
JOB = "gpt2_124m_2gpu"
SEED = os.environ.get("SEED", "")
FORKS = int(os.environ.get("FORKS", "6"))
"""What draws the moments of signals, and how many for each verb that writes: SEED=7 FORKS=60 pytest -m slow tests/properties/..."""
WRITERS = {
    "trace": ("run", JOB, "--trace", "out.json"),
    "packed trace": ("run", JOB, "--trace", "out.json.gz"),
    "picture": ("run", JOB, "--plot", "out.png"),
    "page": ("run", JOB, "--report", "out.html"),
    "comparison": ("compare", JOB, "--zero", "0,1", "--plot", "out.png"),
    "order": ("schedule", "1f1b", "-p", "4", "-m", "80", "--output", "out.txt"),
    "found order": ("schedule", "auto", "-p", "4", "-m", "8", "--output", "out.txt"),
    "timeline": ("schedule", "gpipe", "-p", "2", "-m", "2", "--format", "png", "--output", "out.png"),
    "sizes": ("collective", "all_reduce", "--sizes", "1KiB:1GiB", "--cluster", "dgx_h100", "--ranks", "8", "--plot", "out.png"),
    "exported trace": ("export", "chrome", JOB, "--output", "out.json"),
    "exported order": ("export", "torch-csv", "gpt3_175b", "--output", "out.csv"),
    "job": ("init", "--model", "gpt2_124m", "--output", "out.toml"),
    "profile": ("calibrate", "gemm", "products.csv", "--output", "out.toml"),
    "rows": ("validate", "table.csv", "--output", "out.csv"),
    "table of a step": ("run", JOB, "--output", "out.csv"),
    "columns of a step": ("run", JOB, "--output", "out.parquet"),
    "compared": ("compare", JOB, "--zero", "0,1", "--output", "out.csv"),
    "timelines": ("compare", JOB, "--zero", "0,1", "--timelines", "out.png"),
    "sizes as a table": ("collective", "all_reduce", "--sizes", "1KiB:1GiB", "--cluster", "dgx_h100", "--ranks", "8", "-o", "out.csv"),
    "schedules": ("schedule", "1f1b,gpipe", "-p", "4", "-m", "8", "--format", "table", "-o", "out.csv"),
    "launch script": ("export", "megatron", "gpt3_175b", "--output", "out.sh"),
    "settings": ("export", "deepspeed", "llama_7b_4x4090", "--output", "out.json"),
    "imported": ("import", "deepspeed.json", "--cluster", "dgx_h100", "--output", "out.toml"),
    "chosen plan": ("search", JOB, "--range", "plan.zero_stage=0,1", "--output", "out.toml"),
    "plans": ("search", JOB, "--range", "plan.zero_stage=0,1", "--plot", "out.png"),
    "plans by helpers": ("search", JOB, "--range", "plan.zero_stage=0,1", "--processes", "2", "-o", "out.toml"),
    "fewest": ("fit", "gpt2_124m", "--cluster", "a100_x8", "--fewest", "gpus", "--output", "out.toml"),
    "weeks": ("goodput", JOB, "--samples", "5", "--report", "out.html"),
    "weeks drawn": ("goodput", JOB, "--samples", "5", "--plot", "out.png"),
    "errors": ("validate", "runs.csv", "--kind", "runs", "--report", "out.html"),
    "spread of errors": ("validate", "runs.csv", "--kind", "runs", "--residuals", "out.toml"),
    "layout drawn": ("layout", "gpt2_124m", "--mesh", "rows=2,cols=2", "--map", "batch=rows", "--plot", "out.png"),
    "study": ("sweep", "study.toml", "--processes", "1", "-o", "out.csv"),
    "study drawn": ("sweep", "study.toml", "--processes", "2", "-o", "out.csv", "--plot", "out.png"),
    "with other networks": ("search", JOB, "--range", "plan.zero_stage=0,1", "--sensitivity", "out.png"),
    "figure": ("compare", JOB, "--zero", "0,1", "--figure", "out.pdf"),
}  # fmt: skip
"""Every verb that writes, and what."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def call(*arguments: str, where: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "env": environment(), **options}
    return subprocess.run([*PROGRAM, *arguments], cwd=where, stderr=subprocess.PIPE, text=True, timeout=300, **options)


BEGIN = "import simulator.cli, sys; print('begun', file=sys.stderr, flush=True); simulator.cli.main()"


def begun_program(where: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command as a process in which Python itself has started: until then Ctrl-C is Python's own affair."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, *arguments],
        cwd=where,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stderr is not None
    assert "begun\n" == process.stderr.readline()
    return process


def check_refused(left: subprocess.CompletedProcess[str]) -> None:
    """One readable message, no traceback, exit code 2."""
    assert 2 == left.returncode, left.stderr
    assert "Traceback" not in left.stderr
    assert "internal error" not in left.stderr
    assert left.stderr.startswith("error: ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = (ROOT / "tests" / "data" / "held_out_kernels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "table.csv").write_text("".join(lines[:40]))
    products = (ROOT / "tests" / "data" / "gemm_sample.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "products.csv").write_text(
        "".join(p for p in products if "h100" in p or p.startswith(("#", "op", "gpu")))
    )
    shutil.copy(ROOT / "tests" / "data" / "measured_runs.csv", tmp_path / "runs.csv")
    shutil.copy(ROOT / "tests" / "data" / "imports" / "deepspeed.json", tmp_path)
    study = 'model = "gpt2_124m"\ncluster = "h100_x8"\n[vary]\n"plan.zero_stage" = [0, 1]\n'
    (tmp_path / "study.toml").write_text(study)
    return tmp_path


INPUTS = {"deepspeed.json", "products.csv", "runs.csv", "study.toml", "table.csv"}
BESIDE = {"study": {"out.results.jsonl"}, "study drawn": {"out.csv", "out.results.jsonl"}}
"""What else a verb leaves: a sweep's results are kept point by point."""


def output_of(what: str, folder: Path) -> Path:
    return folder / [word for word in WRITERS[what] if word.startswith("out.")][-1]


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in INPUTS:
            path.unlink()


@pytest.mark.parametrize("what", WRITERS)
def test_what_exists_is_not_overwritten_unless_told(
    what: str, folder: Path, dtsim: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    path = output_of(what, folder)
    path.write_text("mine")
    path.chmod(0o640)
    code, out, error = dtsim(*WRITERS[what])
    assert (2, "", True) == (code, out, "--force" in error)
    assert "mine" == path.read_text()
    code, _, error = dtsim(*WRITERS[what], "--force")
    assert 0 == code, error
    assert b"mine" != path.read_bytes()
    assert 0o640 == path.stat().st_mode & 0o777
    assert INPUTS | {path.name} | BESIDE.get(what, set()) == {entry.name for entry in folder.iterdir()}


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow beyond some bytes, as a full disk would; Python ignores the signal and gets an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("what", [what for what in WRITERS if what not in ("exported order", "found order")])
def test_a_full_disk_leaves_nothing_half_written(
    what: str, folder: Path, dtsim: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with full_disk():
        code, _, error = dtsim(*WRITERS[what])
    assert (2, True) == (code, "File too large" in error), error
    assert INPUTS == {path.name for path in folder.iterdir()} - BESIDE.get(what, set())


def test_outputs_that_take_nothing(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        check_refused(call("list", "jobs", where=tmp_path, stdout=full))
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *PROGRAM, "run", JOB],
        env=environment(),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    check_refused(closed)
    silent = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *PROGRAM, "list", "nothing"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (2, b"", b"") == (silent.returncode, silent.stdout, silent.stderr)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", JOB), 0),
        (("compare", JOB, "--zero", "0,1"), 0),
        (("list", "jobs"), 0),
        (("init", "--output", "-"), 0),
        (("run", "./mine.toml"), 2),
        (("run", JOB, "--trace", "out.json"), 2),
        (("validate", "mine.csv"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_working_directory_that_was_deleted(
    arguments: tuple[str, ...],
    code: int,
    tmp_path: Path,
    dtsim: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    left, _, error = dtsim(*arguments)
    assert (code, False) == (left, "internal" in error), error


@pytest.mark.parametrize("special", ["pipe", "device"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "{}"),
        ("validate", "{}"),
        ("schedule", "{}.csv"),
        ("init", "--model", "{}.json", "--output", "-"),
        ("calibrate", "nccl", "{}", "--cluster", "dgx_h100", "--output", "new.toml"),
        ("calibrate", "gemm", "{}", "--output", "new.toml"),
        ("calibrate", "attention", "{}", "--output", "new.toml"),
        ("calibrate", "memory", "{}", "--output", "new.toml"),
        ("calibrate", "overlap", "{}", "--output", "interference_new.toml"),
    ],
    ids=" ".join,
)
def test_what_gives_bytes_without_end_or_never_is_not_read(
    special: str,
    arguments: tuple[str, ...],
    tmp_path: Path,
    dtsim: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ends = next(word.partition("}")[2] for word in arguments if "{}" in word)
    name = f"special{ends or '.toml'}"
    if special == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    begun = time.monotonic()
    code, _, error = dtsim(*(word.format("special" if ends else name) for word in arguments))
    assert (2, True) == (code, f"is a {special}" in error), error
    assert time.monotonic() - begun < 20


def test_a_pipe_among_the_data_files_is_named(
    tmp_path: Path, dtsim: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hardware_specs" / "gpus"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "strange.toml")
    monkeypatch.chdir(tmp_path)
    for arguments in (("list", "gpus"), ("show", "gpus", "strange")):
        code, _, error = dtsim(*arguments)
        assert (2, True) == (code, "strange.toml: is a pipe" in error)


@pytest.mark.slow
def test_a_damaged_compile_cache_is_told_with_a_way_out(tmp_path: Path) -> None:
    arguments = ("schedule", "gpipe", "-p", "2", "-m", "2")
    env = environment(NUMBA_CACHE_DIR=str(tmp_path))
    assert 0 == call(*arguments, where=tmp_path, env=env).returncode
    for ending in (".nbc", ".nbi"):
        for path in tmp_path.rglob(f"*{ending}"):
            path.write_bytes(path.read_bytes()[:20])
        left = call(*arguments, where=tmp_path, env=env)
        if left.returncode:
            check_refused(left)
            assert str(tmp_path) in left.stderr
            assert "Way out: delete" in left.stderr


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
    """The command in a copy of this process, which has imported and compiled what it needs: all its time goes to the work."""
    with (folder / "said").open("w") as said:
        child = os.fork()
        if not child:
            code: object = 1
            try:
                os.chdir(folder)
                for stream in (1, 2):
                    os.dup2(said.fileno(), stream)
                sys.stdout = sys.stderr = said
                signal.signal(signal.SIGINT, signal.default_int_handler)
                main(arguments)
            except SystemExit as left:
                code = left.code or 0
            except BaseException:
                traceback.print_exc()
            finally:
                said.flush()
                os._exit(int(str(code)))
        yield child
    (folder / "said").unlink()


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
        said = process.communicate(timeout=300)[1]
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
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
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

half, simulator.cli.app._run = Half(), stopped
atexit.register(print, "cleaned up")
simulator.cli.main()
"""


def test_a_stopped_program_ends_before_half_loaded_libraries_are_taken_down(tmp_path: Path) -> None:
    left = subprocess.run(
        [sys.executable, "-c", HALF_LOADED],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (130, "") == (left.returncode, left.stderr)


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
        helpers = patiently(lambda: children(process.pid) if len(children(process.pid)) == 2 else [])
        process.send_signal(kind)
        said = process.communicate(timeout=300)[1]
        assert "Traceback" not in said, said
        assert [True] == patiently(lambda: [True] if not any(Path(f"/proc/{pid}").exists() for pid in helpers) else [])
    finally:
        process.kill()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def patiently(look: Callable[[], list[Any]]) -> list[Any]:
    """What `look` finds, within two minutes: the machine may be busy."""
    for _ in range(1200):
        if found := look():
            return found
        time.sleep(0.1)
    return []


def test_ctrl_c_inside_a_library_that_says_something_else(
    dtsim: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallow(name: str) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("Error building a validator")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        monkeypatch.setattr("simulator.cli.app._verb", swallow)
        assert (130, "", "") == dtsim("list", "gpus")
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.setattr("simulator.cli.app._verb", lambda name: 1 / 0)
    assert dtsim("list", "gpus")[0] == 1  # without Ctrl-C it is our fault


def test_ctrl_c_inside_a_callback_of_compiled_code_is_not_lost(
    dtsim: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(name: str) -> None:
        ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
        time.sleep(10)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    try:
        monkeypatch.setattr("simulator.cli.app._verb", compiled)
        assert (130, "", "") == dtsim("list", "gpus")
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < 5


@pytest.mark.slow
def test_two_first_runs_at_once(tmp_path: Path) -> None:
    env = environment(NUMBA_CACHE_DIR=str(tmp_path))
    both = [
        subprocess.Popen([*PROGRAM, "run", JOB, "--json"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=600)[0] for process in both]
    assert [0, 0] == [process.returncode for process in both]
    assert answers[0] == answers[1] != b""


@pytest.mark.slow
def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    """Neither the package nor the home takes compiled code: an answer, or what to do about it."""
    env = environment(NUMBA_CACHE_DIR="/proc/nowhere", HOME="/proc/nowhere")
    left = call("schedule", "gpipe", "-p", "2", "-m", "2", where=tmp_path, env=env)
    if left.returncode:
        check_refused(left)
        assert "NUMBA_CACHE_DIR" in left.stderr


def test_ctrl_c_while_the_answer_is_written_out(
    dtsim: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(code: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.cli.app._flushed", interrupted)
    monkeypatch.setattr("simulator.cli.app._drop_output", lambda: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert 130 == dtsim("list", "gpus")[0]
        assert signal.default_int_handler is signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_left_when_writing_is_broken_off(tmp_path: Path) -> None:
    from simulator.specs import replacing

    path = tmp_path / "answer.csv"
    path.write_text("old")
    with contextlib.suppress(KeyboardInterrupt), replacing(path) as beside:
        beside.write_text("ne")
        raise KeyboardInterrupt
    assert ["answer.csv"] == [entry.name for entry in tmp_path.iterdir()]
    assert "old" == path.read_text()
