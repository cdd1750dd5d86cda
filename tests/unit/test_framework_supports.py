"""What a framework's code runs: told beside a prediction, left out of a space that nobody named, never refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import SimulatorError, SpecError
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.table.rows import read_rows
from simulator.job import job_from_names
from simulator.lowering import resolve
from simulator.lowering.resolve.framework_rules import beyond_framework
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.schedules import SCHEDULES
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.simulation import simulate_job
from simulator.specs import names
from tests.command import Dtsim
from tests.package_sources import ROOT
from tests.profiles import profile

JOB = ("gpt3_1_3b", "h100_x8", ["workload.global_batch_size=32"])
SEARCH = ("search", "--model", "gpt3_1_3b", "--cluster", "h100_x8", "--set", "workload.global_batch_size=32", "--json")


def notes(*settings: str) -> list[str]:
    prediction = simulate_job(job_from_names(JOB[0], JOB[1], [*JOB[2], *settings]))
    return [text for text in prediction.provenance["assumptions"] if "does not run" in text]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["framework=megatron_core", "pipeline_parallel=2"], ""),
        (["framework=megatron_core", "pipeline_parallel=2", "schedule=zb_h1"], "schedule = 'zb_h1'"),
        (["framework=megatron_core", "recompute=operators"], "recompute = 'operators'"),
        (["framework=pytorch_ddp", "tensor_parallel=2"], "tensor_parallel = 2"),
        (["framework=torchtitan", "pipeline_parallel=2", "schedule=1F1B"], ""),
        (["framework=torchtitan", "pipeline_parallel=2", "schedule=chimera"], "schedule = 'chimera'"),
        (["framework=megatron_deepspeed", "zero_stage=2"], ""),
        (["framework=megatron_deepspeed", "pipeline_parallel=2"], ""),
        (["framework=megatron_deepspeed", "zero_stage=2", "pipeline_parallel=2"], "zero_stage = 2 with pipeline_parallel = 2"),
        (["framework=megatron_lm", "pipeline_parallel=2", "layer_split=[13,11]"], "layer_split = [13, 11]"),
        (["framework=nvidia_bert", "pipeline_parallel=2", "schedule=gpipe"], ""),
    ],
)  # fmt: skip
def test_a_prediction_says_what_its_framework_does_not_run(settings: list[str], said: str) -> None:
    found = notes(*(f"plan.{setting}" for setting in settings))
    assert bool(found) == bool(said)
    assert all(said in text for text in found)


def test_what_a_profile_supports_is_inherited_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile(tmp_path, "mine", extends='"megatron_lm"')
    profile(tmp_path, "own", extends='"megatron_lm"', supports="[{ zero_stage = [3] }]")
    assert load_framework("mine").supports == load_framework("megatron_lm").supports
    assert load_framework("own").lacks(Plan(zero_stage=1)) == {"zero_stage": 1}
    assert not load_framework("own").lacks(Plan(zero_stage=3, layer_split=(12, 12), pipeline_parallel=2))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[{ zero_stages = [1] }]", "no field of a plan"),
        ("[{ zero_stage = [7] }]", "at most 3"),
        ("[{ recompute = ['some'] }]", "none"),
        ("[{ zero_stage = 1 }]", "zero_stage"),
        ("3", "supports"),
    ],
)
def test_a_profile_that_supports_what_no_plan_says_is_refused(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile(tmp_path, "mine", extends='"megatron_core"', supports=text)
    with pytest.raises(SpecError, match=told):
        load_framework("mine")


def test_schedules_that_profiles_support_have_their_own_names() -> None:
    named = {
        s for name in names("frameworks") for kind in load_framework(name).supports for s in kind.get("schedule", ())
    }
    assert named <= set(SCHEDULES.members)


@pytest.mark.parametrize("name", names("frameworks"))
def test_a_code_runs_its_own_defaults(name: str) -> None:
    framework = load_framework(name)
    assert not framework.lacks(Plan(framework=name, recompute=framework.recompute), "one_f_one_b")


@pytest.mark.slow
def test_no_measured_run_did_what_its_code_does_not_run() -> None:
    said = []
    for row in read_rows(ROOT / "workloads" / "published" / "measured_runs.csv"):
        try:
            placed = row_simulation(row)
            plan = Plan(**placed.fields)
            resolved = resolve(placed.workload, plan, placed.cluster.world_size, "its cluster")
        except (SimulatorError, ValueError):
            continue
        said.append((row.get("case_id"), beyond_framework(resolved.framework, resolved.schedule, plan)))
    assert len(said) > 500
    assert [] == [pair for pair in said if pair[1]]


def test_a_space_that_nobody_named_has_what_the_framework_runs(dtsim: Dtsim) -> None:
    words = (*SEARCH, "--set", "plan.framework=torchtitan", "--fix", "pipeline_parallel=1", "--fix", "recompute=full")
    words = (*words, "--fix", "tensor_parallel=2", "--fix", "microbatch_size=1")
    _, out, _ = dtsim(*words)
    _, every, _ = dtsim(*words, "--any-framework")
    own, all_of_it = json.loads(out), json.loads(every)
    assert own["space"]["left_out"]["plan.zero_stage"] == [1]
    assert own["space"]["ranges"]["plan.zero_stage"] == [0, 3]
    assert all_of_it["space"]["left_out"] == {}
    assert all_of_it["space"]["ranges"]["plan.zero_stage"] == [0, 1, 3]
    assert all_of_it["space"]["plans"] > own["space"]["plans"]


def test_ranges_are_taken_as_given_and_what_is_beyond_the_framework_is_said(dtsim: Dtsim) -> None:
    words = (*SEARCH, "--set", "plan.pipeline_parallel=4", "--range", "schedule=one_f_one_b,zb_h1")
    code, out, _ = dtsim(*words)
    found = json.loads(out)
    assert code == 0
    assert found["space"]["ranges"] == {"plan.schedule": ["one_f_one_b", "zb_h1"]}
    notes = {one["plan"]["plan.schedule"]: one["notes"] for one in found["best"]}
    assert notes["one_f_one_b"] == []
    assert "does not run schedule = 'zb_h1'" in notes["zb_h1"][0]


def test_combinations_that_the_framework_does_not_run_are_refused_in_such_a_space() -> None:
    job = job_from_names(JOB[0], JOB[1], [*JOB[2], "plan.framework=megatron_deepspeed"])
    space = make_space(job, {}, read_ranges(["recompute=full", "tensor_parallel=2"], "--fix"))
    answer = search(space, top=3)
    assert any("zero_stage = 3 with pipeline_parallel = 2" in reason for reason in answer.refused.values())
    assert sum(answer.disposed.values()) == space.size
    assert all(
        one.point.values["plan.zero_stage"] < 2 or one.point.values["plan.pipeline_parallel"] == 1
        for one in answer.best
    )


def test_the_space_that_is_made_has_what_matters_beside_the_usual_fields() -> None:
    job = job_from_names("gpt3_1_3b", "dgx_h100", ["cluster.gpus=16", "workload.global_batch_size=32"])
    fixed = read_ranges(
        ["tensor_parallel=1", "microbatch_size=1", "chunks_per_rank=1", "layer_split=balanced"], "--fix"
    )
    space = make_space(job, {}, fixed)
    assert space.ranges["plan.recompute_modules"] == (None, ["layernorm"], ["mlp"])
    assert space.ranges["plan.shard_size"] == (None, 8)
    assert "plan.optimizer_offload" not in space.ranges
    answer = search(space, "grid")
    for one in answer.candidates.values():
        values = one.point.values
        assert values["plan.recompute_modules"] is None or values["plan.recompute"] == "selective"
        assert values["plan.shard_size"] is None or values["plan.zero_stage"] == 3
    assert any("tried beside recompute = selective" in reason for reason in answer.refused.values())
    wider = make_space(job, {}, fixed, any_framework=True)
    assert {"zb_h1", "chimera"} <= set(wider.ranges["plan.schedule"])
    assert "operators" in wider.ranges["plan.recompute"]
    large = job_from_names("deepseek_v3", "hgx_h800", ["cluster.gpus=256", "workload.global_batch_size=256"])
    assert make_space(large, {}, {}).untried
    tight = job_from_names("gpt3_13b", "dgx_a100", ["cluster.gpus=8", "workload.global_batch_size=32"])
    assert make_space(tight, {}, fixed).ranges["plan.optimizer_offload"] == (0.0, 1.0)
