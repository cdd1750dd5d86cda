"""Gradients that a thread finds ready together (`framework = "horovod"`): what is fused, when it starts, and what that costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower_resolved, resolve
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.program.program import Link
from simulator.report.fused_buckets import fused
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

MODEL = load_model("gpt2_124m")


def predicted(sequences: int = 4, framework: str = "horovod", engine: str = "compiled") -> Prediction:
    work = Workload(model=MODEL, sequence_length=512, global_batch_size=16 * sequences, precision="fp32")
    plan = Plan(framework=framework, microbatch_size=sequences)
    return simulate(work, plan, load_cluster("p100_dgx1", 16), engine)


def buffers(prediction: Prediction) -> list[Link]:
    """What is reduced, in turn; the norm left out."""
    program = prediction.program
    items = [program.items[i] for i in program.item.tolist()]
    return [item for item in items if isinstance(item, Link) and item.message > 8.0]


def test_a_buffer_holds_what_is_ready_and_no_more_than_fits() -> None:
    ready = [(0.001 * n, 10.0) for n in range(20)]
    assert fused(ready, 1.0, 1e9) == (200.0,)
    assert fused(ready, 1.0, 30.0) == (*[30.0] * 6, 20.0)
    assert fused(ready, 1e-9, 1e9) == tuple([10.0] * 20)
    assert fused([], 1.0, 1.0) == ()
    assert all(math.isclose(sum(fused(ready, cycle, 45.0)), 200.0) for cycle in (0.002, 0.005, 0.011))


def test_the_profile_is_that_of_the_code() -> None:
    profile = load_framework("horovod")
    assert (profile.cycle_time, profile.bucket_size) == (0.005, 64 * 2**20)


def test_no_buffer_of_several_tensors_is_larger_than_the_fusion_buffer() -> None:
    for sequences in (1, 4, 8):
        found = buffers(predicted(sequences))
        assert all(link.message <= 64 * 2**20 or not link.slices for link in found)
        assert any(link.slices for link in found)  # copied in and out


def test_slower_backwards_are_reduced_in_more_pieces() -> None:
    """A cycle holds what 5 ms of a backward make."""
    few, many = buffers(predicted(2)), buffers(predicted(8))
    assert len(few) < len(many)
    assert math.isclose(sum(x.message for x in few), sum(x.message for x in many), rel_tol=1e-9)


def test_the_last_gradient_waits_half_a_cycle() -> None:
    """In the mean over steps, whose ends fall anywhere within one."""
    found = predicted()
    program, trace = found.program, found.trace
    waits = []
    for row in range(program.size):
        item = program.items[program.item[row]]
        if isinstance(item, Link) and item.message > 8:
            (made,) = program.after[program.after_offsets[row] : program.after_offsets[row + 1]].tolist()
            waits.append(float(trace.start[row] - trace.end[made]))
    assert min(waits) == pytest.approx(0.0025)


def test_both_engines_agree() -> None:
    assert predicted(2).step_time == predicted(2, engine="simpy").step_time


def test_a_program_without_seconds_has_buffers_of_full_size() -> None:
    work = Workload(model=MODEL, sequence_length=512, global_batch_size=32, precision="fp32")
    resolved = resolve(work, Plan(framework="horovod"), 16)
    assert not resolved.bucket_sizes
    links = [item for item in lower_resolved(work, resolved).items if isinstance(item, Link)]
    apart = lower_resolved(work, replace(resolved, bucket_sizes=(1.0,)))
    assert len(links) < sum(isinstance(item, Link) for item in apart.items) + 10
    assert all(link.message >= 1.0 for link in links)
