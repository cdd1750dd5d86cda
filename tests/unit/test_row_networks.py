"""The network between the nodes of a row: what its source, its machine or its own words say of it."""

from __future__ import annotations

import pytest

from tests.rows import placed


def test_a_fabric_comes_from_the_source_with_its_citation() -> None:
    row = placed(source="BigScience BLOOM-176B prequel tuning log", inter_gbps_per_gpu="50")
    assert row.cluster.network is not None
    assert "omnipath" == row.cluster.network.technology
    assert "OmniPath-100" in "; ".join(row.assumed)


@pytest.mark.parametrize(
    ("words", "network"),
    [
        ("4 Omni-Path of 100 Gbit/s a node", "omnipath"),
        ("four OmniPath cards", "omnipath"),
        ("NCCL_IB_DISABLE=1: Ethernet between servers", "ethernet"),
        ("RoCE over Ethernet", "roce"),
        ("Slingshot 11", "slingshot"),
        ("a fast network", "infiniband"),
    ],
)
def test_a_rows_own_words_name_its_network(words: str, network: str) -> None:
    row = placed(quality_note=words, inter_gbps_per_gpu="50")
    assert row.cluster.network is not None
    assert network == row.cluster.network.technology


def test_the_network_of_a_codes_makers_is_not_that_of_who_else_runs_it() -> None:
    theirs = placed(
        source="torchtitan benchmarks", gpu="H100-96GB-HBM2e-500W", gpu_peak_bf16_tflops="989", inter_gbps_per_gpu="400"
    )
    others = placed(
        source="Somebody's torchtitan on H200",
        gpu="H200-141GB-SXM",
        gpu_peak_bf16_tflops="989",
        inter_gbps_per_gpu="400",
    )
    assert theirs.cluster.network is not None
    assert others.cluster.network is not None
    assert ("roce", "infiniband") == (theirs.cluster.network.technology, others.cluster.network.technology)
