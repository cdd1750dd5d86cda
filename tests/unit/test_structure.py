"""Structures of rows are shared by plans that have the same, never changed, and kept up to a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import ProgramError
from simulator.lowering import lower
from simulator.lowering.steps import structure as structures
from simulator.plan.plan import Plan
from simulator.program.program import Program
from simulator.program.rows import COLUMNS
from simulator.program.spec import verify
from simulator.remembered import Remembered
from simulator.workload.model import load_model
from simulator.workload.workload import Workload


def lowered(**plan: Any) -> Program:
    work = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=32)
    return lower(work, Plan(tensor_parallel=2, pipeline_parallel=4, data_parallel=2, **plan))


def shared(one: Program, two: Program) -> bool:
    return all(getattr(one, name) is getattr(two, name) for name in COLUMNS if len(getattr(one, name)))


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_plans_that_recompute_more_or_less_share_their_rows(zero: int) -> None:
    one, two = (lowered(zero_stage=zero, recompute=kind) for kind in ("none", "full"))
    assert shared(one, two)
    assert one.rows is two.rows
    assert one.items != two.items


def test_a_tied_embedding_or_copies_in_two_lanes_are_shared_too() -> None:
    work = Workload(model=load_model("gpt3_1_3b"), sequence_length=2048, global_batch_size=32)
    for plan in ({"pipeline_parallel": 4}, {"pipeline_parallel": 4, "schedule": "chimera"}):
        one, two = (lower(work, Plan(data_parallel=2, recompute=kind, **plan)) for kind in ("none", "full"))
        assert shared(one, two)


def test_another_order_or_depth_of_prefetch_has_rows_of_its_own() -> None:
    one = lowered(zero_stage=3)
    assert not shared(one, lowered(zero_stage=3, fsdp_prefetch=3))
    assert not shared(one, lowered(zero_stage=3, microbatch_size=2))


def test_a_step_is_run_once_and_changes_nothing_before_it() -> None:
    calls = []

    def step(rows: structures.Structure, lane: str) -> int:
        calls.append(lane)
        return int(rows.lanes(lane)[0])

    plan = Plan(tensor_parallel=2, pipeline_parallel=4, data_parallel=2)
    from simulator.lowering import resolve

    work = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=32)
    resolved = resolve(work, plan, 16)
    first = structures.started(resolved.schedule, resolved.shape, resolved.steps)
    one, two = (structures.extended(first, step, ("dp",)) for _ in range(2))
    assert one is two
    assert calls == ["dp"]
    assert first.streams == {}
    assert structures.extended(one, step, ("tp",)).result == 4


def test_programs_that_share_rows_are_still_checked_for_what_differs() -> None:
    from dataclasses import replace

    one = lowered(zero_stage=1)
    verify(one)
    wrong = np.full(one.size, len(one.effects), np.int32)
    with pytest.raises(ProgramError, match="start_effect lies in"):
        verify(replace(one, start_effect=wrong))
    with pytest.raises(ProgramError, match="a row is of its item's kind"):
        verify(replace(one, items=one.items[::-1]))


def test_the_oldest_goes_when_the_bound_is_reached() -> None:
    known: Remembered[int] = Remembered(30, lambda value: value)
    made: list[int] = []

    def make(size: int) -> int:
        made.append(size)
        return size

    for size in (10, 20, 10, 40, 10, 15, 10, 20):  # 40 is never kept; 15 makes 20 go, which was wanted longest ago
        assert known.get(size, lambda size=size: make(size)) == size  # type: ignore[misc]
        assert known.held <= 30
    assert made == [10, 20, 40, 15, 20]
