"""ASTRA-sim's network and system files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.importers.jobs import import_file
from tests.command import Dtsim

NETWORK = """topology: [ Ring, Switch ]
npus_count: [ 8, 4 ]
bandwidth: [ 400.0, 50.0 ]  # GB/s
latency: [ 500.0, 2000.0 ]  # ns
"""


def test_gpus_and_the_nearest_links(tmp_path: Path) -> None:
    path = tmp_path / "network.yml"
    path.write_text(NETWORK)
    found = import_file(path)
    assert ("astra_network", {"gpus": 32, "nics": 8}) == (
        found.source_format,
        {key: found.tables["cluster"][key] for key in ("gpus", "nics")},
    )
    assumed = {one.field: one.value for one in found.assumed}
    assert assumed["cluster.link"].startswith("nvlink4")
    assert "50 GB/s" in next(one.why for one in found.assumed if one.field == "cluster.network_link")
    assert {"latency", "topology"} <= {line.text.partition(":")[0] for line in found.not_understood}


def test_a_run_on_such_a_network(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "network.yml"
    path.write_text(NETWORK)
    code, text, said = dtsim("run", str(path), "--model", "llama3_8b", "--cluster", "dgx_h100", "--json")
    assert 0 == code, said
    assert 32 == json.loads(text)["world_size"]


def test_a_system_file_is_listed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "system.json"
    path.write_text(json.dumps({"scheduling-policy": "LIFO", "all-reduce-implementation": ["ring", "direct"]}))
    found = import_file(path)
    assert "astra_system" == found.source_format
    assert ["scheduling-policy", "all-reduce-implementation"] == [
        line.text.partition(":")[0] for line in found.not_understood
    ]
    assert "[algorithms]" in found.not_understood[1].text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[ 8, 4 ]", "[ 8, x ]"), "npus_count"),
        (("[ 8, 4 ]", "[ 8.5, 4 ]"), "whole numbers"),
        (("[ 8, 4 ]", "[]"), "npus_count"),
        (("[ 8, 4 ]", "[ 100000, 100000 ]"), "at most"),
        (("[ 400.0, 50.0 ]", "[ 400.0 ]"), "as many bandwidths"),
        (("[ 400.0, 50.0 ]", "[ -1, 50 ]"), "bandwidth"),
        (("[ 400.0, 50.0 ]", "[ true, 50 ]"), "bandwidth"),
    ],
)
def test_wrong_networks_are_refused_with_the_key(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "network.yml"
    path.write_text(NETWORK.replace(*change))
    with pytest.raises(SpecError, match=said):
        import_file(path)


def test_a_bandwidth_that_no_link_has_is_said(tmp_path: Path) -> None:
    path = tmp_path / "network.yml"
    path.write_text(NETWORK.replace("400.0", "9000.0"))
    found = import_file(path)
    assert "link" not in found.tables["cluster"]
    assert any("no link that is known here" in line.text for line in found.not_understood)
