"""The fuzzers with a fixed seed: a few inputs of each kind in the quick suite, more of them in CI."""

from __future__ import annotations

import pytest

from tests.fuzz import runner
from tests.fuzz.runner import Tally, fuzz
from tests.fuzz.targets import TARGETS, Target


def report(tallies: dict[str, Tally]) -> None:
    print("\n" + "\n".join(tally.line(name) for name, tally in tallies.items()))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_few_inputs(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_BATCH", 12)
    report(fuzz(60.0, 1, (target,), most=1))


@pytest.mark.slow
def test_a_batch_of_every_kind_goes_deep() -> None:
    """As many inputs on every machine, however slow: `python -m tests.fuzz` goes on for as long as it is told."""
    tallies: dict[str, Tally] = {}
    for target in TARGETS:
        tallies |= fuzz(60.0, 20_000, (target,), most=1)
    report(tallies)
    known = [tally for tally in tallies.values() if tally.checked]
    assert sum(t.deep for t in known) >= 0.4 * sum(t.checked for t in known)
