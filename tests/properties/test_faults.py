"""What the machine does to us: full disks, closed outputs, deleted folders, pipes for files, damaged caches, two first runs."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Dtsim
from tests.properties.writers import (
    BESIDE,
    INPUTS,
    JOB,
    PATIENCE,
    PROGRAM,
    WRITERS,
    call,
    environment,
    folder,
    output_of,
)

__all__ = ["folder"]

pytestmark = pytest.mark.usefixtures("little_remembered")


def check_refused(left: subprocess.CompletedProcess[str]) -> None:
    """One readable message, no traceback, exit code 2."""
    assert 2 == left.returncode, left.stderr
    assert "Traceback" not in left.stderr
    assert "internal error" not in left.stderr
    assert left.stderr.startswith("error: ")


@pytest.mark.parametrize("what", WRITERS)
def test_what_exists_is_not_overwritten_unless_told(
    what: str, folder: Path, dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch
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
    what: str, folder: Path, dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch
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
    dtsim: Dtsim,
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
    dtsim: Dtsim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ends = next(word.partition("}")[2] for word in arguments if "{}" in word)
    name = f"special{ends or '.toml'}"
    if special == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    code, _, error = dtsim(*(word.format("special" if ends else name) for word in arguments))
    assert (2, True) == (code, f"is a {special}" in error), error


def test_a_pipe_among_the_data_files_is_named(tmp_path: Path, dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
def test_two_first_runs_at_once(tmp_path: Path) -> None:
    env = environment(NUMBA_CACHE_DIR=str(tmp_path))
    both = [
        subprocess.Popen([*PROGRAM, "run", JOB, "--json"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=PATIENCE)[0] for process in both]
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


def test_nothing_is_left_when_writing_is_broken_off(tmp_path: Path) -> None:
    from simulator.specs import replacing

    path = tmp_path / "answer.csv"
    path.write_text("old")
    with contextlib.suppress(KeyboardInterrupt), replacing(path) as beside:
        beside.write_text("ne")
        raise KeyboardInterrupt
    assert ["answer.csv"] == [entry.name for entry in tmp_path.iterdir()]
    assert "old" == path.read_text()
