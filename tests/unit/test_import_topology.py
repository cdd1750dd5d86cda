"""Machines from NCCL's topology XML and nvidia-smi's matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.importers.jobs import import_files
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data" / "imports"


def test_nccl_xml_becomes_a_cluster_that_can_be_used(here: Path, dtsim: Dtsim) -> None:
    answer = import_files([DATA / "topo.xml"]).to_dict()
    assert {"gpus": 2, "name": "topo"} == answer["job"]["cluster"]
    assert ["<marvel>"] == [line["text"] for line in answer["not_understood"]]
    assert 0 == dtsim("import", str(DATA / "topo.xml"), "-o", "job.toml")[0]
    cluster = load_cluster("topo")
    node = cluster.node
    assert (2, "h100_80gb_sxm", "nvlink4", "pcie5_x16", "infiniband_ndr", 1, "intel", True) == (
        node.gpus, node.gpu, node.link, node.host_link, node.network_link, node.nics, node.host, node.in_network_reduction,
    )  # fmt: skip


def test_the_matrix_of_nvidia_smi() -> None:
    answer = import_files([DATA / "topo.txt"]).to_dict()
    assert ("nvidia_smi_topo", {"gpus": 2}) == (answer["source_format"], answer["job"]["cluster"])
    read = {one["field"]: one["value"] for one in answer["read"]}
    assert {"node.gpus": 2, "node.nics": 1, "node.nvlinks": 18, "node.cards_PIX": 1, "node.cards_SYS": 1} == {
        key: value for key, value in read.items() if key.startswith("node.")
    }
    assert [] == answer["not_understood"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.xml", '<system version="1"><cpu vendor="x"></system>', "line 1: is no XML"),
        ("t.xml", '<system version="1"><cpu vendor="x"/></system>', "with a <gpu> in it"),
        ("t.xml", '<!DOCTYPE s [<!ENTITY a "b">]>\n<system version="1"><cpu vendor="&a;"/></system>', "a DOCTYPE or entity is not read"),
        ("t.xml", '<system version="1"><cpu >' + "<pci>" * 100, "nested more than 40 deep"),
        ("t.xml", '<system version="1"><cpu /><pci><gpu sm="x"/></pci></system>', "sm: expected a whole number"),
        ("t.txt", "GPU0 X NV4\nGPU1 NV4\n", "expected 2 cells"),
        ("t.txt", "GPU0 X NV4\nGPU1 NV4 WHAT\n", "expected 2 cells"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError) as refused:
        import_files([tmp_path / name])
    assert said in str(refused.value)
