"""DAPPLE's planner on the profiles of its repository, beside PipeDream's plans for pipelines that drain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.errors import PlanError, SpecError
from simulator.importers.cost_graphs import read_cost_graph
from simulator.planners import PLANNERS
from simulator.planners.problems.drained import Drained, make_drained
from simulator.planners.problems.pipeline import Level, Stage
from simulator.schedules import SCHEDULES, Shape
from simulator.schedules.order_times import time_order

SERVERS = Level(8, 25e9), Level(2, 3e9)
"""Two servers of eight V100, with the bandwidths that its code has as constants."""
# graph: PipeDream's plan over DAPPLE's with 4, 16 and 64 microbatches
RATIOS = {
    "vgg19": (1.15, 1.54, 1.68),
    "amoebanet36": (2.27, 1.61, 1.21),
    "bert48": (2.54, 1.61, 1.16),
    "xlnet36": (2.60, 1.83, 1.45),
}


@pytest.mark.slow
@pytest.mark.parametrize("graph", list(RATIOS))
def test_plans_for_what_drains_are_quicker_than_pipedreams(graph: str) -> None:
    """Published: up to 3.23."""
    for microbatches, ratio in zip((4, 16, 64), RATIOS[graph], strict=True):
        problem = make_drained(read_cost_graph(graph), SERVERS, microbatches)
        best, plain = (PLANNERS.get(name).solve(problem) for name in ("dapple", "pipedream"))
        assert plain.cost / best.cost == pytest.approx(ratio, abs=0.01)
        assert best.cost < problem.data_parallel
        assert best.best_of
        assert not plain.best_of


def test_dense_layers_have_one_device_and_the_rest_the_others() -> None:
    """VGG-19 as DAPPLE's repository runs it on 16 GPUs: 15 and 1."""
    problem = make_drained(read_cost_graph("vgg19"), SERVERS, 64)
    plan = PLANNERS.get("dapple").solve(problem).plan
    assert [replicas for _, _, replicas in problem.flat(plan)] == [15, 1]
    assert "devices 0-14, 15" in problem.described(plan).lines


def test_the_longest_chain_is_never_above_the_schedule() -> None:
    """1F1B of stages of random times, nothing reduced: at most 17 % above the chain, 3 % in the mean."""
    random, schedule, over = np.random.default_rng(0), SCHEDULES.get("1f1b"), []
    problem = make_drained(read_cost_graph("vgg19"), SERVERS, 1)
    for _ in range(300):
        ranks, microbatches = int(random.integers(1, 6)), int(random.integers(1, 12))
        forward, backward = random.uniform(0.5, 2.0, ranks), random.uniform(1.0, 4.0, ranks)
        shape = Shape(ranks, microbatches)
        placement = schedule.placement(shape)
        order = schedule.order(shape, placement)
        ran = time_order(order, placement, forward=forward, input_grad=backward, weight_grad=0.0).makespan
        one = Drained(graph=problem.graph, levels=SERVERS, microbatches=microbatches)
        way = whole = -math.inf
        for link in zip(forward[::-1], backward[::-1], [0.0] * ranks, strict=True):
            way, whole = one.further(link, way, whole)
        over.append(ran / whole)
    assert min(over) > 1 - 1e-9
    assert max(over) < 1.2
    assert np.mean(over) < 1.03


def test_reduced_in_the_shade_of_the_drain() -> None:
    """Two stages: an all_reduce of the last one as long as the first one's backward costs nothing."""
    problem = make_drained(read_cost_graph("vgg19"), SERVERS, 4)
    chain = [(1.0, 2.0, 0.0), (1.0, 2.0, 2.0)]
    for reduced, cost in ((0.0, 15.0), (2.0, 15.0), (3.0, 16.0)):
        way, whole = problem.further((1.0, 2.0, reduced), -math.inf, -math.inf)
        way, whole = problem.further(chain[0], way, whole)
        assert whole == cost


def test_what_is_no_pipeline_is_refused() -> None:
    problem = make_drained(read_cost_graph("vgg19"), SERVERS, 4)
    whole = len(problem.states) - 1
    for plan, said in (
        ((Stage(whole, 8, ()),), "stages have all 16 devices, got 8"),
        ((Stage(whole - 1, 16, ()),), "up to"),
        ((Stage(whole, 2, (Stage(whole, 4, ()),)),), "have all 8 members"),
    ):
        with pytest.raises(PlanError, match=said):
            problem.check(plan)
    nested = (Stage(whole, 2, (Stage(3, 4, ()), Stage(whole, 4, ()))),)
    assert [devices for _, _, devices in problem.placed(nested)] == [
        (0, 1, 2, 3, 8, 9, 10, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    ]
    with pytest.raises(SpecError, match="1 microbatch or more"):
        make_drained(read_cost_graph("vgg19"), SERVERS, 0)
