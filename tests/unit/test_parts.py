"""Parts of a cluster: what may be said, what it changes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.conditions import condition, slowest_wires
from simulator.hardware.gpu import load_gpu
from simulator.hardware.parts import Part, shown_numbers, which_parts
from simulator.job import job_from_names, load_job
from simulator.report.ranks import critical_seconds
from simulator.search.fit import fewest_gpus
from simulator.search.space import read_ranges
from simulator.simulation import simulate_job
from simulator.specs import validate_spec
from simulator.workload.precision import PRECISIONS
from tests.command import Dtsim
from tests.package_sources import ROOT

SMALL = [
    "workload.global_batch_size=32",
    "plan.microbatch_size=1",
    "plan.pipeline_parallel=2",
    "plan.data_parallel=8",
    "cluster.name=dgx_a100",
]
MESH = {"pipeline_ranks": np.repeat([0, 1], 8), "replicas": np.tile(np.arange(8), 2)}


def part(**said: Any) -> Part:
    return validate_spec(said, Part, "test")


def job(*settings: str) -> Any:
    return load_job("gpt2_124m_2gpu", [*SMALL, "cluster.gpus=16", *settings])


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"nodes": 1}, range(8, 16)),
        ({"ranks": "0-2,5"}, [0, 1, 2, 5]),
        ({"ranks": [3, 1, 3]}, [1, 3]),
        ({"pipeline_ranks": 1, "replicas": "6-7"}, [14, 15]),
        ({"nodes": 0, "replicas": [0]}, [0]),
    ],
)
def test_a_part_names_ranks_that_are_in_all_its_lists(said: dict[str, Any], wanted: Any) -> None:
    found = which_parts((part(**said, clock=0.5),), 8, MESH)
    assert list(wanted) == np.flatnonzero(found).tolist()


def test_parts_add_up() -> None:
    found = which_parts((part(nodes=0, clock=0.5), part(ranks=[0, 9], link=0.5)), 8, MESH)
    assert [3, 1, 0, 2] == found[[0, 1, 8, 9]].tolist()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"clock": 0.5}, "a part says whom it is about: give one of nodes, ranks, pipeline_ranks, replicas"),
        ({"nodes": 0}, "a part says what is different there: give one of gpu, node, gpu_power, clock"),
        ({"nodes": "2-1", "clock": 0.5}, "expected numbers such as 3"),
        ({"nodes": [-1], "clock": 0.5}, "expected numbers from 0 on"),
        ({"nodes": True, "clock": 0.5}, "expected numbers such as 3"),
        ({"nodes": 0, "clock": 0.0}, "expected at least 0.001"),
        ({"nodes": 0, "gpu": "h100", "node": "dgx_h100"}, "not both"),
        ({"nodes": 0, "speed": 0.5}, "unknown key"),
    ],
)
def test_a_part_that_cannot_be_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        part(**said)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("{nodes=2,clock=0.5}", r"parts\[0\].nodes must be from 0 to 1, for the job has 2 nodes, but it names 2"),
        ("{replicas=8,clock=0.5}", r"parts\[0\].replicas must be from 0 to 7"),
        ("{nodes=0,pipeline_ranks=1,clock=0.5}", "names no GPU of the job"),
        ('{nodes=0,gpu="no_such"}', "no GPU 'no_such'"),
        ('{nodes=0,gpu="v100"}', "has no peak for bf16"),
        ('{nodes=0,node="p100_node"}', "no node 'p100_node'"),
        ('{nodes=0,gpu="h100"},{ranks=1,gpu="h200"}', r"parts\[0\] \(h100\) and parts\[1\] \(h200\) do"),
    ],
)
def test_a_part_that_the_job_cannot_have_is_refused(said: str, message: str) -> None:
    with pytest.raises((PlanError, SpecError), match=message):
        simulate_job(job(f"cluster.parts=[{said}]"))


def test_wires_that_the_job_does_not_use_are_refused() -> None:
    alone = load_job("gpt2_124m_1gpu", ["cluster.parts=[{ranks=0,link=0.5}]"])
    with pytest.raises(PlanError, match=r"parts\[0\].link is between the GPUs of a node"):
        simulate_job(alone)
    two = load_job("gpt2_124m_2gpu", ["cluster.parts=[{ranks=0,network=0.5}]"])
    with pytest.raises(PlanError, match=r"parts\[0\].network is between nodes, but the job does not leave its node"):
        simulate_job(two)


@pytest.mark.parametrize(
    "said",
    ["clock=0.5", "memory_bandwidth=0.5", "host=0.1", "link=0.2", "network=0.05", 'gpu="h100"', 'node="hgx_h100"'],
)
def test_every_field_of_a_part_changes_the_step(said: str) -> None:
    assert simulate_job(job()).step_time != simulate_job(job(f"cluster.parts=[{{nodes=0,{said}}}]")).step_time


def test_all_gpus_of_another_kind_are_a_cluster_of_that_kind_to_the_last_bit() -> None:
    every = simulate_job(job('cluster.parts=[{nodes="0-1",node="hgx_h100"}]'))
    other = simulate_job(replace(job(), cluster=load_cluster("dgx_h100", 16)))
    assert other.step_time == every.step_time
    assert np.array_equal(other.trace.end, every.trace.end)
    assert (other.capacity, other.peak_flops) == (every.capacity, every.peak_flops)
    assert () == every.ranks


def test_parts_like_the_rest_are_the_plain_job_to_the_last_bit() -> None:
    plain = simulate_job(job())
    same = simulate_job(job('cluster.parts=[{nodes=0,clock=1.0},{ranks=3,gpu="a100_80gb_sxm"}]'))
    assert plain.step_time == same.step_time
    assert np.array_equal(plain.trace.start, same.trace.start)
    apart = simulate_job(job(), fold=False)
    assert (plain.step_time, 16) == (apart.step_time, apart.program.ranks)


def test_factors_of_parts_that_overlap_multiply() -> None:
    both = simulate_job(job("cluster.parts=[{ranks=0,clock=0.5},{nodes=0,clock=0.8}]"))
    once = simulate_job(job('cluster.parts=[{ranks=0,clock=0.4},{ranks="1-7",clock=0.8}]'))
    assert once.step_time == pytest.approx(both.step_time, rel=1e-12)


def test_the_smallest_gpu_decides_whether_it_fits() -> None:
    plain, mixed = load_job("gpt3_175b"), load_job("gpt3_175b", ['cluster.parts=[{replicas=2,gpu="a100_40gb_sxm"}]'])
    before, after = simulate_job(plain), simulate_job(mixed)
    assert before.fits
    assert not after.fits
    assert "2" == after.ranks[after.fullest].replicas
    small, large = (load_gpu(f"a100_{size}gb_sxm").usable_memory for size in (40, 80))
    assert small == after.capacity
    assert {small, large} == set(after.capacities.tolist())
    entry = after.to_dict()["peak_memory_bytes"][after.fullest]
    assert ("2", ["a100_40gb_sxm"], small) == (entry["replicas"], entry["gpus"], entry["capacity"])
    answer = after.to_dict()
    places = [[e["pipeline_rank"] for e in answer[key]] for key in ("peak_memory_bytes", "peak_memory_band_bytes")]
    assert [[*range(8), *range(8)]] * 2 == places


def test_ranks_in_step_run_at_the_pace_of_the_slowest() -> None:
    """Of eight tensor-parallel GPUs one slow one is as bad as eight."""
    one = simulate_job(load_job("gpt3_175b", ["cluster.parts=[{ranks=0,clock=0.7}]"]))
    eight = simulate_job(load_job("gpt3_175b", ["cluster.parts=[{nodes=0,clock=0.7}]"]))
    assert eight.step_time == one.step_time


def test_a_rank_of_the_breakdown_sums_to_the_step_where_ranks_differ() -> None:
    p = simulate_job(job("cluster.parts=[{ranks=3,clock=0.6},{nodes=1,network=0.2}]"))
    assert p.step_time == pytest.approx(sum(p.breakdown.values()), rel=1e-9)
    assert np.allclose(p.rank_breakdown.sum(axis=1), p.step_time)
    assert 16 == p.program.rank_weight.sum()


def test_slowest_wires_take_the_slower_of_each_level() -> None:
    cluster = replace(load_cluster("dgx_a100", 16), parts=(part(nodes=0, link=0.5), part(nodes=1, network=0.5)))
    one, other = condition(cluster, 1), condition(cluster, 2)
    both = slowest_wires([one, other])
    assert [one.levels[0], other.levels[1]] == list(both.levels)
    assert one == slowest_wires([one, one])


def test_numbers_are_shown_as_ranges() -> None:
    assert ("", "4", "0-1,7-9") == (shown_numbers([]), shown_numbers([4]), shown_numbers([0, 1, 7, 8, 9]))


def test_a_clusters_file_may_have_parts_and_noise_and_a_job_adds_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hardware_specs" / "clusters" / "mixed.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        'name = "mixed"\nnode = "dgx_a100_80"\nnodes = 2\n\n[[parts]]\nnodes = 1\ngpu = "h100_80gb_sxm"\n\n'
        '[jitter]\ncompute = 0.01\n\n[sources]\n"*" = "made up for a test"\n'
    )
    monkeypatch.chdir(tmp_path)
    found = job("cluster.name=mixed", "cluster.parts=[{ranks=0,clock=0.5}]", "jitter.gpus=0.1")
    assert ["nodes 1: gpu h100_80gb_sxm", "ranks 0: clock 0.5"] == [p.text for p in found.cluster.parts]
    assert ("gpus",) == found.jitter.causes
    assert ("compute",) == job("cluster.name=mixed").jitter.causes
    gpus = {name for kind in simulate_job(found).ranks for name in kind.gpus}
    assert {"a100_80gb_sxm", "h100_80gb_sxm"} == gpus
    file.write_text(file.read_text().replace("compute = 0.01", "compute = 9"))
    with pytest.raises(SpecError, match=r"mixed.toml, line 10: jitter.compute = 9: expected a sigma from 0 to 3"):
        job("cluster.name=mixed")


def test_pictures_and_tables_name_places_in_the_pipeline(tmp_path: Path) -> None:
    from simulator.report.chrome_trace import export_chrome_trace
    from simulator.report.summary import describe
    from simulator.studies.comparison import compare

    p = simulate_job(job("cluster.parts=[{replicas=3,clock=0.6}]"))
    text = export_chrome_trace(p.program, p.prices, p.trace, tmp_path / "step.json").read_text()
    names = ["pipeline rank 1, replicas of kind 0 (x7 ranks)", "pipeline rank 1, replicas of kind 1 (x1 ranks)"]
    assert all(name in text for name in names)
    said = describe(p, "job")[1]
    assert "ranks that differ" == said.title
    assert "who sets the pace: rank 3 (pipeline rank 1 of replicas 3)" in said.below
    settings = (*SMALL, "cluster.gpus=16")
    rows = compare("gpt2_124m_2gpu", [settings, (*settings, "cluster.parts=[{replicas=3,clock=0.6}]")]).rows
    assert rows[0].pipeline is not None
    assert rows[1].pipeline is not None
    assert rows[0].pipeline.messages == rows[1].pipeline.messages > 0


@pytest.mark.parametrize(
    ("factor", "touched"), [("clock", ("gemm", "attention")), ("memory_bandwidth", ("memory_bound",))]
)
def test_a_factor_slows_its_own_kernels(factor: str, touched: tuple[str, ...]) -> None:
    plain = simulate_job(job()).prices
    slow = simulate_job(job(f'cluster.parts=[{{nodes="0-1",{factor}=0.5}}]')).prices
    for kind in ("gemm", "memory_bound", "attention"):
        before, after = (
            sum(p.class_share[:, q].sum() for q, which in enumerate(p.classes) if which.kind == kind)
            for p in (plain, slow)
        )
        assert before > 0
        assert (2.0 if kind in touched else 1.0) == pytest.approx(after / before, rel=1e-9), kind


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_told_rank_by_rank_as_folded(precision: str) -> None:
    """Ranks told one by one have the figures of ranks that are alike, MFU included; a slow one is measured by the same peak."""
    settings = (f"workload.precision={precision}", "cluster.name=hgx_b200")
    folded, apart = simulate_job(job(*settings)), simulate_job(job(*settings), fold=False)
    assert (folded.step_time, folded.peak_flops) == (apart.step_time, pytest.approx(apart.peak_flops, rel=1e-12))
    assert folded.mfu == pytest.approx(apart.mfu, rel=1e-12)
    slow = simulate_job(job(*settings, "cluster.parts=[{nodes=0,clock=0.5}]"))
    assert slow.peak_flops == pytest.approx(folded.peak_flops, rel=1e-12)
    assert slow.mfu < folded.mfu


@pytest.mark.parametrize("schedule", ["one_f_one_b", "pipedream", "pipedream_2bw"])
def test_ranks_share_the_longest_chain_of_one_step(schedule: str) -> None:
    """Where steps run into each other the chain goes through several; its parts are of one (577 % were printed)."""
    settings = [f"plan.schedule={schedule}", "plan.zero_stage=0", "plan.clip_gradients=false"]
    prediction = simulate_job(job(*settings, 'cluster.parts=[{nodes="0",clock=0.8}]'))
    chain = critical_seconds(prediction)
    assert 0.5 < chain.sum() / prediction.step_time <= 1.0 + 1e-9


ROW = """
name = "with_a_row"
node = "hgx_h100"
nodes = 8
[[parts]]
nodes = "6-7"
clock = 0.8
[sources]
"*" = "made up for a test"
"""


def test_parts_of_a_clusters_file_beyond_the_jobs_machines_are_none_of_its(tmp_path: Path) -> None:
    """A job on six of eight nodes has nothing of what is slow on the last two; one that names them itself is refused."""
    file = tmp_path / "with_a_row.toml"
    file.write_text(ROW)
    names = ("gpt3_13b", str(file))
    sizes = {n: job_from_names(*names, [f"cluster.nodes={n}", "plan.zero_stage=3"]).cluster for n in (6, 7, 8, 16)}
    assert [sizes[n].parts for n in (6, 8)] == [(), sizes[16].parts]
    assert sizes[7].parts[0].nodes == ((6, 6),)
    assert [sizes[8].resized(64 * n // 8).parts for n in (6, 7, 8)] == [sizes[n].parts for n in (6, 7, 8)]
    own = "cluster.parts=[{nodes=%d, clock=0.5}]"
    both = job_from_names(*names, ["cluster.nodes=7", "plan.zero_stage=3", own % 1]).cluster
    assert [part.clock for part in both.parts] == [0.8, 0.5]
    assert [part.clock for part in both.resized(48).parts] == [0.5]
    with pytest.raises(PlanError, match="must be from 0 to 5"):
        simulate_job(job_from_names(*names, ["cluster.nodes=6", "plan.zero_stage=3", own % 7]))
    file.write_text(ROW.replace("6-7", "6-70"))  # no machine of the file either
    with pytest.raises(PlanError, match="must be from 0 to 5"):
        simulate_job(job_from_names(*names, ["cluster.nodes=6", "plan.zero_stage=3"]))


def test_the_fewest_gpus_lie_where_nothing_differs(tmp_path: Path) -> None:
    file = tmp_path / "with_a_row.toml"
    file.write_text(ROW)
    asked = read_ranges(["tensor_parallel=1,8", "zero_stage=1,3", "recompute=full"])
    assert fewest_gpus(job_from_names("gpt3_13b", str(file)), asked, {}).answer == 8


def test_a_part_may_draw_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As machines of their own with the same limit; a limit that is none, or that idle GPUs exceed, is refused."""
    text = (ROOT / "hardware_specs/nodes/hgx_h100.toml").read_text().replace('aliases = ["dgx_h100"]', "")
    (tmp_path / "hardware_specs" / "nodes").mkdir(parents=True)
    file = tmp_path / "hardware_specs" / "nodes" / "capped.toml"
    file.write_text(text.replace('name = "hgx_h100"', 'name = "capped"\ngpu_power = "450 W"'))
    monkeypatch.chdir(tmp_path)

    def step(said: str) -> float:
        settings = ["cluster.gpus=16", "plan.zero_stage=3", f"cluster.parts=[{{nodes=1, {said}}}]"]
        return simulate_job(job_from_names("llama3_8b", "dgx_h100", settings)).step_time

    assert step("clock=1.0") < step("gpu_power='450 W'") == step("node='capped'")
    for wrong in ("800 W", "20 W"):
        with pytest.raises(PlanError, match=r"parts\[0\].gpu_power must be above"):
            step(f"gpu_power='{wrong}'")


def test_rows_of_memory_are_of_what_they_say(dtsim: Dtsim) -> None:
    """Kinds of ranks where GPUs differ: of a job without a pipeline two rows are not two pipeline ranks."""
    words = ("run", "gpt2_124m_2gpu")
    assert "memory at the peak of each pipeline rank: " in dtsim(*words)[1]
    parts = ("--set", "cluster.parts=[{ranks=0, clock=0.5}]")
    assert "memory at the peak of each kind of rank: " in dtsim(*words, *parts)[1]
