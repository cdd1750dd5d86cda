"""Flows on an explicit fabric: what the steps take, against closed forms and against a plain simulation of every flow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simulator.collectives import ALGORITHMS
from simulator.collectives.base import Collective
from simulator.collectives.rounds import Pattern, turned
from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric_graph import FabricGraph
from simulator.hardware.fair_rates import drain_seconds, fair_rates
from tests.differential.flow_clock import FlowClock
from tests.differential.shared_links import simulate_collective
from tests.fabric_graphs import build_fabric_graph, place_on_graph

MESSAGE = 64e6
GROUPS = ((2, 1), (8, 1), (16, 2), (32, 4), (40, 5), (28, 7), (6, 6))


def h100(nodes: int, **options: object) -> FabricGraph:
    return build_fabric_graph(load_cluster("dgx_h100", 8 * nodes), **options)  # type: ignore[arg-type]


def spread(ranks: int, nodes: int, first: int = 0) -> list[int]:
    """World ranks of a group: the first few of each node from `first` on."""
    return [8 * node + first + i for node in range(nodes) for i in range(ranks // nodes)]


def cases(member: Collective) -> list[tuple[str, int, int]]:
    found = []
    for kind, (ranks, nodes) in itertools.product(member.kinds, GROUPS):
        place = place_on_graph(h100(nodes), np.array(spread(ranks, nodes)))
        if member.works(kind, place) and member.endpoints(place) == ranks:
            found.append((kind, ranks, nodes))
    return found


@pytest.mark.parametrize("name", list(ALGORITHMS.members))
def test_on_an_idle_fabric_steps_take_the_time_of_the_closed_form(name: str) -> None:
    member = ALGORITHMS.get(name)
    for kind, ranks, nodes in cases(member):
        groups, graph = [spread(ranks, nodes)], h100(nodes)
        steps = simulate_collective(kind, MESSAGE, groups, graph, name, "steps")
        closed = simulate_collective(kind, MESSAGE, groups, graph, name)
        assert ("steps", "closed form") == (steps.method, closed.method)
        if kind not in member.pipelined:
            assert closed.seconds == pytest.approx(steps.seconds, rel=1e-9), (kind, ranks, nodes)
        else:
            assert 0.8 * closed.seconds <= steps.seconds <= closed.seconds * (1 + 1e-9), (kind, ranks, nodes)


def test_a_ring_takes_what_the_textbook_says() -> None:
    graph = h100(4)
    found = simulate_collective("all_reduce", 1e9, [range(32)], graph, method="steps")
    narrowest = min(graph.bandwidth[0], 8 * graph.card_bandwidth)
    assert 62 * graph.outer_latency + 62 / 32 * 1e9 / narrowest == pytest.approx(found.seconds, rel=1e-9)
    assert (62, 1, 1.0) == (found.rounds, found.solved, pytest.approx(found.slowdown))


def test_groups_in_step_end_each_with_its_own_last_round() -> None:
    """Rounds that begin and end together are played many at once, as many as the group that is done first has left."""
    clock, pattern = FlowClock(h100(2)), Pattern.pairs(np.array([0]), np.array([1]), 1.0)
    for first, rounds in ((0, 3), (8, 5)):
        clock.add(np.array([first, first + 1]), [(pattern, rounds)], MESSAGE)
    short, long = clock.run()
    assert 5 / 3 == pytest.approx(long / short, rel=1e-9)
    assert 8 == clock.rounds


def test_two_groups_that_cross_an_oversubscribed_spine_get_half_each() -> None:
    graph = h100(4, topology="leaf_spine", domains_per_pod=2, oversubscription=16.0)
    one = simulate_collective("send_recv", 1e9, [[0, 16]], graph, "point_to_point")
    two = simulate_collective("send_recv", 1e9, [[0, 16], [8, 24]], graph, "point_to_point")
    assert ("steps", "a group crosses an oversubscribed spine") == (one.method, one.reason)
    alpha = graph.outer_latency
    assert alpha + 1e9 / graph.card_bandwidth == pytest.approx(one.seconds, rel=1e-9)
    assert [alpha + 2e9 / graph.card_bandwidth] * 2 == pytest.approx(list(two.group_seconds), rel=1e-9)


def test_rings_that_cross_a_narrow_spine_together_share_it_round_by_round() -> None:
    graph = h100(4, domains_per_pod=2, oversubscription=2.0)
    groups = [[rank, rank + 8, rank + 16, rank + 24] for rank in range(8)]
    own_rail = simulate_collective("all_reduce", 1e9, groups, graph)
    assert 1 == pytest.approx(own_rail.slowdown, rel=1e-9)
    shared = h100(4, topology="leaf_spine", domains_per_pod=2, oversubscription=4.0)
    crossed = simulate_collective("all_reduce", 1e9, groups, shared)
    assert 2 == pytest.approx(crossed.slowdown, rel=0.01)
    assert 1 == crossed.solved


def test_groups_on_wires_of_their_own_need_no_steps() -> None:
    graph = h100(2)
    for groups in ([list(range(8)), list(range(8, 16))], [[rank, rank + 8] for rank in range(8)]):
        found = simulate_collective("all_reduce", 1e9, groups, graph)
        assert ("closed form", "no flows cross", 1.0) == (found.method, found.reason, found.slowdown)
        steps = simulate_collective("all_reduce", 1e9, groups, graph, method="steps")
        assert found.seconds == pytest.approx(steps.seconds, rel=1e-9)


def test_groups_that_share_a_card_say_so_and_take_twice_as_long() -> None:
    graph = build_fabric_graph(load_cluster("p4d", 16))
    alone = simulate_collective("all_reduce", 1e9, [[0, 8]], graph)
    both = simulate_collective("all_reduce", 1e9, [[0, 8], [1, 9]], graph)
    assert ("closed form", "steps", "groups share network cards") == (alone.method, both.method, both.reason)
    assert 2 == pytest.approx(both.seconds / alone.seconds, rel=0.01)


def test_pxn_keeps_all_to_all_off_an_oversubscribed_spine() -> None:
    times = [
        simulate_collective("all_to_all", 1e9, [range(32)], graph, "pairwise", "steps").seconds
        for graph in (h100(4), h100(4, oversubscription=8.0), h100(4, oversubscription=8.0, proxies=False))
    ]
    assert times[0] == times[1]
    assert 2 * times[0] < times[2]


@pytest.mark.parametrize("seed", range(6))
def test_groups_out_of_step_agree_with_a_plain_simulation_of_every_flow(seed: int) -> None:
    draw = np.random.default_rng(seed)
    graph = h100(6, topology="leaf_spine", domains_per_pod=2, oversubscription=float(draw.choice([4.0, 8.0, 24.0])))
    order = draw.permutation(48)
    sizes = draw.integers(2, 7, size=4)
    groups = [sorted(part.tolist()) for part in np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])]
    kind, name = [("all_reduce", "ring"), ("all_to_all", "pairwise"), ("all_reduce", "rabenseifner")][seed % 3]
    found = simulate_collective(kind, MESSAGE, groups, graph, name, "steps")
    expected = plain(kind, name, groups, graph)
    assert expected == pytest.approx(list(found.group_seconds), rel=1e-9)
    assert len(set(expected)) > 1


def plain(kind: str, name: str, groups: list[list[int]], graph: FabricGraph) -> list[float]:
    """Return when each group ends: one event after another, rates from scratch, no shortcut of any kind."""
    todo = []
    for group in groups:
        ranks = np.array(group)
        place, member = place_on_graph(graph, ranks), ALGORITHMS.get(name)
        rounds = []
        for pattern, repeat in member.patterns(kind, place):
            pattern = turned(pattern, place) if kind in member.rotates else pattern
            ends = list(zip(ranks[pattern.source], ranks[pattern.destination], pattern.fraction, strict=True))
            rounds += [ends] * repeat
        todo.append(rounds)
    now, end = 0.0, [0.0] * len(groups)
    flows: dict[tuple[int, int], list] = {}
    wakes = dict.fromkeys(range(len(groups)), 0.0)
    latency = [0.0] * len(groups)
    while wakes or flows:
        for number in [k for k, at in wakes.items() if at <= now + 1e-15]:
            del wakes[number]
            if not todo[number]:
                end[number] = now
                continue
            latency[number] = 0.0
            for i, (a, b, share) in enumerate(todo[number].pop(0)):
                route = graph.routes(np.array([a]), np.array([0]), np.array([b]), np.array([0]), 1)
                flows[number, i] = [share * MESSAGE, route.link.tolist()]
                latency[number] = max(latency[number], float(route.latency[0]))
        rates = filled({key: links for key, (_, links) in flows.items()}, graph)
        steps = [size / rates[key] for key, (size, _) in flows.items()] + [at - now for at in wakes.values()]
        if not steps:
            break
        step = min(steps)
        now += step
        for key in list(flows):
            flows[key][0] -= rates[key] * step
            if flows[key][0] <= 1e-6:
                del flows[key]
        for number in {n for n in range(len(groups)) if n not in wakes and not any(k[0] == n for k in flows)}:
            if latency[number] >= 0:
                wakes[number] = now + latency[number]
                latency[number] = -1.0
    return end


def filled(routes: dict, graph: FabricGraph) -> dict:
    """Return max-min fair rates: raise all open flows by what the tightest link allows, close its flows, again."""
    keys, links = list(routes), sorted({link for held in routes.values() for link in held})
    uses = np.array([[link in routes[key] for link in links] for key in keys])
    rate, left, open_flows = np.zeros(len(keys)), graph.bandwidth[links].copy(), np.ones(len(keys), bool)
    while open_flows.any():
        count = uses[open_flows].sum(0)
        rise = min(width / n for width, n in zip(left, count, strict=True) if n)
        rate[open_flows] += rise
        left -= rise * count
        open_flows &= ~uses[:, left <= 1e-9 * graph.bandwidth[links]].any(1)
    return dict(zip(keys, rate.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_fair_rates_fill_no_link_beyond_its_width_and_leave_no_flow_without_a_full_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    flows, links = int(draw.integers(1, 30)), int(draw.integers(1, 12))
    uses = draw.random((flows, links)) < 0.3
    uses[np.arange(flows), draw.integers(0, links, flows)] = True
    flow, link = np.nonzero(uses)
    bandwidth = draw.uniform(1, 10, links)
    rate = fair_rates(bandwidth, flow, link, flows)
    load = rate @ uses
    assert np.all(load <= bandwidth * (1 + 1e-9))
    full = load >= bandwidth * (1 - 1e-9)
    largest = np.array([rate[uses[:, k]].max(initial=0) for k in range(links)])
    for f in range(flows):
        assert any(full[k] and rate[f] >= largest[k] * (1 - 1e-9) for k in np.flatnonzero(uses[f]))


def test_flows_that_end_leave_their_share_to_the_others() -> None:
    end = drain_seconds(np.array([2.0, 1.0]), np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([4.0, 1.0]))
    assert [2.5, 1.0] == end.tolist()


def test_without_bytes_only_latency_is_left_and_a_rank_alone_takes_no_time() -> None:
    graph = h100(2)
    assert 30 * graph.outer_latency == pytest.approx(
        simulate_collective("all_reduce", 0.0, [range(16)], graph, method="steps").seconds
    )
    assert 0.0 == simulate_collective("all_reduce", 1e6, [[3]], graph, method="steps").seconds


def test_sums_in_the_network_need_each_card_once() -> None:
    graph = h100(4, domains_per_pod=2)
    groups = [[rank, rank + 8, rank + 16, rank + 24] for rank in range(8)]
    found = simulate_collective("all_reduce", 1e9, groups, graph, "collnet_direct", "steps", chunks=1)
    assert graph.outer_latency + 1e9 / graph.card_bandwidth == pytest.approx(found.seconds, rel=1e-9)


def test_wrong_questions_are_answered_with_the_way_out() -> None:
    graph = h100(1)
    with pytest.raises(UnknownNameError, match="all_reduce"):
        simulate_collective("all_redcue", 1.0, [[0, 1]], graph)
    with pytest.raises(UnknownNameError, match="closed form"):
        simulate_collective("all_reduce", 1.0, [[0, 1]], graph, method="step")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="must not share ranks"):
        simulate_collective("all_reduce", 1.0, [[0, 1], [1, 2]], graph)
    with pytest.raises(PlanError, match="ranks of 0 to 7"):
        simulate_collective("all_reduce", 1.0, [[0, 8]], graph)
    with pytest.raises(PlanError, match="knows all_reduce"):
        simulate_collective("all_gather", 1.0, [[0, 1]], graph, "tree")
    with pytest.raises(PlanError, match="machines without GPUs"):
        simulate_collective("all_reduce", 1.0, [range(16)], h100(2), "byteps")
    with pytest.raises(PlanError, match="not below zero"):
        simulate_collective("all_reduce", -1.0, [[0, 1]], graph)
