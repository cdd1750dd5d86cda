"""Few long flows meet on paths between switches that nobody described."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.collectives import collective_seconds
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group
from simulator.importers.table.row_cluster import row_cluster
from simulator.importers.table.rows import Row
from simulator.job import job_from_names
from simulator.report.summary import sure_section
from simulator.simulation import simulate

BYTES = 2.0**30


def undescribed(cluster: Cluster) -> Cluster:
    return replace(cluster, spec=cluster.spec.model_copy(update={"topology": "", "nodes_per_pod": None}))


def seconds(kind: str, cluster: Cluster) -> float:
    """Of one GPU on each of four nodes of the cluster."""
    return collective_seconds(kind, BYTES, describe_group(4, 4), cluster, "auto", "simple").seconds


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_in_a_large_job_get_less_where_nobody_told_the_switches(kind: str) -> None:
    small, large = (undescribed(load_cluster("dgx_h100", gpus)) for gpus in (32, 64))
    share = load_cost_table().path_share["infiniband"]
    assert 1.3 < seconds(kind, large) / seconds(kind, small) <= 1 / share


def test_switches_that_are_described_are_counted_as_described() -> None:
    assert seconds("all_gather", load_cluster("dgx_h100", 64)) == seconds("all_gather", load_cluster("dgx_h100", 32))


def test_exchanges_among_all_spread_over_all_paths() -> None:
    small, large = (undescribed(load_cluster("dgx_h100", gpus)) for gpus in (32, 64))
    assert seconds("all_to_all", large) == seconds("all_to_all", small)


def test_networks_that_send_packet_by_packet_lose_nothing() -> None:
    assert seconds("all_gather", load_cluster("p5", 128)) == seconds("all_gather", load_cluster("p5", 16))


def test_logs_of_benchmarks_have_the_switches_to_themselves() -> None:
    fabric = fabric_of(undescribed(load_cluster("dgx_h100", 512)))
    assert load_cost_table().share_of_paths(fabric) < 1 == load_cost_table().share_of_paths(replace(fabric, cards=0))


def test_a_prediction_says_so() -> None:
    job = job_from_names("llama3_8b", "hgx_h200", ["cluster.nodes=8"])
    told = simulate(job.workload, job.plan, job.cluster)
    assert told.provenance["network_paths"] == {"cards": 64, "share": 0.7}
    assert any("70.0 % of a card" in line for line in sure_section(told).lines)


def test_nodes_of_h200_behind_described_switches_lose_nothing() -> None:
    assert load_cluster("dgx_h200", 64).node == load_cluster("hgx_h200", 64).node
    assert seconds("all_gather", load_cluster("dgx_h200", 64)) == seconds("all_gather", load_cluster("dgx_h100", 64))
    assert seconds("all_gather", load_cluster("dgx_h200", 64)) < 0.9 * seconds(
        "all_gather", load_cluster("hgx_h200", 64)
    )


def row(**given: str) -> Row:
    return {"gpu": "A100-80GB-SXM", "gpus_per_node": "8", "n_gpus": "512", "inter_gbps_per_gpu": "200", **given}


def test_a_row_names_parts_and_never_switches_unless_its_source_is_known() -> None:
    assert "" == row_cluster(row(source="somebody"))[0].spec.topology
    cluster, assumed = row_cluster(row(source="Narayanan et al. 2021, Table 1"))
    assert "rails" == cluster.spec.topology
    assert any("selene" in text for text in assumed)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_a_chain_through_many_nodes_waits_for_a_whole_chunk_at_each(kind: str) -> None:
    """A broadcast of 48 MB to 128 nodes takes longer by 126 chunks than to two, which is most of its time."""
    cluster, table = load_cluster("internevo_a100", 1024), load_cost_table()
    near, far = (
        collective_seconds(kind, 48e6, describe_group(8 * nodes, nodes), cluster, "ring", "ll128").seconds
        for nodes in (2, 128)
    )
    chunk = table.chunk["ll128"] / (fabric_of(cluster).card_bandwidth * table.share_of_paths(fabric_of(cluster)))
    assert far - near > 126 * chunk
