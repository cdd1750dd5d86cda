"""Registers of messages between pipeline ranks (`plan.registers`; OneFlow, arXiv 2110.15032): back-pressure, overlap, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.parts import Part
from simulator.lowering import lower_resolved, resolve
from simulator.lowering.steps import connect
from simulator.plan.plan import Plan
from simulator.program.program import TRANSFER, Link
from simulator.program.spec import find_deadlock, verify
from simulator.remembered import forget_all
from simulator.report.prediction import Prediction
from simulator.schedules import SCHEDULES
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

MODEL = load_model("gpt2_355m")
MESSAGE = 4.0 * 1024 * 1024
"""Bytes of a microbatch of 1,024 tokens between two ranks, in fp32."""

LATENCY = 1e-3
"""What messages take to arrive, beside what they take, as a part of a turn."""


def predicted(
    registers: int | None, network: float, ranks: int = 2, schedule: str = "gpipe", engine: str = "compiled"
) -> Prediction:
    cluster = replace(
        load_cluster("titan_x_ethernet_25", ranks), parts=(Part(nodes=((0, ranks - 1),), network=network),)
    )
    work = Workload(model=MODEL, sequence_length=1024, global_batch_size=16, precision="fp32")
    plan = Plan(pipeline_parallel=ranks, schedule=schedule, framework="megatron_core", registers=registers)
    return simulate(work, plan, cluster, engine)


def turns(found: Prediction) -> tuple[float, float, float]:
    """Seconds from one forward of the last rank to the next, of a forward there, and of a message."""
    program, trace = found.program, found.trace
    last = np.flatnonzero((program.action == 0) & (program.rank == program.ranks - 1))
    sent = np.flatnonzero(program.kind == TRANSFER)
    took = trace.end - trace.start
    return float(np.diff(trace.start[last])[1:].mean()), float(took[last].mean()), float(took[sent].mean())


def test_two_registers_overlap_and_one_does_not() -> None:
    """A message as long as the compute before it: throughput halves."""
    _, compute, message = turns(predicted(None, 1.0))
    same = predicted(None, message / compute)
    free, one, two, three = (turns(predicted(registers, message / compute))[0] for registers in (None, 1, 2, 3))
    assert turns(same)[2] == pytest.approx(compute, rel=1e-6)
    assert one == pytest.approx(2.0 * two, rel=LATENCY)
    assert two == pytest.approx(free, rel=LATENCY)
    assert free == three


@pytest.mark.parametrize("network", [1.0, 0.05, 0.01])
def test_one_register_takes_both_and_two_the_longer(network: float) -> None:
    _, compute, message = turns(predicted(None, network))
    one, two = (turns(predicted(registers, network))[0] for registers in (1, 2))
    assert one == pytest.approx(compute + message, rel=LATENCY)
    assert two == pytest.approx(max(compute, message), rel=LATENCY)


def test_more_registers_than_there_are_messages_hold_nothing_back() -> None:
    free, many = (predicted(registers, 1.0) for registers in (None, 40))
    assert many.step_time == free.step_time


@pytest.mark.parametrize("registers", [1, 2, 4])
def test_back_pressure_bounds_what_waits(registers: int) -> None:
    """A slow receiver: messages that came and were not used yet fill the registers, no more."""
    cluster = replace(
        load_cluster("titan_x_ethernet_25", 2),
        parts=(Part(pipeline_ranks=((1, 1),), clock=0.25, memory_bandwidth=0.25),),
    )
    work = Workload(model=MODEL, sequence_length=1024, global_batch_size=16, precision="fp32")
    choices: dict[str, Any] = {"pipeline_parallel": 2, "schedule": "gpipe", "framework": "megatron_core"}

    def waiting(found: Prediction) -> int:
        program, trace = found.program, found.trace
        sent = np.flatnonzero((program.kind == TRANSFER) & (program.rank == 0))
        used = np.flatnonzero((program.action == 0) & (program.rank == 1))
        begun = trace.start[sent][:, None] < trace.end[used][None, :]
        return int(
            max(
                begun[: k + 1, k].sum() + (trace.start[sent][k + 1 :] < trace.end[used][k]).sum() - k
                for k in range(len(used))
            )
        )

    free, bounded = (simulate(work, Plan(**choices, registers=r), cluster) for r in (None, registers))
    assert waiting(free) > 8
    assert waiting(bounded) == registers


def test_memory_is_registers_times_messages() -> None:
    none, *several = (predicted(registers, 1.0, ranks=4).memory.total for registers in (None, 1, 2, 5))
    for registers, found in zip((1, 2, 5), several, strict=True):
        ends = np.array([2, 4, 4, 2])  # activations one way and gradients the other, with each neighbour
        assert (found - none).tolist() == (registers * MESSAGE * ends).tolist()


def test_both_engines_agree() -> None:
    assert predicted(1, 0.05).step_time == predicted(1, 0.05, engine="simpy").step_time


def stops(schedule: str, shape: tuple[int, int, int], registers: int) -> str | None:
    """Why a step does not run: the refusal of its registers, or the ring of its rows; "" if it runs, None if no such plan."""
    ranks, chunks, microbatches = shape
    model = load_model("gpt2_124m").model_copy(update={"layers": 48})
    work = Workload(model=model, sequence_length=64, global_batch_size=2 * microbatches, precision="bf16")
    plan = Plan(
        pipeline_parallel=ranks, chunks_per_rank=chunks, microbatch_size=2, schedule=schedule, framework="megatron_core",
        registers=registers,
    )  # fmt: skip
    try:
        program = lower_resolved(work, resolve(work, plan, ranks))
    except PlanError as error:
        return str(error) if "registers is free" in str(error) else None
    verify(program)
    return find_deadlock(program)


@pytest.mark.parametrize("schedule", SCHEDULES.members)
def test_registers_run_or_are_refused(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in [(4, chunks, microbatches) for chunks in (1, 2) for microbatches in (4, 8)]:
        for registers in (1, 3):
            found = stops(schedule, shape, registers)
            if not found:
                continue
            assert f"registers = {registers + 1} or more" in found
            with monkeypatch.context() as patch:  # what is refused could not have run
                patch.setattr(connect, "_all_meet", lambda *_: True)
                forget_all()
                assert "no row can start any more" in (stops(schedule, shape, registers) or "")
            forget_all()
        assert stops(schedule, shape, 8) in ("", None), shape


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pipeline_parallel": 1}, "between pipeline ranks"),
        ({"p2p": "blocking"}, "through no buffer"),
        ({"stages": [{"ranks": 1}, {"ranks": 1}], "pipeline_parallel": 2}, "stages of unequal widths"),
    ],
)
def test_where_registers_hold_nothing_they_are_refused(changes: dict[str, Any], says: str) -> None:
    work = Workload(model=MODEL, sequence_length=1024, global_batch_size=16, precision="bf16")
    with pytest.raises(PlanError, match=says):
        resolve(work, Plan(**{"pipeline_parallel": 2, "registers": 2, **changes}), changes.get("pipeline_parallel", 2))


def test_messages_are_what_links_say() -> None:
    items = [item for item in predicted(1, 1.0).program.items if isinstance(item, Link) and item.kind == TRANSFER]
    assert {item.message for item in items} == {MESSAGE}
