"""GPUs, links and clusters: what a job sees of the hardware that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.hardware.cluster import Node, load_cluster
from simulator.hardware.gpu import load_gpu
from simulator.hardware.link import load_link
from simulator.job import job_from_names
from simulator.simulation import simulate_job
from simulator.specs import find_spec, names, validate_spec


def test_gpus_of_a_node_are_connected_by_what_collectives_know_how_to_use() -> None:
    from simulator.hardware.cluster import build_cluster
    from simulator.hardware.coefficients import load_cost_table
    from simulator.hardware.link import BETWEEN_GPUS

    assert {*BETWEEN_GPUS, "staged", "host"} == set(load_cost_table().attained)
    found = load_cluster("dgx_a100", 8)
    parts = (found.spec, found.gpu, found.node, load_link("aries"), load_link("pcie4_x16"), None, 8)
    with pytest.raises(SpecError, match=r"connected by one of nvlink.*but this is aries. Way out"):
        build_cluster(*parts)


def test_gpu_gives_its_dense_peak_and_refuses_formats_it_lacks() -> None:
    assert 989e12 == load_gpu("h100").peak("bf16")
    with pytest.raises(
        SpecError,
        match=r"^GPU 'v100_32gb_sxm2' has no peak for bf16. It has: fp64, fp32, fp16. Way out: ",
    ):
        load_gpu("v100").peak("bf16")


@pytest.mark.parametrize(
    ("gpu", "dtype", "has"),
    [("h100", "mxfp8", "fp8, int8"), ("mi355x", "nvfp4", "int8, mxfp8, mxfp4"), ("h100", "nvfp4", "fp8, int8")],
)
def test_scales_per_block_need_a_matrix_unit_that_applies_them(gpu: str, dtype: str, has: str) -> None:
    with pytest.raises(SpecError, match=rf"has no peak for {dtype}. It has: .*{has}\. Way out: "):
        load_gpu(gpu).peak(dtype)
    assert load_gpu("b200").peak(dtype) in (4500e12, 9000e12)
    assert load_gpu("h100").peak("fp8_block") == load_gpu("h100").peak("fp8")


def test_memory_of_nvidia_data_centre_gpus_is_binary() -> None:
    assert 80 * 2**30 == load_gpu("a100_80gb_sxm").memory


def test_fabric_bandwidth_is_the_share_of_one_gpu() -> None:
    fabric = load_cluster("internevo_a100", 64).level("fabric")
    assert fabric is not None
    assert (50e9 / 8, 64) == (fabric.bandwidth, fabric.size)


@pytest.mark.parametrize(
    ("cluster", "gpus", "levels", "nodes"),
    [
        ("dgx_a100", 1, [("node", 1)], 1),
        ("dgx_a100", 3, [("node", 3)], 1),
        ("dgx_a100", 8, [("node", 8)], 1),
        ("dgx_a100", 16, [("node", 8), ("fabric", 16)], 2),
        ("gb200_nvl72", 4, [("node", 4)], 1),
        ("gb200_nvl72", 72, [("node", 4), ("rack", 72)], 18),
        ("gb200_nvl72", 64, [("node", 4), ("rack", 64)], 16),
        ("gb200_nvl72", 128, [("node", 4), ("rack", 64), ("fabric", 128)], 32),
        ("gb200_nvl72", 76, [("node", 4), ("rack", 72), ("fabric", 76)], 19),
        ("piz_daint", 1, [("node", 1)], 1),
        ("piz_daint", 2048, [("node", 1), ("fabric", 2048)], 2048),
        ("meta_h100_roce", 10**7, [("node", 8), ("fabric", 10**7)], 1_250_000),
    ],
)
def test_levels_reach_as_far_as_the_job(cluster: str, gpus: int, levels: list[tuple[str, int]], nodes: int) -> None:
    found = load_cluster(cluster, gpus)
    assert (levels, nodes) == ([(level.name, level.size) for level in found.levels], found.nodes)
    assert gpus == found.world_size


def test_resizing_keeps_the_cluster_and_comes_back() -> None:
    cluster = load_cluster("dgx_h100")
    assert cluster == cluster.resized(64).resized(cluster.world_size)
    assert (128, 8, "hgx_h100") == (cluster.world_size, cluster.gpus_per_node, cluster.node.name)
    assert 5 == cluster.resized(5).gpus_per_node


def test_a_part_of_a_node_beyond_the_first_is_refused_with_the_nearest_sizes() -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster("dgx_a100", 20)
    expected = (
        "beyond one node the number of GPUs must be a multiple of the node's 8, but cluster 'dgx_a100' is asked for "
        "20. Nearest: 16 or 24"
    )
    assert expected == str(caught.value)


def test_a_box_without_network_does_not_grow() -> None:
    with pytest.raises(SpecError) as caught:
        load_cluster("h100_x8", 16)
    expected = (
        "cluster 'h100_x8' has no network, so it ends at 8 GPUs, but is asked for 16. Give node 'hgx_h100_no_network' "
        "a network_link and nics, or choose another cluster"
    )
    assert expected == str(caught.value)


@pytest.mark.parametrize("gpus", [0, -8, 10**7 + 8, 8.0, True, "8"])
def test_sizes_that_cannot_be_are_refused(gpus: object) -> None:
    with pytest.raises(SpecError, match="whole number from 1 to 10000000, but cluster 'dgx_a100' is asked for"):
        load_cluster("dgx_a100", gpus)  # type: ignore[arg-type]


def test_all_wrong_names_of_a_node_are_reported_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("nodes", "clusters"):
        (tmp_path / "hardware_specs" / kind).mkdir(parents=True)
    (tmp_path / "hardware_specs/nodes/mine.toml").write_text(
        'name = "mine"\ngpu = "h1000"\ngpus = 8\nlink = "nvlink9"\nhost_link = "pcie5"\nhost = "amd"\n'
    )
    (tmp_path / "hardware_specs/clusters/mine.toml").write_text('name = "mine"\nnode = "mine"\n')
    with pytest.raises(SpecError) as caught:
        load_cluster("mine")
    starts = ["node 'mine', gpu = 'h1000': no GPU 'h1000'.", "node 'mine', link = 'nvlink9': no link 'nvlink9'."]
    assert starts == [re.split(" Did you| Nearest", line)[0] for line in str(caught.value).splitlines()]


def test_nics_without_their_link_are_refused() -> None:
    data = {"name": "n", "gpu": "g", "gpus": 8, "link": "l", "host_link": "h", "host": "amd", "nics": 4}
    with pytest.raises(SpecError, match=r"^here: nics = 4 with network_link = '': give both or neither$"):
        validate_spec(data, Node, "here")


def test_a_number_format_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(find_spec("gpus", "l40s").read_text().replace("bf16 =", "bf61 ="))
    with pytest.raises(SpecError, match=r"line \d+: peak_flops.bf61: unknown number format. Did you mean bf16\?"):
        load_gpu(str(path))


def test_bandwidths_are_one_direction() -> None:
    assert (300e9, 450e9, 50e9) == tuple(load_link(n).bandwidth for n in ("nvlink3", "nvlink4", "infiniband_ndr"))


@pytest.mark.parametrize("name", [name for name in names("gpus") if name.startswith("tpu_")])
def test_tpus_multiply_fp32_at_the_rate_of_bf16_and_move_twice_the_bytes(name: str) -> None:
    peaks = load_gpu(name).peak_flops
    assert peaks["fp32"] == peaks["bf16"]


def test_a_run_in_fp32_on_tpus_is_predicted() -> None:
    """GPipe and Mesh-TensorFlow trained in fp32; the precision was refused for want of a rate."""
    settings = ["cluster.gpus=32", "plan.framework=t5x", "plan.zero_stage=3", "workload.precision="]
    narrow, wide = (
        simulate_job(job_from_names("gpt3_1_3b", "tpu_v3_pod", [*settings[:-1], settings[-1] + precision]))
        for precision in ("bf16", "fp32")
    )
    assert 1.1 < wide.step_time / narrow.step_time < 2.0
    assert wide.peak_memory > 1.5 * narrow.peak_memory
