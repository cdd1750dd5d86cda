"""Worlds whose ranks differ, at random: slower parts never help, naming parts otherwise changes nothing, noise only delays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.hardware.cluster import load_cluster
from simulator.hardware.jitter import Jitter
from simulator.hardware.parts import Part
from simulator.job import Job
from simulator.plan.plan import Plan
from simulator.simulation import simulate_job
from simulator.studies.variation import vary
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

FEW = settings(max_examples=25, deadline=None)
FACTORS = st.sampled_from(["clock", "memory_bandwidth", "link", "network", "host"])
SPEEDS = st.floats(0.05, 1.0)
RANKS = st.sets(st.integers(0, 15), min_size=1)


def job(parts: tuple[Part, ...] = (), **more: Any) -> Job:
    """GPT-2 on two nodes; without overlap nothing interferes, so the recurrence is monotone."""
    plan = Plan(pipeline_parallel=2, tensor_parallel=2, overlap_gradients=False, framework="megatron_lm")
    workload = Workload(model=load_model("gpt2_124m"), sequence_length=256, global_batch_size=16)
    cluster = replace(load_cluster("dgx_a100", 16), parts=parts)
    return Job(name="test", workload=workload, plan=plan, cluster=cluster, **more)


def part(ranks: set[int], **said: Any) -> Part:
    return Part(ranks=tuple((r, r) for r in sorted(ranks)), **said)


PLAIN = simulate_job(job()).step_time


@FEW
@given(ranks=RANKS, name=FACTORS, one=SPEEDS, other=SPEEDS)
def test_a_slower_part_never_makes_the_step_quicker(ranks: set[int], name: str, one: float, other: float) -> None:
    slower, faster = sorted((one, other))
    times = [simulate_job(job((part(ranks, **{name: speed}),))).step_time for speed in (slower, faster)]
    assert PLAIN * (1 - 1e-12) <= times[1] <= times[0] * (1 + 1e-12)


@FEW
@given(ranks=RANKS, more=st.integers(0, 15), name=FACTORS, speed=SPEEDS)
def test_more_slow_ranks_never_make_the_step_quicker(ranks: set[int], more: int, name: str, speed: float) -> None:
    few, many = (simulate_job(job((part(r, **{name: speed}),))).step_time for r in (ranks, ranks | {more}))
    assert few <= many * (1 + 1e-12)


@FEW
@given(ranks=RANKS, speed=SPEEDS, cut=st.integers(0, 15))
def test_a_part_in_two_pieces_is_the_same_part(ranks: set[int], speed: float, cut: int) -> None:
    pieces = [{r for r in ranks if r <= cut}, {r for r in ranks if r > cut}]
    one = simulate_job(job((part(ranks, clock=speed),)))
    two = simulate_job(job(tuple(part(p, clock=speed) for p in pieces if p)))
    assert one.step_time == two.step_time
    assert np.array_equal(one.trace.end, two.trace.end)


@FEW
@given(ranks=RANKS, name=FACTORS, speed=SPEEDS)
def test_folding_what_is_alike_changes_no_time(ranks: set[int], name: str, speed: float) -> None:
    one = job((part(ranks, **{name: speed}),))
    some, all_of_them = simulate_job(one), simulate_job(one, fold=False)
    assert some.step_time == pytest.approx(all_of_them.step_time, rel=1e-12)
    assert 16 == some.program.rank_weight.sum() == all_of_them.program.rank_weight.sum()
    for name_of, seconds in all_of_them.breakdown.items():
        assert some.breakdown[name_of] == pytest.approx(seconds, rel=1e-9, abs=1e-12)


@FEW
@given(
    sigma=st.floats(0.0, 0.3),
    cause=st.sampled_from(["gpus", "compute", "collectives", "messages", "lengths"]),
    seed=st.integers(0, 2**32),
)
def test_half_of_the_steps_are_no_slower_than_95_percent_of_them(sigma: float, cause: str, seed: int) -> None:
    found = vary(job(jitter=Jitter(**{cause: sigma, "pause_every": 1.0, "pause": 0.001})), 20, seed)
    assert found.quantile(0.5) <= found.quantile(0.95) <= found.times.max()
    assert {"pauses"} | ({cause} if sigma else set()) == set(found.without)
    assert (found.times >= found.without["pauses"] * (1 - 1e-12)).all()


@FEW
@given(factors=st.lists(st.floats(1.0, 4.0), min_size=1, max_size=5).filter(lambda f: any(x != 1.0 for x in f)))
def test_noise_that_only_delays_never_makes_a_step_quicker(factors: list[float]) -> None:
    found = vary(job(jitter=Jitter(compute=tuple(factors), messages=tuple(factors))), 5)
    assert (found.times >= PLAIN * (1 - 1e-6)).all()
    assert (found.times <= PLAIN * max(factors) * (1 + 1e-6)).all()
