"""Pipelines of unequal stages as their papers have them: PipeDream's table 1 (Harlap et al., arXiv 1806.03377; docs/surveys.md)."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from simulator.job import job_from_names
from simulator.program.program import TRANSFER, Link
from simulator.report.prediction import Prediction
from simulator.simulation import simulate_job

IMAGES = 32
VGG16_BYTES = 4 * 138_357_544
STAGES = {
    "2-1-1": "[{ranks=2, layers=6}, {ranks=1, layers=1}, {ranks=1, layers=7}]",
    "2-1-1, few bytes": "[{ranks=2, layers=6}, {ranks=1, layers=3}, {ranks=1, layers=5}]",
    "9-5-1-1": "[{ranks=9, layers=9}, {ranks=5, layers=1}, {ranks=1, layers=1}, {ranks=1, layers=3}]",
}
"""The quickest of all splits, and the quickest of those that move as few bytes as the paper says."""


@functools.cache
def run(machines: int, model: str = "vgg16", stages: str = "", link: str = "ethernet_25") -> Prediction:
    batch = IMAGES * (45 if machines == 16 and stages else 16 if stages else machines)
    settings = [f"cluster.gpus={machines}", f"cluster.network_link={link}", f"workload.global_batch_size={batch}"]
    settings += ["workload.precision=fp32", "workload.optimizer=sgd", "plan.framework=pytorch_ddp"]
    settings += [f"plan.microbatch_size={IMAGES}"]
    settings += ["plan.schedule=pipedream", f"plan.stages={STAGES[stages]}"] if stages else []
    return simulate_job(job_from_names(model, "titan_x_ethernet_25", settings))


def rate(found: Prediction) -> float:
    return found.tokens / found.step_time


@pytest.mark.parametrize(
    ("machines", "stages", "published", "ours"), [(4, "2-1-1", 3.14, 2.58), (16, "9-5-1-1", 9.86, 8.29)]
)
def test_pipedream_over_one_machine(machines: int, stages: str, published: float, ours: float) -> None:
    found = rate(run(machines, stages=stages)) / rate(run(1))
    assert found == pytest.approx(published, rel=0.2)
    assert found == pytest.approx(ours, rel=0.005)


@pytest.mark.parametrize(("machines", "ours", "slow"), [(4, 2.41, 1.12), (16, 7.75, 3.57)])
def test_data_parallelism_is_quicker_here_than_through_their_servers(machines: int, ours: float, slow: float) -> None:
    assert rate(run(machines)) / rate(run(1)) == pytest.approx(ours, rel=0.005)
    assert rate(run(machines, link="ethernet_10")) / rate(run(1)) == pytest.approx(slow, rel=0.005)


def test_data_parallelism_of_inception_v3() -> None:
    assert rate(run(8, model="inception_v3")) / rate(run(1, model="inception_v3")) == pytest.approx(7.66, rel=0.05)


def bytes_sent(found: Prediction) -> float:
    """Of all machines, per microbatch; an all_reduce is that of a ring."""
    program, total = found.program, 0.0
    runs = np.bincount(program.item, minlength=len(program.items))
    for item, times in zip(program.items, runs.tolist(), strict=True):
        if isinstance(item, Link):
            whole = item.message if item.kind == TRANSFER else 2 * (len(item.pipeline_ranks) - 1) * item.message
            total += times * whole
    return total / (int(program.microbatch.max()) + 1)


@pytest.mark.parametrize(
    ("machines", "stages", "ours"), [(4, "2-1-1", 0.81), (4, "2-1-1, few bytes", 0.90), (16, "9-5-1-1", 0.86)]
)
def test_bytes_saved(machines: int, stages: str, ours: float) -> None:
    """Published: 0.90 and 0.91."""
    alone = 2 * (machines - 1) / machines * VGG16_BYTES
    assert 1 - bytes_sent(run(machines, stages=stages)) / alone == pytest.approx(ours, abs=0.005)
