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


def dtsim(where: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command from the sources in a folder, with its compiled code in another."""
    environment = os.environ | {"PYTHONPATH": str(where), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-m", "simulator", *arguments], env=environment, cwd=where, **CAPTURED)


COMPILES = """
import numba
from simulator.cli.output import note, tell_compiling
tell_compiling(); tell_compiling()
note("nothing yet")
for factor in (2, 3):
    numba.njit(lambda x, by=factor: by * x)(1.0)
"""


def test_it_is_said_once_and_only_when_something_is_compiled() -> None:
    left = subprocess.run([sys.executable, "-c", COMPILES], env=os.environ | {"PYTHONPATH": str(ROOT)}, **CAPTURED)
    assert ["nothing yet", NOTE] == [line[: len(NOTE)] for line in left.stderr.splitlines()]


def test_noise_that_is_not_there_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    left = dtsim(ROOT, tmp_path / "empty", "run", "gpt2_124m_2gpu", "--samples", "5")
    assert (2, "") == (left.returncode, left.stdout)
    assert 1 == len(left.stderr.strip().splitlines())
    assert "describes no noise" in left.stderr


@pytest.mark.slow
def test_sources_that_are_newer_but_equal_are_not_compiled_again(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "simulator", tmp_path / "simulator", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("hardware_specs", "workloads"):
        (tmp_path / data).symlink_to(ROOT / data)
    arguments = (tmp_path, tmp_path / "cache", "schedule", "gpipe", "-p", "2", "-m", "2")
    said = []
    for _ in range(3):
        said.append(NOTE in dtsim(*arguments).stderr)
        for source in (tmp_path / "simulator").rglob("*.py"):
            source.touch()
    assert [True, False, False] == said
