"""A prediction does not depend on what was computed before it: any order of plans, and caches emptied in between, give the same bytes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest

from simulator.remembered import forget_all
from tests.replay.cases import PLANS, cases
from tests.replay.recorder import Recorder

EVERY = 120
"""Of the replay's plans, each so-many-th is predicted here."""


def forget_everything() -> None:
    """Empty every cache of the package but those of its files and compiled kernels."""
    forget_all()
    rooms = ("collectives", "costs", "lowering", "program", "report", "schedules", "simulation")
    for name, module in list(sys.modules.items()):
        if name.startswith(tuple(f"simulator.{room}" for room in rooms)):
            for thing in vars(module).values():
                clear = getattr(thing, "cache_clear", None)
                if clear is not None and getattr(thing, "__module__", "") == name and thing.__name__ != "_kernel":
                    clear()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    out = Recorder()
    yield out
    out.close()


def test_neither_order_nor_caches_change_a_bit(recorder: Recorder) -> None:
    assert PLANS.exists()
    work = [made for name, made in cases() if name.startswith("plan ")][17::EVERY]
    alone = []
    for made in work:
        forget_everything()
        alone.append(recorder.digest(made))
    chance = random.Random(17)
    turns = [*range(len(work)), *range(len(work))]
    chance.shuffle(turns)
    for turn in turns:
        if chance.random() < 0.1:
            forget_everything()
        assert recorder.digest(work[turn]) == alone[turn], f"plan {18 + EVERY * turn}"
