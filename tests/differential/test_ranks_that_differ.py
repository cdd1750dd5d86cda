"""Worlds whose ranks differ: folded = every replica on its own, SimPy = compiled, with prices that differ and with noise."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.costs.ranks import Priced, price_ranks
from simulator.engine import run
from simulator.engine.noise import NoisyStep, draw, step_times
from simulator.engine.sampled import SampledEngine, row_times, unfold_fully
from simulator.hardware.cluster import load_cluster
from simulator.hardware.jitter import Jitter
from simulator.hardware.parts import Part
from simulator.lowering import lower_resolved, resolve
from simulator.plan.plan import Plan
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.replicas import replica_mesh
from simulator.program.spec import verify
from simulator.specs import validate_spec
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

PLANS: dict[str, dict[str, Any]] = {
    "pipeline": {"pipeline_parallel": 4},
    "tensor and pipeline": {"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True},
    "overlapped buckets": {"pipeline_parallel": 2, "overlap_gradients": True, "framework": "megatron_core"},
    "zero 1": {"pipeline_parallel": 2, "zero_stage": 1, "overlap_parameters": True},
    "zero 2": {"zero_stage": 2},
    "fsdp": {"zero_stage": 3, "framework": "torchtitan"},
    "chimera": {"pipeline_parallel": 4, "schedule": "chimera"},
    "interleaved": {"pipeline_parallel": 2, "chunks_per_rank": 2, "schedule": "interleaved_1f1b"},
    "context": {"context_parallel": 2, "pipeline_parallel": 2},
    "hybrid shards": {"zero_stage": 3, "shard_size": 4, "framework": "torchtitan"},
    "two copies of weights": {"zero_stage": 3, "secondary_shard_size": 8, "quantized_gradients": True},
    "states on the host": {"pipeline_parallel": 2, "zero_stage": 1, "optimizer_offload": 0.5},
    "activations on the host": {"pipeline_parallel": 2, "activation_offload": 2},
    "weights on the host": {
        "zero_stage": 3,
        "parameter_offload": 1.0,
        "optimizer_offload": 0.5,
        "framework": "deepspeed",
    },
    "experts": {"expert_parallel": 2, "pipeline_parallel": 2},
}
PARTS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "a slow GPU": [{"ranks": 5, "clock": 0.8}],
    "two kinds of GPU": [{"nodes": 1, "gpu": "h100_80gb_sxm"}],
    "a slow card and a slow host": [{"nodes": 0, "network": 0.3}, {"ranks": [0, 15], "host": 0.5}],
    "a pipeline rank": [{"pipeline_ranks": 0, "memory_bandwidth": 0.5, "link": 0.5}],
}
JITTER = Jitter(
    gpus=0.03, compute=0.02, collectives=(1.0, 1.0, 1.4), messages=0.1, lengths=0.1, pause_every=2.0, pause=0.01
)


@functools.cache
def lowered(plan: str) -> Program:
    model = "mixtral_8x7b" if "expert_parallel" in PLANS[plan] else "gpt2_124m"
    workload = Workload(model=load_model(model), sequence_length=512, global_batch_size=32)
    return lower_resolved(workload, resolve(workload, Plan(**PLANS[plan]), 16))


@functools.cache
def priced(plan: str, parts: str, fold: bool = True) -> Priced:
    some = tuple(validate_spec(p, Part, "test") for p in PARTS[parts])
    found = price_ranks(lowered(plan), replace(load_cluster("dgx_a100", 16), parts=some), fold)
    verify(found.program)
    return found


def noisy(plan: str, parts: str) -> NoisyStep:
    program, found = lowered(plan), priced(plan, parts)
    mesh = replica_mesh(program)
    class_of = found.class_of if len(found.class_of) else np.zeros(mesh.count, np.int64)
    return NoisyStep(program=program, mesh=mesh, class_of=class_of, prices=found.prices, item_of=found.item_of)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("plan", PLANS)
def test_classes_of_replicas_take_the_time_of_all_replicas(plan: str, parts: str) -> None:
    some, all_of_them = priced(plan, parts), priced(plan, parts, fold=False)
    assert some.program.ranks <= all_of_them.program.ranks
    one, other = (run(p.program, p.prices).makespan for p in (some, all_of_them))
    assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("plan", PLANS)
def test_both_engines_agree_where_ranks_differ(plan: str, parts: str) -> None:
    found = priced(plan, parts)
    one, other = run(found.program, found.prices), run(found.program, found.prices, "simpy")
    assert other.start.tolist() == pytest.approx(one.start.tolist(), rel=1e-9, abs=1e-12)
    assert other.end.tolist() == pytest.approx(one.end.tolist(), rel=1e-9)


@pytest.mark.parametrize("parts", ["none", "two kinds of GPU"])
@pytest.mark.parametrize("plan", PLANS)
def test_both_engines_agree_on_noise(plan: str, parts: str) -> None:
    step = noisy(plan, parts)
    quick, plain = SampledEngine(step), SampledEngine(step, "simpy")
    for sample in range(2):
        times = step_times(step, draw(step, JITTER, 7, sample))
        assert quick.makespan(times) == pytest.approx(plain.makespan(times), rel=1e-9)


@pytest.mark.parametrize("parts", ["none", "a slow GPU"])
@pytest.mark.parametrize("plan", PLANS)
def test_the_engine_over_replicas_is_the_unfolded_program_to_the_last_bit(plan: str, parts: str) -> None:
    """Without interference: with `stretch` neither side looks for it."""
    step = noisy(plan, parts)
    step = replace(step, stretch=np.ones(step.item_of.shape))
    times = step_times(step, draw(step, JITTER, 3, 0))
    unfolded, program = unfold_fully(step)
    named = replace(program, items=tuple(program.items[i] for i in unfolded.program.item))
    whole = run(named, Prices.plain(*row_times(unfolded, times)), "simpy")
    engine = SampledEngine(step, exact=True)
    assert whole.makespan == engine._replicas.run(times)
    own = ~unfolded.bar
    row, replica = unfolded.folded_row[own], unfolded.owner[own]
    assert np.array_equal(whole.start[own], engine._replicas.start[row, replica])
    assert np.array_equal(whole.end[own], engine._replicas.end[row, replica])


@pytest.mark.parametrize("plan", ["pipeline", "fsdp", "interleaved"])
def test_no_noise_is_the_step_itself(plan: str) -> None:
    step = noisy(plan, "a slow GPU")
    quiet = draw(step, Jitter(compute=0.0), 0, 0)
    found = priced(plan, "a slow GPU")
    assert run(found.program, found.prices).makespan == SampledEngine(step).makespan(step_times(step, quiet))


@pytest.mark.parametrize("plan", ["overlapped buckets", "fsdp"])
def test_frozen_interference_is_exact_without_noise_and_near_with_it(plan: str) -> None:
    found, step = priced(plan, "none"), noisy(plan, "none")
    trace = run(found.program, found.prices)
    frozen = replace(step, stretch=found.stretch(trace))
    quiet = draw(step, Jitter(), 0, 0)
    still = SampledEngine(frozen, exact=False)
    assert trace.makespan == pytest.approx(still.makespan(step_times(frozen, quiet)), rel=1e-9)
    exact = SampledEngine(step)
    for sample in range(5):
        draws = draw(step, JITTER, 1, sample)
        assert still.makespan(step_times(frozen, draws)) == pytest.approx(
            exact.makespan(step_times(step, draws)), rel=0.05
        )


def test_the_chain_ends_at_the_makespan_on_both_ways() -> None:
    step = noisy("pipeline", "none")
    times = step_times(step, draw(step, JITTER, 2, 0))
    quick, plain = SampledEngine(step), SampledEngine(step, "simpy")
    spans = quick.makespan(times), plain.makespan(times)
    one, other = quick.chain(times), plain.chain(times)
    assert spans[0] == pytest.approx(spans[1], rel=1e-12)
    assert one.row[-1] == other.row[-1]
    assert one.seconds.sum() == pytest.approx(other.seconds.sum(), rel=1e-6)
    assert one.seconds.sum() <= spans[0] * (1 + 1e-12)
