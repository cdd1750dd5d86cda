"""From a job to its run: counts, paces by simulated steps, checkpoint bytes and seconds, watts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.energy.step_power import facility_watts, step_power
from simulator.errors import SpecError
from simulator.goodput.checkpoints import checkpoint_bytes, checkpoint_cost
from simulator.goodput.describe import count_of, describe_run
from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.cluster import load_cluster
from simulator.hardware.parts import Part
from simulator.hardware.power import Power
from simulator.hardware.reliability import Failure, load_fleet
from simulator.job import Job, load_job
from simulator.program.program import CATEGORIES
from simulator.simulation import simulate_job
from simulator.specs import names

FSDP = """
[workload]
model = "llama3_8b"
global_batch_size = 128
[plan]
zero_stage = 3
framework = "torchtitan"
[cluster]
name = "p5"
gpus = 64
[checkpoint]
interval = "1 h"
write = "60 s"
"""
DAY = 86400.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "job.toml"
    file.write_text(FSDP)
    return str(file)


def failing(path: str, entry: str, *more: str) -> Job:
    return load_job(path, [f"reliability.failures=[{{{entry}}}]", *more])


@pytest.mark.parametrize(
    ("component", "more", "count"),
    [
        ("gpu", {}, 64),
        ("host", {}, 8),
        ("nic", {}, 8 * 32),
        ("rack", {"nodes": 3}, 3),
        ("software", {}, 1),
        ("cable", {"per": "node"}, 8),
        ("cable", {"count": 7}, 7),
    ],
)
def test_components_are_counted(component: str, more: dict[str, int], count: int) -> None:
    cluster = load_cluster("p5", 64)
    assert cluster.node.nics == 32
    assert count == count_of(Failure.model_validate({"component": component, "mtbf": 1.0} | more), cluster)


def test_a_slow_part_has_the_pace_of_its_own_step(path: str) -> None:
    job = failing(path, 'component="gpu", effect="slow", clock=0.7, mtbf="5000 h", detection="1 h"')
    described = describe_run(job, None, DAY)
    part = Part(ranks=((5, 5),), clock=0.7)
    slow = simulate_job(replace(job, cluster=replace(job.cluster, parts=(part,)))).step_time
    assert described.prediction.step_time / slow == pytest.approx(float(described.model.causes.pace[0]))
    assert 0.7 < described.model.causes.pace[0] < 0.95


def test_a_slow_switch_slows_all_its_machines(path: str) -> None:
    entry = 'component="switch", nodes=4, effect="slow", network=0.5, mtbf="5000 h", detection="1 h"'
    described = describe_run(failing(path, entry), None, DAY)
    part = Part(nodes=((4, 7),), network=0.5)
    job = load_job(path)
    slow = simulate_job(replace(job, cluster=replace(job.cluster, parts=(part,)))).step_time
    assert described.prediction.step_time / slow == pytest.approx(float(described.model.causes.pace[0]), rel=0.01)
    assert (2, 4) == (described.model.causes.count[0], described.model.causes.nodes[0])


def test_fewer_machines_have_the_step_of_fewer_replicas(path: str) -> None:
    job = failing(
        path,
        'component="host", mtbf="5000 h"',
        "reliability.spares=0",
        'reliability.repair="9 h"',
        "reliability.elastic=2",
    )
    described = describe_run(job, None, DAY)
    smaller = load_job(path, ["cluster.gpus=48", "workload.global_batch_size=96"])
    per_time = 48 / 64 * described.prediction.step_time / simulate_job(smaller).step_time
    assert [1.0, per_time] == pytest.approx(described.model.paces[[0, 2]].tolist())
    assert (np.diff(described.model.paces) < 0).all()


def test_elastic_needs_a_replica_that_is_left(path: str) -> None:
    job = failing(
        path,
        'component="host", mtbf="5000 h"',
        "reliability.spares=0",
        'reliability.repair="9 h"',
        "reliability.elastic=8",
    )
    with pytest.raises(SpecError, match="elastic = 7"):
        describe_run(job, None, DAY)


def test_noise_lengthens_the_run(path: str) -> None:
    quiet = describe_run(load_job(path), None, DAY)
    noisy = describe_run(load_job(path, ["jitter.compute=0.1"]), None, DAY)
    assert quiet.step == quiet.prediction.step_time < noisy.step


def test_an_own_entry_replaces_the_fleets(path: str) -> None:
    job = failing(path, 'component="gpu", mtbf="77 h"', 'reliability.fleet="meta_llama3_2024"')
    causes = describe_run(job, None, DAY).model.causes
    assert 77 * 3600.0 == causes.scale[causes.name.index("gpu")]
    assert 1 == causes.name.count("gpu")
    assert "nic" in causes.name


@pytest.mark.parametrize("name", names("reliability"))
def test_a_fleet_loads_under_its_name(name: str) -> None:
    fleet = load_fleet(name)
    assert name == fleet.name
    assert fleet.failures


def test_llama_3s_record_adds_up() -> None:
    fleet = load_fleet("meta_llama3_2024")
    cluster = load_cluster("meta_h100_roce", fleet.gpus)
    assert fleet.days is not None
    counts = [fleet.days * DAY * count_of(f, cluster) / f.mtbf for f in fleet.failures]
    assert [148, 72, 19, 17, 6, 54, 35, 32, 7, 7, 6, 3, 3, 2, 2, 2, 2, 2] == pytest.approx(counts, rel=1e-4)


def test_a_checkpoint_weighs_what_all_gpus_hold_once(path: str) -> None:
    """Fully sharded: the memory walk's weights and optimizer states over all GPUs, up to padding."""
    job = load_job(path)
    prediction = simulate_job(job)
    kept = [CATEGORIES.index("weights"), CATEGORIES.index("optimizer_states")]
    held = 64 * prediction.program.resident[0].by_category()[kept].sum()
    assert held == pytest.approx(checkpoint_bytes(job, prediction), rel=0.01)
    stage0 = load_job(path, ["plan.zero_stage=0", "workload.model=gpt2", "workload.global_batch_size=64"])
    assert 14 * stage0.workload.model.parameters == pytest.approx(checkpoint_bytes(stage0, simulate_job(stage0)))


@pytest.mark.parametrize(
    ("framework", "precision", "per_weight"),
    [
        ("megatron_core", "bf16", 14),
        ("nemo_2024", "bf16", 12),
        ("nemo_25_02", "bf16", 14),
        ("nemo_2024", "fp16", 14),
        ("nemo_2024", "bf16_true", 6),
    ],
)
def test_a_checkpoint_has_the_weights_as_its_framework_keeps_them(framework, precision, per_weight) -> None:
    """Whose fp32 weights are bf16 ones with their lower halves writes 2 + 2 + 8 bytes a weight (Apex, store_param_remainders)."""
    job = load_job("gpt2_124m_1gpu", [f"plan.framework={framework}", f"workload.precision={precision}"])
    assert per_weight * job.workload.model.parameters == pytest.approx(checkpoint_bytes(job, simulate_job(job)))


def test_seconds_of_a_checkpoint() -> None:
    cluster = load_cluster("p5", 64)
    size = 64e9 * 14
    plain = checkpoint_cost(Checkpoint(bandwidth=2e9), cluster, size)
    assert (448.0, 0.0) == (plain.stall, plain.write)
    half = checkpoint_cost(Checkpoint(bandwidth=2e9, share=0.5), cluster, size)
    assert 896.0 == half.stall
    narrow = checkpoint_cost(Checkpoint(bandwidth=2e12, node_bandwidth=1e9), cluster, size)
    assert size / 8 / 1e9 == narrow.stall
    beside = checkpoint_cost(Checkpoint(bandwidth=2e9, mode="asynchronous"), cluster, size)
    assert 448.0 == beside.write
    assert size / 64 / cluster.host_link.bandwidth <= beside.stall < 2.0
    near = checkpoint_cost(Checkpoint(bandwidth=2e9, mode="memory", persist=3600.0), cluster, size)
    assert 0.0 < near.near < 5.0
    assert near.delay == near.stall + near.near < beside.delay


def test_products_draw_what_their_clock_model_says() -> None:
    """At the limit a GPU draws its limit; below it, less; never less than idle."""
    job = load_job("llama3_8b_fsdp_8xh100")
    power = step_power(simulate_job(job), job.cluster, job.power)
    assert 0.8 * 700 < power.gpu < power.gpu_peak <= 700
    assert power.machines > 8 * power.gpu
    assert power.facility == pytest.approx(1.1 * power.machines)
    assert power.facility == pytest.approx(facility_watts(power.gpu, job.cluster, job.power))
    assert power.energy_per_token == pytest.approx(power.facility * power.step_time / power.tokens)


def test_a_cap_saves_energy_and_costs_time() -> None:
    jobs = [load_job("llama3_8b_fsdp_8xh100", [f"power.cap={watts} W"]) for watts in (700, 500, 350)]
    predictions = [simulate_job(job) for job in jobs]
    powers = [step_power(p, job.cluster, job.power) for p, job in zip(predictions, jobs, strict=True)]
    assert predictions[0].step_time < predictions[1].step_time < predictions[2].step_time
    assert all(power.gpu_peak <= watts for power, watts in zip(powers, (700, 500, 350), strict=True))
    gpu_only = [power.gpu * power.step_time for power in powers]
    assert gpu_only[0] > gpu_only[1]


def test_own_pue_and_grid_count() -> None:
    job = load_job("gpt2_124m_1gpu")
    prediction = simulate_job(job)
    plain = step_power(prediction, job.cluster, Power())
    other = step_power(prediction, job.cluster, Power(pue=2.2, grid=0.0))
    assert 2.0 == pytest.approx(other.facility / plain.facility)
    assert 0.0 == other.to_dict()["co2_per_token_kg"] < plain.to_dict()["co2_per_token_kg"]
    assert math.isfinite(plain.energy_per_token)
