"""Machines told from free text and from bare numbers: rows of an index of logs with odd spellings, and mutated logs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.calibration.collectives.judge.machine import Machine
from simulator.calibration.collectives.read.log_file import read_log
from simulator.calibration.collectives.read.tidy_logs import describe_row
from simulator.calibration.collectives.tool import collect_logs
from simulator.collectives import collective_seconds
from simulator.errors import CalibrationError
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data"
RAW = DATA / "nccl_raw"
ROW = {
    "log_id": "mine", "collective": "all_reduce", "gpu": "H100-SXM5-80GB", "gpus_per_node": "8", "nodes": "2", "ranks": "16",
    "intra": "nvlink4_nvswitch", "inter": "ib_ndr", "nic_gbps_per_gpu": "400", "algo": "", "proto": "", "healthy": "true",
}  # fmt: skip


def described(**changes: str) -> Any:
    return describe_row(ROW | changes)


@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [
        ("NVIDIA H100 80GB HBM3", "hopper"), ("h200", "hopper"), ("NVIDIA GH200 480GB", "hopper"), ("H20-3e", "hopper"),
        ("HGX B300", "blackwell"), ("GB300 NVL72", "blackwell"), ("NVIDIA RTX PRO 6000 Blackwell", "blackwell"),
        ("NVIDIA L40S", "ada"), ("RTX 6000 Ada", "ada"), ("GeForce RTX 4090", "ada"), ("L4", "ada"),
        ("NVIDIA A10G", "ampere"), ("A100-PCIE-40GB", "ampere"), ("RTX A6000", "ampere"), ("A30", "ampere"),
        ("Tesla V100-SXM2-16GB", "volta"), ("Tesla T4", "turing"), ("AMD Instinct MI250X", "cdna2"), ("MI308X", "cdna3"),
        ("MI355X", "cdna4"),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_any_usual_spelling(gpu: str, architecture: str) -> None:
    assert architecture == described(gpu=gpu)[2].architecture


def test_a_gpu_nobody_knows_takes_the_generation_of_its_link() -> None:
    assert "hopper" == described(gpu="Superchip 9000")[2].architecture
    assert "cdna3" == described(gpu="Superchip 9000", intra="Infinity Fabric")[2].architecture
    with pytest.raises(CalibrationError, match="write its usual name"):
        described(gpu="Superchip 9000", intra="none", gpus_per_node="1", nodes="16")


@pytest.mark.parametrize(
    ("inter", "network", "rate"),
    [
        ("InfiniBand NDR", "infiniband", 50e9), ("IB-HDR100", "infiniband", 12.5e9), ("ib_xdr", "infiniband", 100e9),
        ("Quantum-2 NDR200", "infiniband", 25e9), ("RoCEv2 400G", "roce", 50e9), ("Spectrum-X", "roce", 50e9),
        ("EFAv3 200 Gb/s", "efa", 25e9), ("GPUDirect-TCPXO", "tcpxo", 25e9), ("FasTrak", "tcpxo", 25e9),
        ("gpudirect-tcpx", "tcpx", 12.5e9), ("TCP sockets, 25GbE", "ethernet", 3.125e9 / 8), ("ethernet", "ethernet", 12.5e9 / 8),
        ("HPE Slingshot-11", "slingshot", 25e9), ("Omni-Path 100", "omnipath", 12.5e9), ("RDMA", "roce", 50e9),
    ],
)  # fmt: skip
def test_a_network_is_known_by_any_usual_spelling_and_its_rate_by_its_name(
    inter: str, network: str, rate: float
) -> None:
    fabric = described(inter=inter, nic_gbps_per_gpu="")[2]
    assert (network, rate) == (fabric.network, fabric.network_bandwidth)


@pytest.mark.parametrize(
    ("gpu", "inter", "architecture", "link", "network", "rate"),
    [
        ("BM.GPU.H100.8", "", "hopper", "nvlink", "roce", 400), ("Azure ND H100 v5", "", "hopper", "nvlink", "infiniband", 400),
        ("Standard_ND96amsr_A100_v4", "ib", "ampere", "nvlink", "infiniband", 200), ("a3-megagpu-8g", "", "hopper", "nvlink", "tcpxo", 200),
        ("a3-highgpu-8g", "", "hopper", "nvlink", "tcpx", 100), ("a3-ultragpu-8g", "gIB", "hopper", "nvlink", "roce", 400),
        ("a4-highgpu-8g", "", "blackwell", "nvlink", "roce", 400), ("p4d.24xlarge", "", "ampere", "nvlink", "efa", 50),
        ("p5.48xlarge", "efa", "hopper", "nvlink", "efa", 400), ("p5en.48xlarge", "", "hopper", "nvlink", "efa", 400),
        ("p6-b300.48xlarge", "", "blackwell", "nvlink", "efa", 800), ("H100 SXM", "EFA", "hopper", "nvlink", "efa", 400),
        ("A100", "EFA", "ampere", "nvlink", "efa", 50), ("g6e.48xlarge", "", "ada", "pcie", "efa", 50),
        ("Nebius H200", "InfiniBand 3.2 Tbps", "hopper", "nvlink", "infiniband", 400), ("LUMI-G", "", "cdna2", "xgmi", "slingshot", 100),
        ("8x NVIDIA L40S", "100GbE", "ada", "pcie", "ethernet", 12.5),
        ("H100", "IB 3200Gb/s per node", "hopper", "nvlink", "infiniband", 400),
        ("Tesla V100-SXM2-32GB", "4x EDR", "volta", "nvlink", "infiniband", 50),
        ("NVIDIA H20", "8x400 RoCE", "hopper", "nvlink", "roce", 400),
        ("gfx942 MI300X", "bnxt_re Thor2", "cdna3", "xgmi", "roce", 400), ("MI350X", "8 x 400G AINIC", "cdna4", "xgmi", "roce", 400),
        ("NVIDIA H100 NVL", "ib_ndr", "hopper", "pcie", "infiniband", 400), ("NVIDIA A2", "ib hdr100", "ampere", "pcie", "infiniband", 100),
    ],
)  # fmt: skip
def test_a_rented_machine_is_known_by_the_name_that_its_cloud_gives_it(
    gpu: str, inter: str, architecture: str, link: str, network: str, rate: float
) -> None:
    fabric = described(gpu=gpu, intra="", inter=inter, nic_gbps_per_gpu="")[2]
    assert (architecture, link, network) == (fabric.architecture, fabric.intra, fabric.network)
    assert rate == pytest.approx(fabric.network_bandwidth * 8 / 1e9)


def test_a_column_may_name_the_machine_and_the_row_its_gpu() -> None:
    fabric = described(gpu="", platform="p5en.48xlarge", intra="", inter="", nic_gbps_per_gpu="")[2]
    assert ("hopper", "efa", 50e9) == (fabric.architecture, fabric.network, fabric.network_bandwidth)


def test_links_that_were_cut_for_export_and_old_ones_have_their_own_rate() -> None:
    rates = {
        gpu: described(gpu=gpu, intra="")[2].intra_bandwidth for gpu in ("H800", "A800-SXM4-80GB", "Tesla P100-SXM2")
    }
    assert {"H800": 200e9, "A800-SXM4-80GB": 200e9, "Tesla P100-SXM2": 80e9} == rates
    assert 200e9 == described(gpu="NVIDIA H800", intra="nvlink4_nvswitch")[2].intra_bandwidth


@pytest.mark.parametrize("gpu", ["Intel Gaudi2 HL-225", "Ascend 910B", "AWS Trainium trn1.32xlarge", "TPU v5e"])
def test_an_accelerator_that_runs_another_library_is_refused_by_its_name(gpu: str) -> None:
    with pytest.raises(CalibrationError, match="neither NCCL nor RCCL"):
        described(gpu=gpu)


def test_a_box_whose_link_nobody_knows_is_asked_for_it() -> None:
    with pytest.raises(CalibrationError, match="link between the 8"):
        described(gpu="NVIDIA GB10", intra="")


def test_columns_may_be_missing_and_lists_of_algorithms_leave_the_choice_to_nccl() -> None:
    bare = {
        name: ROW[name]
        for name in ("log_id", "collective", "gpu", "gpus_per_node", "ranks", "inter", "nic_gbps_per_gpu")
    }
    kind, place, fabric, algorithm, protocol = describe_row(bare)
    assert ("all_reduce", 2, "nvlink", "auto", "auto") == (kind, place.nodes, fabric.intra, algorithm, protocol)
    assert ("auto", "auto") == described(algo="Ring,Tree", proto="LL128/Simple")[3:]
    assert ("nvls_tree", "ll128") == described(algo="NVLS-Tree", proto=" LL128 ")[3:]


PLATFORMS = (
    ("L40S", "ethernet"), ("RTX 4090", "25GbE"), ("RTX 3090", "ib edr"), ("A40", "hdr"), ("H20", "roce"), ("MI250X", "ss11"),
    ("MI210", "hdr"), ("B300", "xdr"), ("Tesla T4", "ethernet"), ("A100-PCIE-40GB", "hdr100"), ("H100 NVL", "ndr"),
    ("Tesla P100-SXM2-16GB", "edr"), ("Quadro RTX 8000", "ethernet"), ("A800", "roce 4x200G"), ("RTX PRO 6000", "roce"),
)  # fmt: skip


@pytest.mark.parametrize(("gpu", "inter"), PLATFORMS)
def test_a_platform_without_a_profile_gets_a_sensible_number(gpu: str, inter: str) -> None:
    kind, place, fabric, _, _ = described(gpu=gpu, intra="", inter=inter, nic_gbps_per_gpu="")
    times = [collective_seconds(kind, 4.0**k, place, fabric) for k in range(2, 17)]
    seconds = [time.seconds for time in times]
    assert seconds == sorted(seconds)
    assert 10e-6 < seconds[0] < 1e-3
    largest = 4.0**16
    moved = largest / seconds[-1] / place.ranks_per_node
    assert moved < fabric.network_bandwidth, "no more leaves a node than its cards carry"
    wires = min(fabric.network_bandwidth, fabric.intra_bandwidth / place.ranks_per_node)
    assert wires < (8 if fabric.peer_to_peer else 16) * moved
    assert all(time.sigma > 0.03 for time in times)


def test_numbers_come_in_many_forms() -> None:
    assert 50e9 == described(nic_gbps_per_gpu="400.0")[2].network_bandwidth
    assert 25e9 == described(nic_gbps_per_gpu="8x200 Gb/s")[2].network_bandwidth
    place = described(ranks="", nodes="4")[1]
    assert (32, 4, 8) == (place.ranks, place.nodes, place.ranks_per_node)
    assert 2 == described(gpus_per_node="")[1].nodes
    assert 4 == described(ranks="4", gpus_per_node="8", nodes="1", inter="none")[1].ranks
    with pytest.raises(CalibrationError, match="two of gpus_per_node, nodes and ranks"):
        described(ranks="", nodes="")


@pytest.mark.parametrize(
    ("gpu", "intra", "technology", "bandwidth"),
    [
        ("H100", "NVLink 4.0 + NVSwitch", "nvlink", 450e9), ("H100", "nvswitch", "nvlink", 450e9), ("H100", "", "nvlink", 450e9),
        ("A100", "NVLink", "nvlink", 300e9), ("B200", "NV18", "nvlink", 900e9), ("L40S", "", "pcie", 31.5e9),
        ("L40S", "PCIe Gen5 x16", "pcie", 63e9), ("MI300X", "infinity fabric", "xgmi", 448e9),
    ],
)  # fmt: skip
def test_a_link_inside_a_node_is_known_by_any_usual_spelling(
    gpu: str, intra: str, technology: str, bandwidth: float
) -> None:
    fabric = described(gpu=gpu, intra=intra)[2]
    assert (technology, bandwidth) == (fabric.intra, pytest.approx(fabric.intra_bandwidth, rel=0.02))


def test_a_rack_on_one_link_is_one_domain() -> None:
    for changes in ({"inter": "mnnvl"}, {"inter": "none"}, {"intra": "NVLink5 NVL72"}):
        _, place, fabric, _, _ = described(gpu="GB200", gpus_per_node="4", nodes="16", ranks="64", **changes)
        assert (1, "rack", 64, "") == (place.nodes, place.level, fabric.domain_size, fabric.network)


@pytest.mark.parametrize("kind", ["AllReduce", "all-reduce", "all_reduce_perf", "ALLREDUCE"])
def test_a_collective_is_known_by_any_usual_spelling(kind: str) -> None:
    assert ("all_reduce", "nvls_tree") == (
        described(collective=kind, algo="NVLS_Tree")[0],
        described(algo="NVLSTree")[3],
    )


def test_an_index_of_odd_spellings_is_validated_row_by_row(tmp_path: Path, dtsim: Dtsim) -> None:
    rows = [
        ROW
        | {
            "log_id": "a",
            "gpu": "NVIDIA H100 80GB HBM3",
            "intra": "NVSwitch",
            "inter": "InfiniBand NDR",
            "nic_gbps_per_gpu": "",
        },
        ROW | {"log_id": "b", "gpu": "abacus", "intra": "beads"},
        ROW | {"log_id": "c", "collective": "AlltoAll", "inter": "RoCE v2"},
    ]
    with (tmp_path / "index.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        lines = [f"{2**p},{40 + 2**p / 2e5:.2f},out_of_place" for p in range(10, 31, 4)]
        (tmp_path / f"{row['log_id']}.csv").write_text("\n".join(["size_bytes,time_us,placement", *lines]))
    code, out, _ = dtsim("validate", str(tmp_path / "index.csv"), "--kind", "nccl", "--json")
    assert 0 == code
    answer = json.loads(out)["rows"]
    told = {row["group"]: row["predicted"] is not None for row in answer}
    assert {"a": True, "b": False, "c": True} == told
    assert all("beads" in row["reason"] for row in answer if row["group"] == "b")


MUTATIONS = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "stamped": lambda text: "\n".join(
        f"[2026-11-01T10:00:0{i % 9}Z] node-{i % 4}: {s}" for i, s in enumerate(text.splitlines())
    ),
    "ranked": lambda text: "\n".join(f"[1,{i % 4}]<stdout>: {s}" for i, s in enumerate(text.splitlines())),
    "coloured": lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.splitlines()),
    "tabs": lambda text: text.replace("  ", "\t"),
    "fenced": lambda text: f"# A run\n\n```\n{text}\n```\n",
    "chatty": lambda text: "\n".join(
        f"{s}\nn1:12:34 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P" for s in text.splitlines()
    ),
}


@pytest.mark.parametrize("change", MUTATIONS)
@pytest.mark.parametrize(
    "name", ["indented_hosts", "rccl", "reduce_with_root", "srun_label_prefix", "interleaved_info"]
)
def test_a_log_says_the_same_however_it_was_carried(tmp_path: Path, name: str, change: str) -> None:
    text = (RAW / f"{name}.txt").read_text()
    path = tmp_path / f"{name}.txt"
    path.write_text(MUTATIONS[change](text), newline="")
    expected, found = read_log(RAW / f"{name}.txt"), read_log(path)
    assert [(t.kind, t.ranks, t.nodes, t.gpu.strip("\x1b[0m"), len(t.rows)) for t in expected] == [
        (t.kind, t.ranks, t.nodes, t.gpu.removesuffix("\x1b[0m"), len(t.rows)) for t in found
    ]
    for one, other in zip(expected, found, strict=True):
        assert [row.seconds for row in one.rows] == [row.seconds for row in other.rows] or all(
            str(a.seconds) == str(b.seconds) for a, b in zip(one.rows, other.rows, strict=True)
        )


def test_bad_files_cost_one_message_each_and_the_good_one_is_used(tmp_path: Path) -> None:
    good = RAW / "reduce_with_root.txt"
    text = good.read_text()
    bad = {
        "empty.txt": b"",
        "blank.txt": b"\n \n",
        "binary.bin": bytes(range(256)) * 8,
        "packed.gz": b"\x1f\x8b\x08\x00rest",
        "other.txt": b"Filesystem Size Used\n/dev/sda 1 2\n",
        "cut.txt": "\n".join(text.splitlines()[:14]).encode(),
        "broken.json": b'{"results": [{"size": 8, "out_of_place": {"time": 1.0',
        "list.json": b"[1, 2, 3]",
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    paths = [*(tmp_path / name for name in bad), tmp_path / "none.txt", good]
    collected = collect_logs(paths, Machine())
    assert ["reduce_with_root"] == [log.name for log in collected.logs]
    assert len(bad) + 1 == len(collected.refused)
    for name, line in zip([*bad, "none.txt"], collected.refused, strict=True):
        assert name.partition(".")[0] in line
        assert 1 == len(line.splitlines())
