"""HetPipe (Park et al., ATC 2020, arXiv 2005.14038): its nodes of four TITAN V, TITAN RTX, RTX 2060 and Quadro P4000.

VGG-19 and ResNet-152, 32 images a minibatch in fp32; published figures are from memory, unverified (docs/surveys.md).
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.parts import Part
from simulator.job import Job, load_job
from simulator.plan.plan import Plan
from simulator.planners.base import Oracle
from simulator.planners.hetpipe import best_replicas, distributions
from simulator.planners.problems.unlike_replicas import Replica, UnlikeReplicas
from simulator.report.mean_prediction import MeanPrediction
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.studies.replica_costs import make_unlike_replicas
from simulator.workload.model import load_model
from tests.command import Dtsim

KINDS = ("titan_v", "titan_rtx", "quadro_p4000", "rtx_2060")
"""In the order in which the paper adds them: V, R, Q, G."""


def job_of(model: str, nodes: int = 4, wave: int = 4) -> Job:
    """The paper's job on the first nodes, a GPU of each in every replica."""
    job = load_job("hetpipe_vgg19")
    parts = tuple(Part(nodes=((n, n),), gpu=kind) for n, kind in enumerate(KINDS[:nodes]) if n)
    workload = replace(job.workload, model=load_model(model), global_batch_size=32 * 4 * wave)
    cluster = replace(load_cluster("hetpipe", 4 * nodes), parts=parts)
    return replace(
        job, workload=workload, cluster=cluster, plan=job.plan.model_copy(update={"pipeline_parallel": nodes})
    )


def replicas(model: str, nodes: int) -> Prediction:
    """Plain data parallelism on the same GPUs, by Horovod."""
    job = job_of(model, nodes)
    workload = replace(job.workload, global_batch_size=32 * 4 * nodes)
    return simulate(workload, Plan(framework="horovod", microbatch_size=32), job.cluster)


def run(job: Job, problem: UnlikeReplicas, plan: Any) -> Prediction:
    """An allocation, simulated by the settings that the planner prints."""
    found = {
        name: tomllib.loads(f"x={value}")["x"] for name, _, value in (s.partition("=") for s in problem.settings(plan))
    }
    cluster = replace(job.cluster, parts=tuple(Part(**part) for part in found.pop("cluster.parts")))
    changes = {name.removeprefix("plan."): value for name, value in found.items()}
    made = Plan.model_validate({**job.plan.model_dump(exclude_defaults=True), **changes})
    return simulate(job.workload, made, cluster)


def allocations(problem: UnlikeReplicas) -> list[Any]:
    """The best of every distribution: node, equal, and hybrid in three pairings; () where it does not fit."""
    oracle: Oracle[Any] = Oracle(problem=problem)
    return [best_replicas(problem, rows, oracle, {}) for rows in distributions(problem)]


@pytest.mark.parametrize("model", ["vgg19", "resnet152"])
def test_the_formula_of_the_planner_beside_the_simulation(model: str) -> None:
    """Within 15 %: messages of a stage stand in its way there, and run beside it here."""
    job = job_of(model)
    problem = make_unlike_replicas(job)
    several = [plan for plan in allocations(problem) if plan]
    assert len(several) >= 4
    for plan in several:
        found = run(job, problem, plan)
        assert found.fits
        rate = job.workload.global_batch_size / 32 / found.step_time
        assert 1 / problem.cost(plan) == pytest.approx(rate, rel=0.15)


def held(problem: UnlikeReplicas, layers: tuple[int, ...]) -> list[float]:
    """Bytes of each stage."""
    found, first = [], 0
    for count, versions in zip(layers, problem.versions, strict=True):
        mine = slice(first, first + count)
        each = problem.states + versions * problem.kept + (versions - 1) * problem.weights
        found.append(float(each[mine].sum() + problem.work[mine].max() + problem.beside))
        first += count
    return found


@pytest.mark.parametrize("model", ["vgg19", "resnet152"])
def test_memory_of_stages_is_that_of_the_simulation(model: str) -> None:
    job = job_of(model, wave=8)
    problem = make_unlike_replicas(job)
    for plan in [plan for plan in allocations(problem) if plan]:
        found = run(job, problem, plan)
        assert isinstance(found, MeanPrediction)
        kinds = found.kinds
        assert all(kind.prediction.fits for kind in kinds)
        simulated = sorted(tuple(np.round(kind.prediction.memory.total / 1e6, 1).tolist()) for kind in kinds)
        assert simulated == sorted(
            {tuple(np.round(np.array(held(problem, one.layers)) / 1e6, 1).tolist()) for one in plan}
        )


@pytest.mark.parametrize("model", ["vgg19", "resnet152"])
def test_nodes_as_workers_wait_for_the_weakest(model: str) -> None:
    """Docs/surveys.md: node below the other two; of VGG-19 the RTX 2060 have no room."""
    problem = make_unlike_replicas(job_of(model))
    node, equal, *hybrid = allocations(problem)
    rates = [1 / problem.cost(plan) if plan else 0.0 for plan in (node, equal, *hybrid)]
    assert rates[0] < 0.6 * rates[1]
    assert not (node and model == "vgg19")
    assert max(rates[2:]) == pytest.approx(rates[1], rel=0.12)


def rate(model: str, nodes: int, wave: int) -> float:
    """Images a second of the equal distribution."""
    job = job_of(model, nodes, wave)
    problem = make_unlike_replicas(job)
    equal = next(rows for rows in distributions(problem) if len({*rows[0]}) == nodes)
    plan = best_replicas(problem, (equal[0],) * 4, Oracle(problem=problem), {})
    return job.workload.global_batch_size / run(job, problem, plan).step_time


def test_over_horovod() -> None:
    """Published, 12 and 16 GPUs: VGG-19 572 and 606 over 265 and 339 images a second, ResNet-152 538 over 415 and nothing."""
    wide = {
        nodes: rate("vgg19", nodes, 2 * nodes) / (128 * nodes / replicas("vgg19", nodes).step_time) for nodes in (3, 4)
    }
    assert wide[3] == pytest.approx(2.16, rel=0.25)
    assert wide[4] == pytest.approx(1.79, rel=0.30)
    deep = rate("resnet152", 3, 6) / (128 * 3 / replicas("resnet152", 3).step_time)
    assert deep > 1.30  # 2.03: docs/surveys.md
    assert not replicas("resnet152", 4).fits
    assert replicas("vgg19", 4).fits


def test_weak_gpus_are_worth_something_to_resnet() -> None:
    """Published: 516, 538, 580 images a second of 8, 12 and 16 GPUs."""
    rates = [rate("resnet152", nodes, 2 * nodes if nodes > 2 else 4) for nodes in (2, 3, 4)]
    assert rates == sorted(rates)


def test_the_command_prints_settings_that_run(dtsim: Dtsim) -> None:
    code, out, _ = dtsim("plan", "hetpipe_vgg19", "--problem", "unlike_replicas", "--json")
    assert code == 0
    best = json.loads(out)["planners"][0]["plan"]
    changes = [word for setting in best["settings"] for word in ("--set", setting)]
    code, out, err = dtsim("run", "hetpipe_vgg19", *changes, "--json")
    assert code == 0, err
    assert 512 / 32 / json.loads(out)["step_time_s"]["value"] == pytest.approx(best["minibatches_per_second"], rel=0.15)


@pytest.mark.parametrize(
    ("job", "options", "says"),
    [
        ("gpt3_175b", [], "replicas are pipelines of one GPU a stage"),
        ("hetpipe_vgg19", ["--devices", "4"], "asked with a job alone; --devices would have no effect"),
        ("vgg16_nowhere", [], "vgg16_nowhere"),
    ],
)
def test_what_is_no_such_job_is_refused(dtsim: Dtsim, job: str, options: list[str], says: str) -> None:
    code, _, err = dtsim("plan", job, "--problem", "unlike_replicas", *options)
    assert code == 2
    assert says in err.replace("\n", " ")


def test_one_replica_of_all_gpus() -> None:
    job = job_of("resnet152", wave=16)
    plan = job.plan.model_copy(update={"pipeline_parallel": 16, "gradient_exchange": None})
    job = replace(job, plan=plan, workload=replace(job.workload, global_batch_size=32 * 16))
    problem = replace(make_unlike_replicas(job), memory=np.full(4, np.inf))
    quick = Replica((0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4, (3,) * 14 + (4,) * 2)
    found = run(job, problem, (quick,))
    assert problem.settings((quick,))[1].startswith("plan.layer_split=[3, 3")
    assert 512 / 32 / found.step_time == pytest.approx(1 / problem.cost((quick,)), rel=0.15)


def test_parts_of_nodes_alone() -> None:
    job = job_of("vgg19")
    for part, says in (
        (Part(replicas=((0, 0),), clock=0.5), "names nodes or ranks"),
        (Part(ranks=((0, 0),), clock=0.5), "are alike"),
    ):
        with pytest.raises(PlanError, match=says):
            make_unlike_replicas(replace(job, cluster=replace(job.cluster, parts=(part,))))
    with pytest.raises(SpecError, match="share all GPUs evenly"):
        replace(make_unlike_replicas(job), stages=3)
