"""GPUs that the tables of an owner name by their usual name, where its machines have another card or a lower limit."""

from __future__ import annotations

import pytest

from simulator.importers.table.row_cluster import row_cluster, row_gpu

ROW = {"n_gpus": "8", "gpus_per_node": "8", "intra_link": ""}


@pytest.mark.parametrize(
    ("source", "gpu", "name", "watts"),
    [
        ("TorchAO float8nocompile", "H100-80GB-SXM", "h100_96gb_500w", 500.0),
        ("TorchAO training benchmarks (torchtitan)", "B200-SXM", "b200_sxm", 750.0),
        ("TorchAO training benchmarks (torchtitan)", "MI300X", "mi300x", 750.0),
        ("somebody", "H100-80GB-SXM", "h100_80gb_sxm", 700.0),
        ("somebody", "B200-SXM", "b200_sxm", 1000.0),
    ],
)
def test_a_card_is_the_owners(source: str, gpu: str, name: str, watts: float) -> None:
    found, assumed = row_gpu({**ROW, "source": source, "gpu": gpu})
    assert (name, watts) == (found.name, found.power)
    assert ("pull request 347" in str(assumed)) == (source.startswith("TorchAO") and gpu != "MI300X")
    assert found == row_cluster({**ROW, "source": source, "gpu": gpu})[0].gpu
