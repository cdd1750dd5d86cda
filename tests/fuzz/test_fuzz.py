"""The fuzzers with a fixed seed: a few inputs of each kind in the quick suite, more of them in CI."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.remembered import forget_all
from tests.fuzz.runner import Tally, fuzz
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
COLLECTIVES = tuple(target for target in TARGETS if target.name == "collectives")


@pytest.fixture
def _small() -> Iterator[None]:
    """Children are copies of this process: they start with little, and what they need not search is searched again afterwards."""
    forget_all()
    yield
    gc.unfreeze()


def fuzzed(seed: int, inputs: int) -> dict[str, Tally]:
    """So many inputs of each kind.  In a program of its own: it forks, and threads that tests before it left here would hold locks."""
    words = ("-m", "tests.fuzz", "--json", "--minutes", "60", "--seed", str(seed), "--inputs", str(inputs))
    said = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=3600)
    assert said.stdout, said.stderr
    return {name: Tally(**tally) for name, tally in json.loads(said.stdout).items()}


def test_a_few_inputs() -> None:
    tallies = fuzzed(1, 2)
    assert {target.name: (2, []) for target in TARGETS} == {
        name: (tally.inputs, tally.failures) for name, tally in tallies.items()
    }


@pytest.mark.slow
def test_many_inputs_of_every_kind_of_which_half_go_deep() -> None:
    """As many inputs on every machine, however slow: `python -m tests.fuzz` goes on for as long as it is told."""
    tallies = fuzzed(20_000, 60)
    print("\n" + "\n".join(tally.line(name) for name, tally in tallies.items()))
    assert {60} == {tally.inputs for tally in tallies.values()}
    assert not [failure for tally in tallies.values() for failure in tally.failures]
    assert sum(tally.deep for tally in tallies.values()) >= 0.5 * sum(tally.inputs for tally in tallies.values())


@pytest.mark.usefixtures("_small")
def test_what_fails_is_told_with_its_number(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(words: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("tests.fuzz.runner._warm", lambda: None)
    monkeypatch.setattr("simulator.cli.app.main", broken)
    (tally,) = fuzz(60.0, 7, COLLECTIVES, most=2).values()
    assert ["collectives, seed 7, number 0: ZeroDivisionError: planted"] == tally.failures[:1]
    assert "collectives, seed 7, number 1" in capfd.readouterr().err


@pytest.mark.usefixtures("_small")
def test_compiled_code_that_never_returns_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal
    import time

    def endless(words: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
        while True:
            time.process_time()

    monkeypatch.setattr("tests.fuzz.runner._warm", lambda: None)
    monkeypatch.setattr("tests.fuzz.runner._WATCH", 0.01)
    monkeypatch.setattr("tests.fuzz.runner._PATIENCE", 0.1)
    monkeypatch.setattr("simulator.cli.app.main", endless)
    (tally,) = fuzz(60.0, 7, COLLECTIVES, most=2).values()
    assert [True, True] == ["no answer after 0.2 s of" in failure for failure in tally.failures]
    assert 2 == tally.inputs


@pytest.mark.usefixtures("_small")
def test_what_waits_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a thread held when the child was forked, say: it takes no processor's time at all."""
    import time

    monkeypatch.setattr("tests.fuzz.runner._warm", lambda: None)
    monkeypatch.setattr("tests.fuzz.runner._STILL", 0.3)
    monkeypatch.setattr("tests.fuzz.runner._PATIENCE", 0.1)
    monkeypatch.setattr("simulator.cli.app.main", lambda words: time.sleep(3600.0))
    begun = time.monotonic()
    (tally,) = fuzz(60.0, 7, COLLECTIVES, most=1).values()
    assert ["or 0.3 s of the clock" in failure for failure in tally.failures] == [True]
    assert time.monotonic() - begun < 60.0
