"""Published planners on their published inputs: the figures of the authors' code (msr-fiddle/dnn-partitioning, msr-fiddle/pipedream)."""

from __future__ import annotations

import json
import math

import pytest

from simulator.errors import PlanError, SpecError
from simulator.importers.cost_graphs import read_cost_graph
from simulator.planners import PLANNERS
from simulator.planners.base import Budget
from simulator.planners.problems.pipeline import Level, make_pipeline
from simulator.planners.problems.placement import Placement, make_placement
from simulator.planners.problems.synchronous import make_synchronous
from simulator.workload.cost_graph import CostGraph, CostNode
from tests.package_sources import ROOT

EXPERTS = ROOT / "tests" / "data" / "expert_splits"
"""The authors' `human-experts` (MIT, workloads/graphs/README.md), the lists of nodes alone."""

# input: ideals, linearised, PipeDream's rule, local search, experts [ms]; six devices, three of bert_l-3; None = none published
LOADS = {
    "bert24_inference": (17.7899, 17.7899, 17.7899, 17.8227, 20.084),
    "bert24_training": (41.7458, 41.7458, 187.914, 40.0838, 49.4049),
    "gnmt_inference": (32.9107, 33.0326, 33.0311, 31.7918, 46.2085),
    "gnmt_training": (107.004, 107.004, 294.905, 91.4146, 137.154),
    "resnet50_inference": (33.7747, 33.7747, 39.3981, 35.9851, 43.9183),
    "resnet50_training": (78.6318, 78.6498, 83.6744, 81.6046, 112.108),
    "inceptionv3_inference": (None, 51.5519, 60.417, 54.0803, 102.482),
    "inceptionv3_training": (None, 123.93, 128.317, 122.679, 213.654),
    "bert_l-3_inference": (27.9186, 27.9186, 37.4557, 28.9413, None),
    "bert_l-3_training": (65.3031, 65.3031, 122.987, 85.546, None),
}
SKIPPED = {"bert24_inference", "gnmt_inference"}
"""Where the authors' code leaves nodes out of PipeDream's rule by their numbers; after it renumbers graphs of training it does not."""


def problem(name: str) -> Placement:
    return make_placement(read_cost_graph(name))


def milliseconds(planner: str, name: str) -> float:
    return PLANNERS.get(planner).solve(problem(name)).cost * 1e3


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("gnmt", "bert_l-3_t")))
        for name, (load, *_) in LOADS.items()
        if load is not None
    ],
)
def test_the_programme_over_ideals_finds_the_published_optimum(name: str) -> None:
    assert milliseconds("ideals", name) == pytest.approx(LOADS[name][0], rel=1e-5)


@pytest.mark.parametrize("name", list(LOADS))
def test_one_order_is_cut_as_well_as_published(name: str) -> None:
    """Which branch goes first is arbitrary; ours takes the best of four orders, so it may be better."""
    assert milliseconds("linearised", name) <= LOADS[name][1] * (1 + 1e-5)
    assert milliseconds("linearised", name) >= LOADS[name][1] * 0.995


@pytest.mark.parametrize("name", sorted(set(LOADS) - SKIPPED))
def test_the_rule_of_pipedream_gives_the_published_loads(name: str) -> None:
    assert milliseconds("pipedream_rule", name) == pytest.approx(LOADS[name][2], rel=1e-4)


@pytest.mark.parametrize("name", list(LOADS))
def test_local_search_is_no_worse_than_published(name: str) -> None:
    """It draws, so figures differ: at most 1 % above the published, and 91.42 on gnmt_training."""
    found = milliseconds("local_search", name)
    assert found <= LOADS[name][3] * 1.01
    assert name != "gnmt_training" or found <= 91.42


@pytest.mark.parametrize("name", ["bert24_training", "gnmt_training", "gnmt_inference"])
def test_what_is_not_contiguous_beats_the_best_that_is(name: str) -> None:
    assert milliseconds("local_search", name) < LOADS[name][0]


@pytest.mark.parametrize("name", [name for name, loads in LOADS.items() if loads[4] is not None])
def test_splits_of_experts_have_their_published_load(name: str) -> None:
    file = EXPERTS / f"{name}_expert.json"
    if not file.exists():  # as the authors': backward nodes go where their mates are
        file = EXPERTS / f"{name.replace('training', 'inference')}_expert.json"
    split = json.loads(file.read_text())
    one = problem(name)
    places = {str(node): place for place, nodes in enumerate(split["fpgas"]) for node in nodes}
    places |= {str(node): one.devices for nodes in split["cpus"] for node in nodes}
    names = [[one.graph.nodes[node].name for node in block] for block in one.blocks]
    plan = tuple(next(places[node] for node in block if node in places) for block in names)
    assert one.cost(plan) * 1e3 == pytest.approx(LOADS[name][4], rel=1e-5)


@pytest.mark.slow
def test_the_integer_programme_proves_what_local_search_found() -> None:
    """Least loads of any placement: bert24_training 39.79 ms, which local search misses by 0.2 %; bert_l-3_inference 21.91 ms."""
    found = PLANNERS.get("integer").solve(problem("bert_l-3_inference"), Budget(seconds=300))
    assert found.cost * 1e3 == pytest.approx(21.9084, rel=1e-4)
    assert found.gap is not None
    assert found.gap < 1e-4
    assert milliseconds("local_search", "bert_l-3_inference") == pytest.approx(found.cost * 1e3, rel=1e-4)


def test_policy_gradients_need_thousands_of_placements_where_a_descent_needs_hundreds() -> None:
    """Placements priced until within 5 % of the proven optimum of bert24_training, 39.79 ms."""
    near = 39.79 * 1.05
    counts = {}
    for planner in ("reinforce", "local_search"):
        history = PLANNERS.get(planner).solve(problem("bert24_training")).history
        counts[planner] = next(count for count, _, cost in history if cost * 1e3 <= near)
    assert 1_000 < counts["reinforce"] < 10_000
    assert counts["local_search"] < 2_000


@pytest.mark.parametrize(
    ("name", "one", "data", "off"),
    [
        ("vgg16", 14.1926, 4.8287, 1e-4),
        ("gnmt", 4.69819, 14.038, 1e-4),
        ("resnet50", 15.0654, 2.11381, 0.01),
        ("alexnet", 10.75, math.nan, 0.1),
    ],
)
def test_pipedream_plans_as_quickly_as_its_own_optimizer(name: str, one: float, data: float, off: float) -> None:
    """4 x 4 GPUs, 1.0 and 1.25 GB/s, messages between stages left out as there: times one GPU, times data parallelism.

    Ours is never slower.  ResNet-50 and AlexNet are up to 1 % and 9 % quicker: the authors' last stages of a level wait for a
    synchronisation that whole ranges share over the GPUs of a server.
    """
    pipeline = make_pipeline(read_cost_graph(name), (Level(4, 1.0e9), Level(4, 1.25e9)), transfers=False)
    found = PLANNERS.get("pipedream").solve(pipeline)
    said = pipeline.to_dict(found.plan)
    assert one * (1 - 1e-3) <= said["over_one_device"] <= one * (1 + off)
    assert math.isnan(data) or data * (1 - 1e-3) <= said["over_data_parallel"] <= data * (1 + off)


def test_a_plan_for_a_pipeline_that_never_drains_is_slow_where_it_drains() -> None:
    """DAPPLE (arXiv 2007.01045) plans for what drains: up to 3.23 times PipeDream's plans. Here VGG-16 on 8 devices, 8 microbatches."""
    drained = make_synchronous(read_cost_graph("vgg16"), Level(8, 1.0e9), 8)
    best, plain = (PLANNERS.get(name).solve(drained) for name in ("alpa_stages", "pipedream"))
    assert best.best_of
    assert not plain.best_of
    assert 1.3 < plain.cost / best.cost < 1.4
    assert best.cost == pytest.approx(0.995, rel=1e-3)


def test_what_cannot_be_planned_is_refused() -> None:
    idle = CostGraph(name="idle", nodes=(CostNode(name="a"), CostNode(name="b")), edges=())
    backwards = read_cost_graph("bert24_training")
    for make, said in (
        (lambda: make_pipeline(idle, (Level(2, 1.0e9),)), "inputs and nodes without work only"),
        (lambda: make_pipeline(backwards, (Level(2, 1.0e9),)), "Way out: --problem placement"),
        (lambda: make_pipeline(read_cost_graph("vgg16"), ()), "a network has one level or more"),
        (lambda: make_synchronous(read_cost_graph("vgg16"), Level(2, 1.0e9), 0), "1 microbatch or more"),
        (lambda: make_placement(idle), "Way out: --devices N"),
        (lambda: make_placement(idle, devices=2, bandwidth=1.0e9), "has no edges, so a bandwidth has no effect"),
        (lambda: make_placement(read_cost_graph("vgg16"), devices=2), "has bytes on its edges"),
        (lambda: make_placement(backwards, bandwidth=1.0e9), "says what moving its outputs takes"),
        (lambda: make_placement(idle, devices=0), "1 device or more"),
    ):
        with pytest.raises(SpecError, match=said):
            make()
    with pytest.raises(PlanError, match="--planner linearised"):
        PLANNERS.get("ideals").solve(make_placement(read_cost_graph("inception_v3"), devices=2, bandwidth=1.0e9))


def test_a_step_of_one_microbatch_fills_and_drains() -> None:
    """Sum of all stages: nothing is gained by stages, so data parallelism alone is best where messages and sums are quick."""
    one = make_synchronous(read_cost_graph("alexnet"), Level(4, 1.0e14), 1)
    found = PLANNERS.get("alpa_stages").solve(one)
    assert [replicas for _, _, replicas in one.flat(found.plan)] == [4]
    assert found.cost == pytest.approx(one.lower_bound, rel=1e-3)
