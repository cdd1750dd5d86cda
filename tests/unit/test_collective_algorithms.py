"""What single algorithms cost, where NCCL would use them, and what a collective holds of a GPU while it runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from simulator.collectives import ALGORITHMS, bus_factor, candidates, collective_seconds, with_servers
from simulator.collectives.byteps import Byteps, optimal_split
from simulator.collectives.parameter_server import DedicatedParameterServer
from simulator.collectives.plain import PlainCollective
from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group, place_group

MIB = 2.0**20
A100 = fabric_of(load_cluster("dgx_a100", 4096))
H100 = fabric_of(load_cluster("dgx_h100", 4096))
SHARP = dataclasses.replace(H100, network_reduction=True)
GROUPS = [describe_group(n, k) for n, k in ((2, 1), (8, 1), (16, 2), (64, 8), (24, 3), (16, 16), (512, 64))]


def seconds(kind: str, size: float, ranks: int, nodes: int, algorithm: str, fabric: object = H100) -> float:
    return collective_seconds(kind, size, describe_group(ranks, nodes), fabric, algorithm).seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(ALGORITHMS.members))
def test_any_algorithm_rises_with_the_message_and_keeps_to_the_wires(name: str) -> None:
    member, sizes = ALGORITHMS.get(name), [4.0**k for k in range(2, 17)]
    priced = 0
    for kind, place, fabric in itertools.product(member.kinds, GROUPS, (A100, SHARP)):
        try:
            times = [collective_seconds(kind, s, place, fabric, name).seconds for s in sizes]
        except PlanError:
            continue
        priced += 1
        assert np.all(np.diff(times) >= 0), (kind, place)
        assert times[-1] > times[len(times) // 2] > times[0], (kind, place)
        assert all(0 < c.bandwidth < math.inf and c.latency > 0 for c in candidates(kind, place, fabric, name))
    assert priced > 0


def test_only_nccls_own_algorithms_compete_when_nobody_names_one() -> None:
    own = {"ring", "tree", "nvls", "nvls_tree", "pat", "collnet_direct", "collnet_chain"}
    own |= {"pairwise", "point_to_point", "direct"}
    assert own == {member.name for member in ALGORITHMS if member.automatic}
    for place, kind in itertools.product(GROUPS, ("all_reduce", "all_gather", "broadcast", "all_to_all")):
        assert {c.algorithm for c in candidates(kind, place, SHARP)} <= own
    assert seconds("all_reduce", 64.0, 512, 64, "recursive_doubling") < seconds("all_reduce", 64.0, 512, 64, "ring")


def test_pat_is_nccls_choice_only_with_one_rank_per_node() -> None:
    alone, full = describe_group(256, 256), describe_group(16, 2)
    assert "pat" == collective_seconds("all_gather", MIB, alone, H100).algorithm
    assert "pat" not in {c.algorithm for c in candidates("all_gather", full, H100)}
    assert "pat" not in {c.algorithm for c in candidates("all_reduce", alone, H100)}
    strided = place_group((("tp", 8), ("dp", 32)), ("dp",), H100)
    assert "pat" in {c.algorithm for c in candidates("reduce_scatter", strided, H100)}


def test_pat_takes_the_time_of_nccls_formula() -> None:
    cost = ALGORITHMS.get("pat").cost("all_gather", describe_group(16, 16), H100, load_cost_table(), "simple")
    expected = 8e-6 + 4 * (14e-6 + 2 * H100.network_latency) / 3.5 + 16 * 2.8e-6
    assert expected == pytest.approx(cost.latency)


def test_collnet_is_offered_where_the_network_adds_and_takes_its_part_once() -> None:
    place = describe_group(512, 64)
    assert not {"collnet_direct", "collnet_chain"} & {c.algorithm for c in candidates("all_reduce", place, H100)}
    assert {"collnet_direct", "collnet_chain"} <= {c.algorithm for c in candidates("all_reduce", place, SHARP)}
    assert collective_seconds("all_reduce", MIB, place, SHARP).algorithm.startswith("collnet")
    few, many = (ALGORITHMS.get("sharp").volume("all_reduce", describe_group(8 * k, k)) for k in (2, 64))
    assert 15 / 8 == few == many


def test_textbook_counts() -> None:
    flat = describe_group(64, 64)
    known = {
        ("rabenseifner", "all_reduce"): (12, 2 * 63 / 64),
        ("recursive_doubling", "all_reduce"): (6, 6),
        ("recursive_doubling", "all_gather"): (6, 63 / 64),
        ("bruck", "all_to_all"): (6, 3),
        ("pairwise", "all_to_all"): (63, 63 / 64),
        ("binomial", "broadcast"): (6, 6),
        ("binomial", "scatter"): (6, 63 / 64),
        ("torus", "all_reduce"): (28, 2 * 7 / 8 + 2 * 7 / 64),
        ("parameter_server", "all_reduce"): (2, 2 * 63 / 64),
        ("pat", "reduce_scatter"): (6, 63 / 64),
        ("naive", "all_reduce"): (2, 2 * 63),
    }
    for (name, kind), counts in known.items():
        member = ALGORITHMS.get(name)
        assert counts == (member.hops(kind, flat), pytest.approx(member.volume(kind, flat))), (name, kind)
    odd = describe_group(6)
    member = ALGORITHMS.get("halving-doubling")
    assert (6, 2 * 3 / 4 + 2) == (member.hops("all_reduce", odd), member.volume("all_reduce", odd))


def test_two_levels_keep_the_network_for_what_must_cross_it() -> None:
    leg = ALGORITHMS.get("hierarchical").legs("all_reduce", describe_group(64, 8))
    assert 2 * 7 / 8 / 8 == pytest.approx(sum(part.outer for part in leg))
    assert 2 * 7 / 8 == pytest.approx(sum(part.inner for part in leg))
    assert seconds("all_reduce", 1024.0, 512, 64, "hierarchical") < seconds("all_reduce", 1024.0, 512, 64, "ring") / 1.5
    table, place = load_cost_table(), describe_group(512, 64)
    two, ring = (
        ALGORITHMS.get(name).cost("all_reduce", place, H100, table, "simple").latency
        for name in ("hierarchical", "ring")
    )
    assert two < ring / 2


def test_a_ring_has_less_latency_than_a_tree_only_among_few_ranks_and_more_bandwidth_in_a_node() -> None:
    table = load_cost_table()

    def cost(name: str, ranks: int, nodes: int, protocol: str = "ll") -> object:
        return ALGORITHMS.get(name).cost("all_reduce", describe_group(ranks, nodes), H100, table, protocol)

    assert cost("ring", 2, 1).latency < cost("tree", 2, 1).latency  # type: ignore[attr-defined]
    assert cost("tree", 512, 64).latency < cost("ring", 512, 64).latency  # type: ignore[attr-defined]
    for nodes in (1, 4, 64):
        ring, tree = (cost(name, 8 * nodes, nodes, "simple") for name in ("ring", "tree"))
        assert tree.bandwidth <= ring.bandwidth * 1.1  # type: ignore[attr-defined]


def test_more_ranks_are_never_cheaper_in_latency() -> None:
    for name, kind, nodes in (
        ("ring", "all_reduce", (1, 2, 4, 8, 16, 64)),
        ("ring", "all_gather", (1, 2, 4, 8, 16, 64)),
        ("pairwise", "all_to_all", (2, 4, 8, 16, 64)),
        ("bruck", "all_to_all", (2, 4, 8, 16, 64)),
    ):
        times = [seconds(kind, 8.0, 8 * k, k, name) for k in nodes]
        assert sorted(times) == times, (name, kind)


def test_all_to_all_reaches_n_over_n_minus_one_times_the_card() -> None:
    for nodes in (2, 4, 32):
        place, size = describe_group(8 * nodes, nodes), 2.0**36
        cost = ALGORITHMS.get("pairwise").cost("all_to_all", place, H100, load_cost_table(), "simple")
        bus = cost.bandwidth * bus_factor("all_to_all", place.ranks)
        card = H100.card_bandwidth * load_cost_table().attained_network["any"]
        expected = card * (place.ranks - 1) / (place.ranks - 8)
        assert expected == pytest.approx(bus)
        assert nodes / (nodes - 1) == pytest.approx(bus / card, rel=0.07)
        assert size / bus > 0


def test_a_chain_of_best_chunks_beats_the_binomial_tree_for_large_messages_only() -> None:
    assert seconds("broadcast", 64.0, 64, 8, "chain") > seconds("broadcast", 64.0, 64, 8, "binomial")
    assert seconds("broadcast", 2.0**32, 64, 8, "chain") < seconds("broadcast", 2.0**32, 64, 8, "binomial")


def test_gather_and_scatter_are_bound_by_the_roots_port() -> None:
    for kind in ("gather", "scatter"):
        found = collective_seconds(kind, 2.0**33, describe_group(8), H100)
        assert "direct" == found.algorithm
        assert 2.0**33 * 7 / 8 / H100.intra_bandwidth < found.seconds < 2 * 2.0**33 / H100.intra_bandwidth


def test_a_gather_from_other_nodes_comes_in_by_the_roots_card_and_a_scatter_leaves_by_all() -> None:
    gather, scatter = (seconds(kind, 2.0**33, 16, 2, "direct") for kind in ("gather", "scatter"))
    assert 2.0**33 / 2 / H100.card_bandwidth < gather < 2 * 2.0**33 / 2 / H100.card_bandwidth
    assert scatter < gather / 3


def test_byteps_with_no_spare_machines_is_a_ring_and_with_as_many_twice_as_quick() -> None:
    flat = describe_group(16, 16)
    assert 2 * 15 / 16 == pytest.approx(Byteps(0).volume("all_reduce", flat))
    assert 1.0 == pytest.approx(Byteps(16).volume("all_reduce", flat))
    volumes = [Byteps(k).volume("all_reduce", flat) for k in range(0, 17)]
    assert sorted(volumes, reverse=True) == volumes
    for nodes, servers in ((4, 1), (16, 5), (9, 9)):
        share, own = optimal_split(nodes, servers)
        assert 1 == pytest.approx(servers * share + nodes * own)
        assert nodes * share == pytest.approx(1 + (nodes - 2) * own)


def test_too_few_servers_are_a_bottleneck() -> None:
    flat = describe_group(16, 16)
    assert [16.0, 4.0, 1.0] == [DedicatedParameterServer(k).volume("all_reduce", flat) for k in (1, 4, 32)]
    with pytest.raises(PlanError, match="0 or more"):
        Byteps(-1)


def test_servers_are_as_many_as_told() -> None:
    """T = max(M / B, n M / (k B)) of a parameter server; 1.75 and 1 M / B of BytePS on 8 nodes with 0 and 8 (its section 4.1)."""
    flat = describe_group(8, 8)
    assert [8.0, 2.0, 1.0, 1.0] == [with_servers("ps_dedicated", k).volume("all_reduce", flat) for k in (1, 4, 8, 16)]
    assert [1.75, 1.0] == pytest.approx([with_servers("byteps", k).volume("all_reduce", flat) for k in (0, 8)])


@pytest.mark.parametrize(
    ("name", "servers", "told"),
    [
        (
            "ring",
            3,
            "servers help byteps, parameter_server and parameter_server_dedicated, but the algorithm is 'ring'",
        ),
        ("auto", 3, "but the algorithm is 'auto'"),
        ("byteps", 99_999_999, "up to"),
        ("parameter_server_dedicated", 0, "1 or more"),
        ("byte", 3, "no collective algorithm 'byte'"),
    ],
)
def test_servers_that_cannot_be_are_refused(name: str, servers: int, told: str) -> None:
    with pytest.raises((PlanError, UnknownNameError), match=told):
        with_servers(name, servers)


def test_all_through_one_port_takes_n_times_as_long_as_a_ring() -> None:
    """Half of n each way, n for both, one after the other."""
    member, ring = ALGORITHMS.get("naive"), ALGORITHMS.get("ring")
    for n in (2, 8, 64):
        flat = describe_group(n, n)
        assert isinstance(member, PlainCollective)
        assert n / 2 == pytest.approx(member.ways("all_reduce", flat) / ring.volume("all_reduce", flat))
        assert n == pytest.approx(member.volume("all_reduce", flat) / ring.volume("all_reduce", flat))


def test_byteps_asks_for_half_as_many_spare_machines_as_nodes() -> None:
    assert [1, 2, 2, 3, 3, 4] == [Byteps().split(nodes)[0] for nodes in range(2, 8)]


@pytest.mark.parametrize(("chips", "factor"), [(64, 3.0), (512, 6.0)])
def test_an_exchange_over_a_torus_takes_the_links_between(chips: int, factor: float) -> None:
    """TPU v5p, blocks of 4 x 4 x 4 and 8 x 8 x 8 chips with six links of 100 GB/s: a message goes 3 and 6 hops in the mean.  What crosses
    the middle of the first, half of 32 chips' messages, has 32 links there."""
    fabric = fabric_of(load_cluster("tpu_v5p_pod", chips))
    place = describe_group(chips, chips // 4)
    found, ring = (collective_seconds(kind, 2.0**30, place, fabric).seconds for kind in ("all_to_all", "all_gather"))
    least = 2.0**30 * factor / 600e9
    assert found == pytest.approx(least, rel=0.6)
    assert found > least
    assert ring < least


def test_a_torus_of_chips_that_are_nodes_of_their_own_has_its_network_alone(tmp_path: Path) -> None:
    node = """
    gpu = "tpu_v4"
    gpus = 1
    link = "ici_v4"
    host_link = "pcie4_x16"
    network_link = "ici_fabric_v4"
    nics = 1
    host = "amd"
    in_network_reduction = false
    peer_to_peer = true
    sources = {"*" = "made up"}
    """
    (tmp_path / "chip.toml").write_text(f'name = "chip"\n{node}')
    cluster = tmp_path / "chips.toml"
    cluster.write_text(f'name = "chips"\nnode = "{tmp_path}/chip.toml"\nnodes = 64\nsources = {{"*" = "made up"}}\n')
    fabric = fabric_of(load_cluster(cluster, 64))
    found = collective_seconds("all_to_all", 2.0**30, describe_group(64, 64), fabric).seconds
    assert found == pytest.approx(3 * 2.0**30 / 200e9, rel=0.1)
