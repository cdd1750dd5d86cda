"""The fuzzers with a fixed seed: a few inputs of each kind in the quick suite, about two minutes of them in CI."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from simulator.remembered import forget_all
from tests.fuzz.runner import Tally, fuzz
from tests.fuzz.targets import TARGETS, Target

COLLECTIVES = tuple(target for target in TARGETS if target.name == "collectives")


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Children are copies of this process: they start with little, and what they need not search is searched again afterwards."""
    forget_all()
    yield
    gc.unfreeze()


def report(tallies: dict[str, Tally]) -> None:
    print("\n" + "\n".join(tally.line(name) for name, tally in tallies.items()))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_inputs(target: Target) -> None:
    (tally,) = fuzz(3600.0, 1, (target,), most=2).values()
    assert (2, []) == (tally.inputs, tally.failures)


@pytest.mark.slow
def test_many_inputs_of_every_kind_of_which_half_go_deep() -> None:
    """As many inputs on every machine, however slow: `python -m tests.fuzz` goes on for as long as it is told."""
    tallies = fuzz(3600.0, 20_000, most=150)
    report(tallies)
    assert {150} == {tally.inputs for tally in tallies.values()}
    assert not [failure for tally in tallies.values() for failure in tally.failures]
    assert sum(tally.deep for tally in tallies.values()) >= 0.5 * sum(tally.inputs for tally in tallies.values())


def test_what_fails_is_told_with_its_number(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(words: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("tests.fuzz.runner._warm", lambda: None)
    monkeypatch.setattr("simulator.cli.app.main", broken)
    (tally,) = fuzz(60.0, 7, COLLECTIVES, most=2).values()
    assert ["collectives, seed 7, number 0: ZeroDivisionError: planted"] == tally.failures[:1]
    assert "collectives, seed 7, number 1" in capfd.readouterr().err


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
