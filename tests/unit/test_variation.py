"""Steps that vary: quantiles, causes turned off one at a time, who is to blame; and what parts of a cluster cost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError, SpecError
from simulator.job import load_job
from simulator.simulation import simulate_job
from simulator.studies.explanation import explain
from simulator.studies.stragglers import find_stragglers
from simulator.studies.variation import Variation, vary
from tests.command import Dtsim

SMALL = ("workload.global_batch_size=256",)
NOISE = (*SMALL, "jitter.compute=0.02", "jitter.gpus=0.03", "jitter.collectives=[1.0,1.0,2.0]")


def varied(*settings: str, name: str = "gpt3_175b", samples: int = 60, **more: Any) -> Variation:
    return vary(load_job(name, settings), samples, **more)


def test_the_slow_steps_are_slower_than_half_of_them_and_all_slower_than_without_noise() -> None:
    found = varied(*NOISE)
    assert found.quantile(0.95) >= found.quantile(0.5) > found.quiet
    assert simulate_job(load_job("gpt3_175b", (*SMALL, "cluster.gpu_spread=0"))).step_time == found.quiet


def test_the_same_seed_gives_the_same_answer_to_the_last_bit() -> None:
    one, again, other = varied(*NOISE, seed=3), varied(*NOISE, seed=3), varied(*NOISE, seed=4)
    assert np.array_equal(one.times, again.times)
    assert one.to_dict() == again.to_dict()
    assert not np.array_equal(one.times, other.times)


def test_causes_explain_what_noise_adds() -> None:
    """Each adds something; together they add about what all of them add: more where they hide behind each other."""
    found = varied(*NOISE)
    adds = {cause: found.adds(cause, 0.95) for cause in found.without}
    total = found.quantile(0.95) - found.quiet
    assert {"compute", "gpus", "collectives"} == set(adds)
    assert all(added > 0 for added in adds.values())
    assert 0.6 * total < sum(adds.values()) < 1.4 * total


def test_one_cause_alone_explains_all() -> None:
    found = varied(*SMALL, "jitter.gpus=0.05")
    assert (found.without["gpus"] == found.quiet).all()
    assert found.quantile(0.95) - found.quiet == pytest.approx(found.adds("gpus", 0.95), rel=1e-12)


def test_more_noise_takes_longer() -> None:
    spans = [varied(*SMALL, f"jitter.compute={sigma}", samples=10).quantile(0.5) for sigma in (0.01, 0.03, 0.1)]
    assert sorted(spans) == spans


def test_more_replicas_wait_for_a_slower_slowest() -> None:
    """The mean of a maximum grows with the number of replicas; the batch grows with it, so the work of each stays."""
    spans = []
    for replicas in (2, 8, 32):
        settings = (f"cluster.gpus={64 * replicas}", f"workload.global_batch_size={8 * replicas}", "jitter.gpus=0.05")
        found = varied(*settings, samples=30)
        spans.append(found.quantile(0.5) / found.quiet)
    assert sorted(spans) == spans
    assert spans[0] < spans[-1]


def test_a_slow_replica_is_to_blame_and_taking_it_away_helps() -> None:
    found = varied(*SMALL, "jitter.compute=0.01", "cluster.parts=[{replicas=5,clock=0.7}]", samples=20)
    assert {5} == {replica for (_, replica), part in found.ranks if part > 0.05}
    assert found.adds("parts", 0.95) > 10 * found.adds("compute", 0.95)


def test_a_large_world_freezes_interference_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("jitter.compute=0.02",)
    exact = varied(*settings, name="llama3_8b_fsdp_8xh100", samples=20)
    monkeypatch.setattr("simulator.studies.variation._EXACT_ROWS", 0)
    frozen = varied(*settings, name="llama3_8b_fsdp_8xh100", samples=20)
    assert (False, True) == (exact.frozen, frozen.frozen)
    assert exact.quantile(0.95) == pytest.approx(frozen.quantile(0.95), rel=0.02)
    assert "as in the step without noise" == frozen.to_dict()["interference"]


def test_simpy_gives_the_same_steps() -> None:
    one, other = (
        varied("jitter.compute=0.05", name="gpt2_124m_2gpu", samples=3, engine=e) for e in ("compiled", "simpy")
    )
    assert other.times.tolist() == pytest.approx(one.times.tolist(), rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ((), {}, "describes no noise, so all its steps are equal"),
        (("jitter.compute=0.0",), {}, "describes no noise"),
        (("jitter.compute=0.1",), {"samples": 0}, "samples must be from 1 to 100000"),
        (("jitter.compute=0.1",), {"samples": 5, "seed": -1}, "a seed is a whole number from 0"),
        (("jitter.messages=0.1",), {}, "jitter.messages varies messages between pipeline ranks"),
    ],
)
def test_what_cannot_vary_is_refused(settings: tuple[str, ...], more: dict[str, Any], message: str) -> None:
    with pytest.raises((SpecError, PlanError), match=message):
        varied(*settings, name="gpt2_124m_1gpu", **more)


def test_more_rows_than_memory_holds_are_refused_before_they_are_made() -> None:
    huge = load_job("gpt3_175b", ["cluster.gpus=8388608", "workload.global_batch_size=2097152", "jitter.compute=0.02"])
    with pytest.raises(SpecError, match=r"noise is drawn for every row .* in 131,072 replicas"):
        vary(huge, 1)


def test_parts_cost_what_the_step_gains_without_them() -> None:
    job = load_job("gpt3_175b", [*SMALL, "cluster.parts=[{replicas=0,clock=0.8},{nodes=5,network=0.3}]"])
    prediction = simulate_job(job)
    found = find_stragglers(job, prediction)
    assert found is not None
    names = [part.name for part in found.parts]
    assert {"replicas 0: clock 0.8", "nodes 5: network 0.3"} == set(names[:2])
    assert "all parts" == names[2]
    assert found.parts[0].costs >= found.parts[1].costs
    plain = simulate_job(load_job("gpt3_175b", SMALL)).step_time
    assert plain == found.parts[-1].step_time
    assert all(part.costs == prediction.step_time - part.step_time > 0 for part in found.parts)
    assert "0" == found.to_dict()["slowest"]["replicas"]


def test_a_plain_job_has_no_stragglers() -> None:
    job = load_job("gpt2_124m_2gpu")
    assert find_stragglers(job, simulate_job(job)) is None


def test_a_job_with_parts_is_explained() -> None:
    job = load_job("gpt2_124m_2gpu", ["cluster.parts=[{ranks=1,clock=0.5}]"])
    prediction = simulate_job(job)
    assert sum(s for _, s in explain(job, prediction).ladder) == pytest.approx(prediction.step_time)


def test_run_and_explain_tell_of_noise_and_parts(dtsim: Dtsim) -> None:
    settings = ["--set", "jitter.compute=0.05", "--set", "cluster.parts=[{ranks=1,clock=0.5}]"]
    code, out, _ = dtsim("run", "gpt2_124m_2gpu", *settings, "--samples", "20", "--seed", "7", "--json")
    found = json.loads(out)
    assert 0 == code
    assert (20, 7) == (found["jitter"]["samples"], found["jitter"]["seed"])
    assert found["jitter"]["step_time_s"]["p95"] >= found["jitter"]["step_time_s"]["p50"]
    assert {"compute", "parts"} == {cause["cause"] for cause in found["jitter"]["causes"]}
    assert ["ranks 1: clock 0.5"] == found["provenance"]["parts"]
    code, out, _ = dtsim("run", "gpt2_124m_2gpu", *settings, "--samples", "5")
    assert "with noise: half of the steps within" in out
    assert "who sets the pace: rank 1 (pipeline rank 0 of replicas 1)" in out
    code, out, _ = dtsim("explain", "gpt2_124m_2gpu", *settings, "--json")
    assert 1 == len(json.loads(out)["stragglers"]["parts"])


@pytest.mark.parametrize("arguments", [["--samples", "5"], ["--seed", "1"], ["--set", "jitter.compute=-1"]])
def test_noise_that_has_no_effect_is_the_users_mistake(dtsim: Dtsim, arguments: list[str]) -> None:
    code, out, error = dtsim("run", "gpt2_124m_2gpu", *arguments)
    assert (2, "") == (code, out)
    assert 1 == len(error.strip().splitlines())
