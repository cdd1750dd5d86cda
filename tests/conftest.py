"""What test files share: the command as a function, and what pytest must not collect (scripts that child processes run)."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from simulator.cli.app import main
from simulator.remembered import forget_all
from tests.command import Dtsim

# How long a machine takes is no property of what is tested. A change is judged by the same inputs everywhere;
# `nox -s explore` draws others.
HOWEVER_SLOW: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **HOWEVER_SLOW)
settings.register_profile("explore", max_examples=1000, print_blob=True, **HOWEVER_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

collect_ignore = ["validation/torch_stages.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Tests and what they import are no garbage: a tenth of the time went into searching them.  Speeds are printed as users have them."""
    if config.getoption("markexpr") != "benchmark":
        gc.set_threshold(10_000, 10, 100)


def pytest_sessionfinish() -> None:
    """Leave without five searches of all that was made: what is found in them after the last test is judged by none."""
    gc.freeze()


@pytest.fixture
def little_remembered() -> None:
    """For tests that fork: a child need not copy, and let go of, what all the tests before have left to be remembered."""
    forget_all()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dtsim(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dtsim:
    """The command with these words: (exit code, standard output, standard error); lines are as long as they are, not as the terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call
