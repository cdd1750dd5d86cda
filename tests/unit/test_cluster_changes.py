"""What a job says in place of its cluster's files: GPU, machine, network, nodes, price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator import load_job, simulate_job
from simulator.errors import PlanError, SimulatorError, SpecError
from simulator.hardware.cluster import ClusterChanges, load_cluster
from simulator.hardware.conditions import condition
from simulator.hardware.gpu import load_gpu
from simulator.hardware.parts import Part
from simulator.hardware.power import Power
from simulator.importers.table.row_cluster import row_cluster
from simulator.search.job_text import job_text

JOB = "gpt3_13b_2xdgx_a100"


def step(*settings: str) -> float:
    return simulate_job(load_job(JOB, settings)).step_time


def test_another_gpu_is_as_quick_as_in_a_cluster_of_its_own() -> None:
    made = load_cluster("dgx_a100", 16, ClusterChanges(node="hgx_h100"))
    assert (made.gpu, made.link) == (load_cluster("dgx_h100").gpu, load_cluster("dgx_h100").link)
    assert step("cluster.gpu=h100_80gb_sxm") < 0.8 * step()


def test_a_module_that_shares_its_power_with_a_cpu_leaves_its_gpu_less() -> None:
    alone, four = load_cluster("gh200_x1"), load_cluster("alps", 8)
    assert four.gpu.power == 560 < alone.gpu.power == load_gpu("gh200_96gb").power
    assert load_cluster("alps", 8, ClusterChanges(gpu="h100_80gb_sxm")).gpu == load_gpu("h100_80gb_sxm")
    given = {"gpu": "GH200-96GB", "n_gpus": "8", "inter_gbps_per_gpu": "200", "source": "somebody"}
    rows = [row_cluster(given | {"gpus_per_node": per_node})[0] for per_node in ("4", "1")]
    assert [made.gpu.power for made in rows] == [560, 700]


def test_a_gpu_stays_as_its_node_has_it_wherever_it_is_looked_up_again() -> None:
    four = load_cluster("alps", 8)
    assert four.uncapped_gpu == four.gpu
    assert condition(replace(four, parts=(Part(nodes=((0, 0),), gpu="gh200_96gb"),)), 1).gpu == four.gpu
    capped = replace(four, gpu=Power(cap=400.0).capped(four.gpu))
    assert (capped.gpu.power, capped.uncapped_gpu.power) == (400, 560)


def test_fewer_network_cards_and_slower_ones_cost_time() -> None:
    assert step() < step("cluster.nics=1") < step("cluster.nics=1", "cluster.network_link=ethernet_10")
    assert step("cluster.name=jean_zay") <= step("cluster.name=jean_zay", "cluster.network_latency='50 us'")


def test_a_price_changes_money_alone() -> None:
    job = load_job(JOB, ["cluster.price_per_gpu_hour='2.5 $/h'"])
    assert (2.5, step()) == (job.cluster.price_per_gpu_hour, simulate_job(job).step_time)
    assert 2.5 == job.cluster.resized(8).price_per_gpu_hour


def test_nodes_and_gpus_say_the_same_and_a_setting_wins_over_the_file(tmp_path: Path) -> None:
    assert load_job(JOB, ["cluster.nodes=4"]).cluster.world_size == 32
    assert load_job(JOB, ["cluster.nodes=4", "cluster.node=hgx_h100"]).cluster.world_size == 32
    file = tmp_path / "job.toml"
    file.write_text('[workload]\nmodel="gpt3_1_3b"\n[cluster]\nname="dgx_a100"\nnodes=2\n')
    assert load_job(file).cluster.world_size == 16
    assert load_job(file, ["cluster.gpus=8"]).cluster.world_size == 8
    with pytest.raises(SpecError, match="both say how large"):
        load_job(file, ["cluster.gpus=8", "cluster.nodes=2"])


def test_a_job_written_out_keeps_them(tmp_path: Path) -> None:
    chosen = ["plan.bucket_size='25 MB'", "cluster.nics=4", "cluster.price_per_gpu_hour='3 $/h'"]
    job = load_job(JOB, ["cluster.gpu=h100_80gb_sxm", *chosen])
    (tmp_path / "again.toml").write_text(job_text(job))
    again = load_job(tmp_path / "again.toml")
    assert again.cluster == job.cluster
    assert simulate_job(again).step_time == simulate_job(job).step_time


def test_a_job_written_out_keeps_its_own_parts_and_does_not_repeat_those_of_its_cluster(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    part = '[[parts]]\nnodes = "0-1"\nclock = 0.8\n'
    mine.write_text(f'name = "mine"\nnode = "dgx_a100_80"\nnodes = 4\n{part}[sources]\n"*" = "here"\n')
    both = load_job(
        JOB, [f"cluster.name={mine}", "cluster.nodes=4", 'cluster.parts=[{nodes="1-2", ranks=[5, 9], clock=0.5}]']
    )
    assert len(both.cluster.parts) == 2
    (tmp_path / "again.toml").write_text(job_text(both))
    assert load_job(tmp_path / "again.toml").cluster.parts == both.cluster.parts


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cluster.gpu=h200_80gb", "no GPU 'h200_80gb'"),
        ("cluster.network_link=nothing", "no link 'nothing'"),
        ("cluster.nics=0", "at least 1"),
        ("cluster.price_per_gpu_hour=2.5", "h"),
        ("cluster.link=infiniband_ndr", "GPUs of a node are connected by"),
        ("cluster.nodes=0", "at least 1"),
    ],
)
def test_what_cannot_be_is_refused(setting: str, said: str) -> None:
    with pytest.raises(SimulatorError, match=said):
        load_job(JOB, [setting])


def test_a_machine_without_a_network_needs_cards_too() -> None:
    alone = next(name for name in ("h100_x8", "a100_x8", "rtx4090_x4") if load_cluster(name).network is None)
    with pytest.raises(SpecError, match=r"cluster\.nics = N"):
        load_cluster(alone, None, ClusterChanges(network_link="infiniband_ndr"))
    with pytest.raises((SpecError, PlanError)):
        load_cluster(alone, None, ClusterChanges(nics=8))
