"""Every schedule x ranks x chunks x kind of message: the step runs, or it is refused with a way out that runs."""

from __future__ import annotations

import pytest

from simulator.errors import PlanError
from simulator.lowering import lower_resolved, resolve
from simulator.lowering.steps import connect
from simulator.plan.plan import Plan
from simulator.program.spec import find_deadlock, verify
from simulator.remembered import forget_all
from simulator.schedules import SCHEDULES
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

MODEL = load_model("gpt2_124m").model_copy(update={"layers": 48})
REFUSAL = "with blocking messages a rank goes on only when its neighbour has come"


def stops(schedule: str, shape: tuple[int, int, int], framework: str, p2p: str | None) -> str | None:
    """Why the step does not run: the refusal of its messages, or the ring of its rows; "" if it runs, None if no such plan."""
    ranks, chunks, microbatches = shape
    workload = Workload(model=MODEL, sequence_length=64, global_batch_size=2 * microbatches, precision="bf16")
    plan = Plan(
        pipeline_parallel=ranks,
        chunks_per_rank=chunks,
        microbatch_size=2,
        schedule=schedule,
        framework=framework,
        p2p=p2p,  # type: ignore[arg-type]
    )
    try:
        program = lower_resolved(workload, resolve(workload, plan, ranks))
    except PlanError as error:
        return str(error) if REFUSAL in str(error) else None
    verify(program)
    return find_deadlock(program)


def check(schedule: str, shapes: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch) -> int:
    """Check the shapes and return how many of them the schedule takes."""
    taken = 0
    for shape in shapes:
        by_habit = stops(schedule, shape, "megatron_lm", None)
        if by_habit is None:
            continue
        taken += 1
        assert by_habit == "", shape
        blocking, latency = (stops(schedule, shape, "megatron_core", p2p) for p2p in ("blocking", "latency"))
        assert latency == "", shape
        assert blocking is not None
        if blocking:
            assert f"schedule {schedule!r}" in blocking
            assert "Way out: p2p = 'latency'" in blocking
            with monkeypatch.context() as patch:  # what is refused could not have run
                patch.setattr(connect, "_all_meet", lambda *_: True)
                forget_all()
                assert "no row can start any more" in (stops(schedule, shape, "megatron_core", "blocking") or "")
            forget_all()
    return taken


@pytest.mark.parametrize("schedule", SCHEDULES.members)
def test_blocking_messages_run_or_are_refused(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(4, chunks, m) for chunks in (1, 2) for m in (4, 8)]
    assert check(schedule, shapes, monkeypatch) or schedule in ("chimera_8", "chimera_16")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES.members)
def test_blocking_messages_run_or_are_refused_at_every_small_shape(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [
        (p, chunks, m) for p in (2, 3, 4, 6, 8, 16) for chunks in (1, 2, 3) for m in sorted({1, 2, 4, p, 2 * p, 3 * p})
    ]
    assert check(schedule, shapes, monkeypatch)


def test_fused_pairs_run_under_a_profile_whose_messages_block(dtsim: object) -> None:
    code, _, error = dtsim("run", "gpt3_175b", "--set", "plan.schedule=combined_1f1b")  # type: ignore[operator]
    assert (0, False) == (code, "row" in error)
