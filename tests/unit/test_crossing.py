"""What groups lose that cross on a topology, and that nothing is lost where no flows cross."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from simulator.collectives import ALGORITHMS, CollectiveTime, collective_seconds
from simulator.collectives.crossing import Method, _reason_of, crossing_of, placed_alike, reason_of
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.fabric import Fabric, fabric_of
from simulator.hardware.fabric_graph import graph_of
from simulator.hardware.group_placement import describe_group, place_group, place_hop
from simulator.hardware.topology import Lattice
from simulator.job import load_job
from simulator.simulation import simulate
from tests.command import Dtsim
from tests.differential.shared_links import simulate_collective
from tests.fabric_graphs import build_fabric_graph

MESSAGE = 2.0**28
STRIDED = (("tp", 8), ("dp", 16))


def cluster(name: str, gpus: int, **changes: object) -> Cluster:
    found = load_cluster(name, gpus)
    return dataclasses.replace(found, spec=found.spec.model_copy(update=changes)).resized(gpus)


def wires(name: str = "dgx_h100", gpus: int = 128, **changes: object) -> Fabric:
    return fabric_of(cluster(name, gpus, **changes))


def rails(oversubscription: float = 1.0, pod: int = 4, **changes: object) -> Fabric:
    return wires(topology="rails", nodes_per_pod=pod, oversubscription=oversubscription, **changes)


def leaves(oversubscription: float = 1.0, pod: int = 4) -> Fabric:
    return wires(topology="leaf_spine", nodes_per_pod=pod, oversubscription=oversubscription)


def timed(fabric: Fabric, axes: tuple[tuple[str, int], ...], kind: str, algorithm: str = "auto") -> CollectiveTime:
    place = place_group(axes, axes[-1:][0][:1], fabric)
    return collective_seconds(kind, MESSAGE, place, fabric, algorithm)


@pytest.mark.parametrize(
    ("fabric", "kinds"), [(rails(), 1), (rails(4.0), 53), (leaves(), 1), (leaves(2.0), 53), (wires(), 1)]
)
def test_hops_that_lie_alike_are_one_and_take_what_each_takes(fabric: Fabric, kinds: int) -> None:
    """Where the spine is narrow most cross it, and of the others those are alike that lie alike in their pods."""
    axes = (("tp", 4), ("dp", 4), ("pp", 8))
    hops = [place_hop(axes, a, b, fabric) for a in range(8) for b in range(8) if a != b]
    alike = [placed_alike(hop, fabric) for hop in hops]
    for hop, one in zip(hops, alike, strict=True):
        assert collective_seconds("send_recv", MESSAGE, hop, fabric) == collective_seconds(
            "send_recv", MESSAGE, one, fabric
        )
        assert dataclasses.replace(one, lattice=hop.lattice) == hop
        assert one is hop or not (hop.lattice and _reason_of(hop.lattice, fabric))
    assert len(set(alike)) == kinds


@pytest.mark.parametrize("axes", [STRIDED, (("dp", 128),), (("tp", 4), ("dp", 32)), (("tp", 2), ("cp", 3), ("dp", 16))])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_where_no_flows_cross_a_topology_changes_nothing(axes: tuple[tuple[str, int], ...], kind: str) -> None:
    plain, topology = timed(wires(), axes, kind), timed(rails(), axes, kind)
    if Method(why="no flows cross") == topology.method:
        assert dataclasses.replace(plain, method=topology.method) == topology
    else:
        assert (("tp", 2), ("cp", 3), ("dp", 16)) == axes
        assert plain.seconds <= topology.seconds * 1.0001


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_all_that_leave_a_leaf_of_half_the_width_take_twice_as_long_on_the_wire(kind: str) -> None:
    """One node per leaf: every flow of a ring crosses the spine; latency does not double."""
    own = timed(leaves(1.0, 1), STRIDED, kind, "ring")
    half = timed(leaves(2.0, 1), STRIDED, kind, "ring")
    assert str(half.method).startswith("steps: a group crosses an oversubscribed spine, 2 times")
    assert 1.85 < half.seconds / own.seconds <= 2.0


def test_a_ring_leaves_a_pod_once_so_a_pod_of_four_nodes_hides_an_oversubscription_of_four() -> None:
    for ratio, lost in ((4.0, 1.0), (8.0, 2.0), (16.0, 4.0)):
        place = place_group(STRIDED, ("dp",), rails(ratio))
        assert lost == pytest.approx(crossing_of(ALGORITHMS.get("ring"), "all_reduce", place, rails(ratio)).factor)


def test_a_rail_optimised_fabric_favours_groups_on_one_rail() -> None:
    """Eight nodes: on rails they are one pod, with a leaf per node and four of eight flows out of it they are not."""
    same_rail = (("tp", 8), ("dp", 8))
    rail, leaf = rails(2.0, 8), leaves(2.0, 1)
    assert Method(why="no flows cross") == timed(rail, same_rail, "all_reduce").method
    assert timed(rail, same_rail, "all_reduce").seconds < 0.6 * timed(leaf, same_rail, "all_reduce").seconds


def test_pxn_keeps_all_to_all_on_its_rails() -> None:
    axes = (("ep", 64),)
    with_proxies, without = (
        timed(rails(2.0, 8), axes, "all_to_all"),
        timed(rails(2.0, 8, pxn=False), axes, "all_to_all"),
    )
    assert Method(why="no flows cross") == with_proxies.method
    assert str(without.method).startswith("steps: without PXN flows change rails in the spine, ")
    assert 1.5 < without.seconds / with_proxies.seconds < 2.0


def test_groups_that_share_cards_get_what_even_sharing_gives() -> None:
    plain, topology = wires("p4d"), wires("p4d", topology="rails", nodes_per_pod=32)
    for axes in (STRIDED, (("tp", 4), ("dp", 32)), (("dp", 128),)):
        shared = timed(topology, axes, "all_reduce")
        assert "share" in shared.method.why
        assert timed(plain, axes, "all_reduce").seconds == pytest.approx(shared.seconds, rel=1e-6)


def test_all_replicas_of_a_pipeline_hop_cross_together() -> None:
    axes = (("tp", 8), ("pp", 16))
    seconds = {}
    for source in (2, 3):
        fabric = rails(2.0)
        place = place_hop(axes, source, source + 1, fabric)
        seconds[source] = collective_seconds("send_recv", MESSAGE, place, fabric).seconds
    assert 1.9 < seconds[3] / seconds[2] <= 2.0, "ranks 3 and 4 lie in two pods of four nodes"


@pytest.mark.parametrize(("kind", "algorithm"), [("all_reduce", "ring"), ("all_gather", "ring"), ("send_recv", "p2p")])
@pytest.mark.parametrize("ratio", [4.0, 6.0, 16.0])
def test_steps_agree_with_the_event_clock_where_groups_keep_in_step(kind: str, algorithm: str, ratio: float) -> None:
    axes = (("tp", 8), ("dp", 2 if kind == "send_recv" else 16))
    fabric = leaves(ratio, 1 if kind == "send_recv" else 4)
    place = place_group(axes, ("dp",), fabric)
    factor = crossing_of(ALGORITHMS.get(algorithm), kind, place, fabric).factor
    assert place.lattice is not None
    groups = place.lattice.ranks().tolist()
    changes = {"topology": "leaf_spine", "nodes_per_pod": fabric.topology.domains_per_pod, "oversubscription": ratio}  # type: ignore[union-attr]
    graph = build_fabric_graph(cluster("dgx_h100", 16 if kind == "send_recv" else 128, **changes))
    played = simulate_collective(kind, 1e12, groups, graph, ALGORITHMS.get(algorithm).name)
    assert played.slowdown == pytest.approx(factor, rel=1e-3)


def test_an_exchange_once_per_node_keeps_its_ranks() -> None:
    lattice = Lattice(members=((64, 1),), groups=((2, 64),))
    across = lattice.across(8)
    assert across is not None
    assert [[0, 8, 16, 24, 32, 40, 48, 56]] == across.ranks()[:1].tolist()
    assert (16, 8) == across.ranks().shape
    assert Lattice(members=((12, 1),)).across(8) is None


def test_a_job_is_priced_with_its_crossings_and_says_so() -> None:
    job = load_job("gpt3_175b")
    gpus = job.cluster.world_size
    quick = simulate(job.workload, job.plan, job.cluster)
    slow = simulate(
        job.workload,
        job.plan,
        cluster(job.cluster.name, gpus, topology="leaf_spine", nodes_per_pod=1, oversubscription=4.0),
    )
    assert slow.step_time > 1.001 * quick.step_time
    assert any("by steps: a group crosses an oversubscribed spine" in p for p in slow.provenance["placement"].values())
    assert not any("steps" in p for p in quick.provenance["placement"].values())


def test_crossings_are_worked_out_once() -> None:
    job = load_job("gpt3_175b")
    wide = cluster(job.cluster.name, job.cluster.world_size, topology="rails", nodes_per_pod=4, oversubscription=2.0)
    simulate(job.workload, job.plan, wide)
    before = crossing_of.cache_info().misses
    simulate(job.workload, job.plan, wide)
    assert before == crossing_of.cache_info().misses


FILE = """name = "mine"
node = "hgx_h100"
nodes = 16
topology = "rails"
nodes_per_pod = 4
oversubscription = 8
[sources]
"*" = "a test"
"""


def test_the_command_prices_groups_side_by_side_on_a_cluster_of_ones_own(tmp_path: Path, dtsim: Dtsim) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    base = ["collective", "all_reduce", "--size", "256MiB", "--cluster", str(path), "--ranks", "16", "--nodes", "16"]
    seconds = []
    for groups in ("1", "8"):
        code, out, _ = dtsim(*base, "--groups", groups, "--algorithm", "ring", "--json")
        assert 0 == code
        answer = json.loads(out)
        assert "steps" == answer["provenance"]["engine"]
        seconds.append(answer["time_s"]["value"])
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-3), "each group has its own rail and leaf"
    assert 2 == dtsim(*base, "--groups", "9")[0]


def test_half_a_topology_is_refused(tmp_path: Path) -> None:
    for text, why in (
        (FILE.replace('topology = "rails"\n', ""), "give topology"),
        (FILE.replace("nodes_per_pod = 4\n", ""), "needs nodes_per_pod"),
        (FILE.replace('"rails"', '"torus"'), "topology"),
    ):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        with pytest.raises(SpecError, match=why):
            load_cluster(str(path))
    with pytest.raises(PlanError, match="need 18 GPUs"):
        describe_group(32, 16, 9, fabric=rails())


@pytest.mark.parametrize("oversubscription", [1.0, 2.0])
@pytest.mark.parametrize("pxn", [True, False])
def test_a_sample_of_the_groups_crosses_for_the_reason_that_all_of_them_do(pxn: bool, oversubscription: float) -> None:
    """Every axis of many meshes, aligned with nodes and pods or not: the same words from some groups as from all."""
    reasons, smaller = set(), 0
    for per_pod in (4, 5, 16):
        changes = {"oversubscription": oversubscription, "nodes_per_pod": per_pod, "pxn": pxn}
        fabric = fabric_of(cluster("selene", 512, **changes))
        period = 8 * (per_pod if oversubscription > 1 else 1)
        for sizes in (
            (8, 8, 8),
            (4, 16, 8),
            (2, 16, 16),
            (3, 8, 4),
            (1, 64, 8),
            (8, 64, 1),
            (6, 5, 4),
            (16, 4, 8),
            (12, 4, 2),
        ):
            axes = tuple(zip(("tp", "dp", "pp"), sizes, strict=True))
            places = [
                place_group(axes, group, fabric) for group in (("tp",), ("dp",), ("pp",), ("tp", "dp"), ("tp", "pp"))
            ]
            places += [place_hop(axes, i, i + 1, fabric) for i in range(min(3, sizes[2] - 1))]
            for lattice in (place.lattice for place in places if place.lattice is not None):
                ranks = lattice.ranks()
                some = lattice.sample(period)
                smaller += some.ranks().size < ranks.size
                whole = reason_of([np.sort(group) for group in ranks], graph_of(fabric, 1024))
                assert whole == _reason_of(lattice, fabric), (per_pod, sizes, lattice)
                reasons.add(whole)
    assert smaller > 20
    assert len(reasons) > 2
