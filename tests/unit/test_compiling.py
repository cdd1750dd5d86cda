"""The engine says that it is compiled when it is, and at no other time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTE = "compiling the engine once"
CAPTURED: Any = {"capture_output": True, "text": True}


def dtsim(where: Path, cache: Path | None, *arguments: str, called: bool = False) -> subprocess.CompletedProcess[str]:
    """The command from the sources in a folder, with its compiled code in another; or the same called by a program."""
    environment = os.environ | {"PYTHONPATH": str(where)} | ({"NUMBA_CACHE_DIR": str(cache)} if cache else {})
    how = ["-c", "import sys; from simulator.cli import main; main(sys.argv[1:])"] if called else ["-m", "simulator"]
    return subprocess.run([sys.executable, *how, *arguments], env=environment, cwd=where, **CAPTURED)


COMPILES = """
from simulator.cli.output import note, tell_compiling
from simulator.compiled import compiled
tell_compiling(); tell_compiling()
note("nothing yet")
for loop in (compiled(cache=False)(lambda x: 2 * x), compiled(cache=False)(lambda x: 3 * x)):
    assert loop(1.0) > 1.0
"""


def test_it_is_said_once_and_only_when_something_is_compiled() -> None:
    left = subprocess.run([sys.executable, "-c", COMPILES], env=os.environ | {"PYTHONPATH": str(ROOT)}, **CAPTURED)
    assert ["nothing yet", NOTE] == [line[: len(NOTE)] for line in left.stderr.splitlines()]


def test_the_first_command_after_an_installation_compiles_nothing(tmp_path: Path) -> None:
    left = dtsim(ROOT, tmp_path / "empty", "run", "gpt2_124m_2gpu", "--json")
    assert (0, False) == (left.returncode, (tmp_path / "empty").exists())
    assert left.stdout == dtsim(ROOT, None, "run", "gpt2_124m_2gpu", "--json", called=True).stdout


def test_noise_that_is_not_there_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    left = dtsim(ROOT, tmp_path / "empty", "run", "gpt2_124m_2gpu", "--samples", "5")
    assert (2, "") == (left.returncode, left.stdout)
    assert 1 == len(left.stderr.strip().splitlines())
    assert "describes no noise" in left.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "schedule auto -p 2 -m 2 --memory-limit 2 --json",
        "goodput gpt2_124m_1gpu --days 1 --samples 2 --no-levers --json",
    ],
)
def test_what_is_compiled_beside_the_engine_is_said_too(tmp_path: Path, words: str) -> None:
    left = dtsim(ROOT, tmp_path / "empty", *words.split())
    assert (0, 1) == (left.returncode, left.stderr.count(NOTE))


@pytest.mark.slow
def test_sources_that_are_newer_but_equal_are_not_compiled_again(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "simulator", tmp_path / "simulator", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("hardware_specs", "workloads"):
        (tmp_path / data).symlink_to(ROOT / data)
    arguments = (tmp_path, tmp_path / "cache", "schedule", "gpipe", "-p", "2", "-m", "2")
    said = []
    for _ in range(3):
        said.append(NOTE in dtsim(*arguments, called=True).stderr)
        for source in (tmp_path / "simulator").rglob("*.py"):
            source.touch()
    assert [True, False, False] == said
