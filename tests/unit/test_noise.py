"""Noise: what may be described, distributions, seeds, and what each cause does to the rows of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.costs.ranks import price_ranks
from simulator.engine.noise import NoisyStep, draw, no_effect, step_times
from simulator.errors import SpecError
from simulator.hardware.jitter import CAUSES, Jitter, quantile
from simulator.job import load_job
from simulator.lowering import lower_resolved, resolve
from simulator.program.prices import ACCOUNTS
from simulator.program.program import COMPUTE, TRANSFER
from simulator.program.replicas import replica_mesh
from simulator.specs import validate_spec

ALL = {
    "gpus": 0.05, "compute": 0.02, "collectives": 0.1, "messages": 0.1, "lengths": 0.2,
    "pause_every": "1 s", "pause": "10 ms",
}  # fmt: skip


def jitter(**said: Any) -> Jitter:
    return validate_spec(said, Jitter, "test")


def step_of(name: str = "gpt3_175b", *settings: str) -> NoisyStep:
    job = load_job(name, settings)
    program = lower_resolved(job.workload, resolve(job.workload, job.plan, job.cluster.world_size))
    mesh, priced = replica_mesh(program), price_ranks(program, job.cluster)
    class_of = np.zeros(mesh.count, np.int64)
    return NoisyStep(program=program, mesh=mesh, class_of=class_of, prices=priced.prices, item_of=priced.item_of)


SMALL = ("workload.global_batch_size=128",)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"compute": -0.1}, "expected a sigma from 0 to 3 such as 0.02"),
        ({"compute": True}, "expected a sigma"),
        ({"compute": "2 %"}, "expected a sigma"),
        ({"compute": []}, "expected a list of 1 to 10000 factors"),
        ({"compute": [1.0, 0.0]}, "factors above 0"),
        ({"pause": "1 s"}, "give both or neither"),
        ({"pause": "1 s", "pause_every": "0 s"}, "above zero"),
        ({"pause": 3, "pause_every": "1 s"}, "expected a time with its unit"),
        ({"kernels": 0.1}, "unknown key"),
    ],
)
def test_noise_that_cannot_be_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        jitter(**said)


def test_causes_are_those_that_vary() -> None:
    assert CAUSES == jitter(**ALL).causes
    assert ("lengths",) == jitter(compute=0.0, gpus=[1.0, 1.0], lengths=[1, 2]).causes
    assert () == jitter(pause="0 s", pause_every="1 s").causes


def test_distributions_have_the_median_and_mean_they_promise() -> None:
    uniform = ((np.arange(100_000) + 0.5) / 100_000).astype(np.float32)
    plain, even = quantile(0.3, uniform), quantile(0.3, uniform, mean_one=True)
    assert 1.0 == pytest.approx(np.median(plain), abs=1e-3)
    assert 0.3 == pytest.approx(np.log(plain).std(), rel=1e-3)
    assert 1.0 == pytest.approx(even.mean(dtype=np.float64), abs=1e-3)
    assert 1.0 == pytest.approx(quantile((1.0, 2.0, 6.0), uniform, mean_one=True).mean(dtype=np.float64), rel=1e-3)


def test_the_slowest_of_the_members_has_the_distribution_of_a_maximum() -> None:
    """Eight GPUs in step: the mean of the largest of eight normal numbers is 1.4236 standard deviations."""
    step = step_of("gpt3_175b", *SMALL)
    assert 8 == step.mesh.members
    found = np.concatenate([np.log(draw(step, jitter(compute=0.1), 0, s).factors["compute"]).ravel() for s in range(4)])
    assert 0.14236 == pytest.approx(found.mean(), rel=0.02)


def test_the_same_seed_is_the_same_step_and_causes_do_not_touch_each_other() -> None:
    step = step_of("gpt3_175b", *SMALL)
    one, again, other = (draw(step, jitter(**ALL), seed, 3) for seed in (5, 5, 6))
    for name, factors in one.factors.items():
        assert np.array_equal(factors, again.factors[name])
        assert not np.array_equal(factors, other.factors[name])
    alone = draw(step, jitter(messages=0.1), 5, 3)
    assert np.array_equal(one.factors["messages"], alone.factors["messages"])
    times = [step_times(step, d).occupancy for d in (one, again)]
    assert np.array_equal(*times)


def test_without_noise_every_row_takes_its_price() -> None:
    step = step_of("gpt3_175b", *SMALL)
    times = step_times(step, draw(step, jitter(**ALL), 0, 0), off=CAUSES)
    wanted = step.prices.occupancy[step.program.item][:, None]
    assert np.array_equal(np.broadcast_to(wanted, times.occupancy.shape), times.occupancy)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_touches_its_own_rows(cause: str) -> None:
    step = step_of("gpt3_175b", *SMALL)
    off = [other for other in CAUSES if other != cause]
    noisy = step_times(step, draw(step, jitter(**ALL), 0, 0), off)
    quiet = step_times(step, draw(step, jitter(**ALL), 0, 0), CAUSES)
    changed = (noisy.occupancy != quiet.occupancy).any(axis=1)
    kind, update = step.program.kind, step.program.action == 4
    computes = kind == COMPUTE
    wanted = {
        "gpus": computes,
        "compute": computes,
        "messages": kind == TRANSFER,
        "lengths": (computes & ~update) | (kind == TRANSFER),
        "collectives": (kind != TRANSFER) & ~(update & (step.exposed[step.program.item] == 0)),
        "pauses": changed & computes,
    }[cause]
    assert changed.any()
    assert np.array_equal(wanted, changed)


def test_a_group_has_one_factor_and_a_replica_has_its_own() -> None:
    step = step_of("gpt3_175b", *SMALL)
    draws = draw(step, jitter(collectives=0.2), 0, 0)
    meeting = step.links[1]
    times = step_times(step, draws).occupancy
    assert len(meeting)
    assert (times[meeting] == times[meeting][:, :1]).all()
    alone = step.links[0]
    assert len(alone)
    assert not (times[alone] == times[alone][:, :1]).all()


def test_kernels_that_grow_hide_the_hosts_launches() -> None:
    """A host-bound row takes the launches until its kernels are longer than these."""
    step = step_of(
        "gpt2_124m_1gpu", "plan.microbatch_size=1", "workload.global_batch_size=2", "cluster.parts=[{ranks=0,host=0.1}]"
    )
    host = step.prices.account[:, ACCOUNTS.index("host")][step.program.item] > 0
    bound = np.flatnonzero(host & (step.program.action == 0))
    assert len(bound)
    price = step.prices.occupancy[step.program.item[bound]]
    for sample in range(20):
        draws = draw(step, jitter(compute=0.01), 0, sample)
        assert np.array_equal(price, step_times(step, draws).occupancy[bound, 0])
    long = draw(step, jitter(compute=[50.0]), 0, 0)
    assert (step_times(step, long).occupancy[bound, 0] > price).all()


def test_kernels_that_grow_hide_nothing_of_a_host_that_waits_for_each() -> None:
    step = step_of("gpt3_175b", *SMALL, "plan.framework=bigscience", "plan.recompute=full")
    host = step.prices.account[:, ACCOUNTS.index("host")][step.program.item]
    row = int(np.flatnonzero((host > 0) & (step.program.action == 0))[0])
    price, wait = step.prices.occupancy[step.program.item[row]], host[row]
    talk = step.exposed[step.program.item[row]]
    grown = step_times(step, draw(step, jitter(compute=[2.0]), 0, 0)).occupancy[row]
    assert grown == pytest.approx(2.0 * (price - wait - talk) + wait + talk, rel=1e-6)


def test_tokens_count_once_for_products_and_twice_for_attention() -> None:
    step = step_of("gpt3_175b", *SMALL)
    draws = draw(step, jitter(lengths=[1.0, 3.0]), 0, 0)
    grown = draws.factors["lengths"].astype(np.float64)
    assert {0.5, 1.5} == set(np.unique(grown).tolist())
    row = int(np.flatnonzero((step.program.action == 0) & (step.program.chunk == 1))[0])
    item = step.program.item[row]
    attention, talk = step.attention[item], step.exposed[item]
    rest = step.prices.occupancy[item] - attention - talk
    x = grown[step.program.microbatch[row]]
    found = step_times(step, draws).occupancy[row]
    assert found == pytest.approx((rest + talk) * x + attention * x * x, rel=1e-6)


def test_pauses_come_as_often_as_described() -> None:
    step = step_of("gpt3_175b", *SMALL)
    busy = step.prices.occupancy[step.program.item[step.compute]].sum() * step.mesh.count * step.mesh.members
    number = [len(draw(step, jitter(pause_every="1 s", pause="1 ms"), 0, s).pauses[0]) for s in range(50)]  # type: ignore[index]
    assert busy == pytest.approx(np.mean(number), rel=0.05)


def test_more_pauses_than_anybody_would_draw_are_refused() -> None:
    with pytest.raises(
        SpecError, match=r"pause_every = .* makes .* pauses of GPUs in a step.* Way out: a longer pause_every"
    ):
        draw(step_of("llama3_8b_fsdp_8xh100"), jitter(pause_every="1e-6 us", pause="1 ms"), 0, 0)


def test_noise_of_what_is_not_there_is_found() -> None:
    alone = step_of("gpt2_124m_1gpu")
    assert ("collectives", "messages") == no_effect(alone, jitter(**ALL))
    assert () == no_effect(step_of("gpt3_175b", *SMALL), jitter(**ALL))


def test_every_group_of_a_kind_has_a_factor_of_its_own() -> None:
    """Hybrid sharding: gathers inside groups of four, additions between them."""
    step = step_of("llama3_8b_fsdp_8xh100", "plan.shard_size=4")
    groups = [g.tolist() for g in step.mesh.groups]
    assert [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3]] == sorted(groups)
    times = step_times(step, draw(step, jitter(collectives=0.3), 0, 0)).occupancy
    for kind, of in enumerate(groups):
        for row in step.links[1 + kind][:20]:
            found = [set(times[row][np.array(of) == g]) for g in range(max(of) + 1)]
            assert all(len(factors) == 1 for factors in found)
            assert len(found) == len(set.union(*found))
