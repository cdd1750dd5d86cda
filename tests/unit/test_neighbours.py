"""Several jobs on one cluster: what interleaved ones take from each other, and that packed ones take nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import SpecError
from simulator.goodput.study import goodput
from simulator.hardware.neighbours import nodes_in_each_pod, rate_beside
from simulator.job import Job, load_job
from simulator.lowering import lower
from simulator.program.builder import ProgramBuilder, collective_link
from simulator.simulation import simulate_job
from simulator.studies.neighbours import Beside, beside_neighbours, bytes_leaving
from tests.command import Dtsim

CLUSTER = """
name = "narrow"
node = "dgx_a100_80"
nodes = 8
topology = "rails"
nodes_per_pod = 4
oversubscription = 4.0
[sources]
"*" = "made up for a test"
"""
HEAVY = """
[workload]
model = "gpt3_13b"
global_batch_size = 32
[plan]
zero_stage = 3
framework = "torchtitan"
[cluster]
name = "narrow"
gpus = 32
"""
LIGHT = HEAVY.replace('zero_stage = 3\nframework = "torchtitan"', "tensor_parallel = 8\npipeline_parallel = 4")
SAVES = """
[checkpoint]
interval = "30 min"
bandwidth = "20 GB/s"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    clusters = tmp_path / "hardware_specs" / "clusters"
    clusters.mkdir(parents=True)
    (clusters / "narrow.toml").write_text(CLUSTER)
    (clusters / "wide.toml").write_text(CLUSTER.replace('"narrow"', '"wide"').replace("4.0", "1.0"))
    for name, text in (("heavy", HEAVY), ("light", LIGHT), ("saves", HEAVY + SAVES)):
        (tmp_path / f"{name}.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(neighbour: str = "heavy", placement: str = "interleaved", *settings: str, name: str = "heavy") -> Job:
    table = f'neighbours=[{{job="{neighbour}.toml",gpus=32,placement="{placement}"}}]'
    return load_job(f"{name}.toml", [table, *settings])


def beside(*arguments: str) -> Beside:
    found = beside_neighbours(job(*arguments))[1]
    assert found is not None
    return found


def test_packed_neighbours_change_nothing() -> None:
    changed, found = beside_neighbours(job("heavy", "packed"))
    plain = load_job("heavy.toml")
    assert found is not None
    assert plain.cluster == changed.cluster
    a, b = simulate_job(plain), simulate_job(changed)
    assert np.array_equal(a.trace.end, b.trace.end)
    assert found.own.packed == found.own.alone == found.own.beside == a.step_time
    assert any("share no links" in text for text in changed.assumptions)


def test_alike_jobs_slow_each_other_alike_and_settle() -> None:
    found = beside()
    own, other = found.own, found.others[0]
    assert (own.packed, own.alone, own.beside) == (other.packed, other.alone, other.beside)
    assert own.alone < own.beside
    felt = own.job.cluster.spec.oversubscription
    assert 2.0 < felt <= 4.0  # half of a pod's nodes have all its uplinks, or their half of them
    assert 2 == own.nodes_per_pod
    assert found.rounds < 20
    # a fixed point: with the demand of the resolved step, the job gets what it was simulated with
    width = own.job.cluster.level("fabric").bandwidth * 8  # type: ignore[union-attr]
    sent = bytes_leaving(own.prediction.program, 16, 8) / 4 / own.prediction.step_time
    assert width / rate_beside(width, 2, width, [(2, sent)]) == pytest.approx(felt, rel=0.01)


def test_the_more_a_neighbour_sends_the_slower() -> None:
    light, heavy = beside("light"), beside("heavy")
    assert light.own.alone == heavy.own.alone
    assert light.own.alone <= light.own.beside < heavy.own.beside
    assert light.own.job.cluster.spec.oversubscription < heavy.own.job.cluster.spec.oversubscription <= 4.0


def test_nobody_gets_less_than_the_equal_share_of_its_nodes() -> None:
    demands = np.linspace(0.0, 60.0, 13)
    rates = [rate_beside(100.0, 5, 50.0, [(5, demand)]) for demand in demands.tolist()]
    assert sorted(rates, reverse=True) == rates
    assert (20.0, 10.0) == (rates[0], rates[-1])
    assert 50.0 == rate_beside(1000.0, 5, 50.0, [(5, 50.0)])


def test_nodes_of_a_pod_are_dealt_out_by_size() -> None:
    assert [5, 15] == nodes_in_each_pod([8, 24], 20)
    assert [4, 8] == nodes_in_each_pod([8, 16], 12, 4)
    with pytest.raises(SpecError, match="cannot all have some of every pod"):
        nodes_in_each_pod([1, 100], 20)


def test_bytes_that_leave_are_those_of_a_ring() -> None:
    build = ProgramBuilder(axes=(("tp", 2), ("dp", 4), ("pp", 1)))
    lane = build.add_stream(build.add_rank(8.0), "dp")
    for _ in range(3):
        build.add_row(build.add_item(collective_link("gradients", "all_reduce", (0,), message=100.0)), lane)
    program = build.build()
    assert 3 * 2 * 2 * (2 * 3 / 4 * 100.0) == pytest.approx(
        bytes_leaving(program, 4, 4)
    )  # two groups, out of two domains
    assert 0.0 == bytes_leaving(program, 8, 4)


def test_pipelines_count_every_hop_that_leaves() -> None:
    settings = [
        "plan.tensor_parallel=8",
        "plan.pipeline_parallel=4",
        "plan.zero_stage=0",
        "plan.framework=megatron_core",
    ]
    found = load_job("heavy.toml", settings)
    program = lower(found.workload, found.plan, 32)
    assert 0.0 == bytes_leaving(program, 32, 8)
    assert 0.0 < bytes_leaving(program, 16, 8) < bytes_leaving(program, 8, 8)


def test_a_wide_spine_is_told(folder: Path) -> None:
    changed, found = beside_neighbours(job("heavy", "interleaved", "cluster.name=wide"))
    assert found is not None
    assert found.own.alone == found.own.beside
    assert any("not oversubscribed" in text for text in changed.assumptions)


def test_the_file_system_is_shared(folder: Path) -> None:
    def stall(*arguments: str) -> float:
        found = goodput(job(*arguments, name="saves"), span=86400.0, samples=1, levers=False)
        assert found.described.cost is not None
        return found.described.cost.stall

    alone, beside_writer = stall("heavy", "packed"), stall("saves", "packed")
    assert alone < beside_writer < 2 * alone
    (folder / "always.toml").write_text(HEAVY + SAVES.replace("30 min", "auto"))
    assert 2 * alone == pytest.approx(stall("always", "packed"))
    with pytest.raises(SpecError, match="the share follows from the neighbours"):
        stall("saves", "packed", "checkpoint.share=0.5")


def answer(dtsim: Dtsim, *arguments: str, code: int = 0) -> tuple[str, str]:
    found, out, err = dtsim(*arguments)
    assert code == found, err
    return out, err


@pytest.mark.parametrize("verb", [("run",), ("goodput", "--days", "1", "--samples", "2")])
def test_both_verbs_answer_with_their_neighbours(verb: tuple[str, ...], dtsim: Dtsim) -> None:
    table = 'neighbours=[{job="heavy.toml",gpus=32,placement="interleaved"}]'
    out, _ = answer(dtsim, verb[0], "heavy.toml", *verb[1:], "--set", table, "--json")
    found: dict[str, Any] = json.loads(out)
    times = found["neighbours"][0]["step_time_s"]
    assert times == found["beside_neighbours"]["step_time_s"]
    assert times["alone"] < times["beside"] == found["step_time_s"]["value"]
    assert any("interleaved" in text for text in found["provenance"]["assumptions"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (['neighbours=[{job="heavy.toml"}]'], "gpus"),
        (['neighbours=[{job="heavy.toml",gpus=32,nodes=2}]'], "nodes"),
        (['neighbours=[{job="nobody.toml",gpus=32}]'], "neighbours[0] (nobody.toml)"),
        (['neighbours=[{job="heavy.toml",gpus=33}]'], "multiple"),
        (['neighbours=[{job="heavy.toml",gpus=32}]', "cluster.parts=[{nodes=0,clock=0.5}]"], "cluster.parts"),
        (
            ['neighbours=[{job="heavy.toml",gpus=32,placement="interleaved"}]', "cluster.name=p5"],
            "not known of cluster",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], said: str, dtsim: Dtsim) -> None:
    out, err = answer(dtsim, "run", "heavy.toml", *(w for s in settings for w in ("--set", s)), code=2)
    assert not out
    assert said in err
    assert "Traceback" not in err


def test_other_verbs_refuse_neighbours(dtsim: Dtsim) -> None:
    table = 'neighbours=[{job="heavy.toml",gpus=32}]'
    assert "goodput only" in answer(dtsim, "explain", "heavy.toml", "--set", table, code=2)[1]
    with pytest.raises(SpecError, match="neighbours are known"):
        simulate_job(job())


def test_the_slowest_generation_sets_the_pace_of_a_run() -> None:
    def step(*settings: str) -> float:
        return goodput(load_job("heavy.toml", settings), span=86400.0, samples=1, levers=False).described.step

    other = 'cluster.parts=[{nodes=%s,gpu="v100_32gb_sxm2"}]'
    plain = ("workload.precision=fp16",)
    one, half, whole = (step(*plain, other % nodes) for nodes in ("0", '"0-1"', '"0-3"'))
    assert step(*plain) < one
    assert one == pytest.approx(half, rel=0.02)
    assert one == pytest.approx(whole, rel=0.05)
