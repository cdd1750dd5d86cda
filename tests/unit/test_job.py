"""Jobs: files, names, settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.errors import PlanError, SimulatorError, SpecError, UnknownNameError
from simulator.hardware.cluster import load_cluster
from simulator.job import apply_settings, job_from_names, load_job
from simulator.simulation import simulate, simulate_job
from simulator.studies.job_file import write_job
from simulator.studies.variants import variants
from simulator.units import parse
from simulator.workload.model import load_model


def test_a_job_by_name() -> None:
    job = load_job("gpt3_175b")
    assert (1024, 1536, "gpt3_175b") == (
        job.cluster.world_size,
        job.workload.global_batch_size,
        job.workload.model.name,
    )


def test_all_that_is_wrong_with_a_job_and_its_own_model_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[workload]\nsequenc_length = 5\n[model]\nlayers = 3\nhidden = 4096\n")
    with pytest.raises(SpecError) as refused:
        load_job(path)
    missing, unknown, model = str(refused.value).splitlines()
    assert "mine.toml: missing key cluster" in missing
    assert "line 2: workload.sequenc_length = 5: unknown key" in unknown
    assert "mine.toml [model]: missing keys name, family, heads, ffn" in model


@pytest.mark.parametrize("given", ["gpt3_175b", None, 3, Path("job.toml")])
def test_a_name_where_a_job_is_taken_says_how_to_load_it(given: Any) -> None:
    with pytest.raises(TypeError, match=r"simulate_job takes a Job, not .*Way out: simulator\.load_job"):
        simulate_job(given)


def test_names_and_a_single_text_where_objects_and_lists_are_taken_say_the_way_out() -> None:
    job: Any = load_job("gpt2_124m_1gpu")
    with pytest.raises(TypeError, match=r"a Cluster, not 'dgx_h100'.*load_cluster"):
        simulate(job.workload, job.plan, "dgx_h100")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a Workload, a Plan"):
        simulate(job.workload, job.cluster, job.plan)
    for load in (load_job, lambda name, settings: job_from_names(name, "dgx_h100", settings)):
        with pytest.raises(TypeError, match=r"\['plan.zero_stage=1'\]"):
            load("gpt2_124m_1gpu", "plan.zero_stage=1")


@pytest.mark.parametrize("given", [None, 3, b"gpt3_175b"])
@pytest.mark.parametrize("load", [load_job, load_model, load_cluster])
def test_what_is_no_name_is_refused_as_such(load: Any, given: Any) -> None:
    with pytest.raises(SpecError, match="is no name and no path"):
        load(given)


def test_settings_override_the_file() -> None:
    job = load_job("gpt3_175b", ["plan.microbatch_size=2", "workload.sequence_length=1024", "cluster.gpus=512"])
    assert (2, 1024, 512) == (job.plan.microbatch_size, job.workload.sequence_length, job.cluster.world_size)


def test_a_named_model_can_be_changed() -> None:
    """What if it had half the layers, or another width?"""
    job = load_job("gpt3_175b", ["model.layers=48", "model.hidden=6144"])
    assert (48, 6144, 64) == (job.workload.model.layers, job.workload.model.hidden, job.workload.model.head_dim)
    assert "gpt3_175b (changed)" == job.workload.model.name


def test_a_setting_without_a_value_takes_out_what_the_job_says() -> None:
    given = load_job("gpt3_13b_2xdgx_a100")
    assert (4, 4) == (given.plan.data_parallel, given.plan.tensor_parallel)
    job = load_job("gpt3_13b_2xdgx_a100", ["plan.data_parallel=", "tp="])
    assert (None, 1) == (job.plan.data_parallel, job.plan.tensor_parallel)
    with pytest.raises(SpecError, match=r"cluster\.name"):
        load_job("gpt3_13b_2xdgx_a100", ["cluster.name="])


def test_settings_read_lists_text_and_quantities() -> None:
    data = apply_settings(
        {}, ["plan.layer_split=[1, 2]", "plan.schedule=1f1b", "plan.bucket_size=25 MiB", "plan.p2p='latency'"]
    )
    assert {"layer_split": [1, 2], "schedule": "1f1b", "bucket_size": "25 MiB", "p2p": "latency"} == data["plan"]


def test_model_and_cluster_by_name_say_what_they_assume() -> None:
    job = job_from_names("llama3_8b", "h100_x8", ["plan.zero_stage=3"])
    assert 8 == job.cluster.world_size
    assert 8192 == job.workload.sequence_length
    assert any("global_batch_size = 8" in text for text in job.assumptions)


def test_a_plan_smaller_than_the_cluster_takes_the_gpus_it_needs() -> None:
    job = job_from_names("llama3_8b", "dgx_h100", ["plan.data_parallel=16"])
    assert 16 == job.cluster.world_size
    with pytest.raises(PlanError, match=r"cluster\.gpus = 1000000"):
        job_from_names("llama3_8b", "dgx_h100", ["plan.data_parallel=1000000"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["plan.tensor_paralel=8"], "tensor_parallel"),
        (["plan.tensor_parallel=0"], "tensor_parallel"),
        (["plan.tensor_parallel=8.0"], "tensor_parallel"),
        (["plan.tensor_parallel=nan"], "tensor_parallel"),
        (["plan.bucket_size=25"], "unit"),
        (["plan.bucket_size=25 GB/s"], "a size"),
        (["tensor_parallel"], "TABLE.KEY=VALUE"),
        (["plan.recompute=all"], "recompute"),
        (["workload.precision=int3"], "precision"),
        (["workload.optimizer=adamm"], "Did you mean 'adam'"),
        (["cluster.gpus=12"], "12"),
        (["cluster.gpus=-8"], "gpus"),
        (["model.layers=0"], "layers"),
        (["model.heads=7"], "heads"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: list[str], words: str) -> None:
    with pytest.raises(SimulatorError, match=words):
        load_job("gpt3_175b", settings)


def test_lists_in_plans_are_read() -> None:
    job = load_job("gpt3_175b", ["plan.rank_order=['dp', 'tp', 'pp']", f"plan.layer_split={[4] * 24}"])
    assert (("dp", "tp", "pp"), (4,) * 24) == (job.plan.rank_order, job.plan.layer_split)
    with pytest.raises(SpecError, match="layer_split"):
        load_job("gpt3_175b", ["plan.layer_split=[-1]"])


def test_a_job_can_hold_its_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        """
[model]
name = "mine"
family = "mine"
layers = 4
hidden = 512
heads = 8
ffn = 2048
gated_mlp = false
norm = "layer_norm"
positions = "learned"
tied_embeddings = true
vocabulary = 1000
sequence_length = 128
linear_bias = true
qkv_bias = true
[cluster]
name = "a100_x8"
gpus = 1
"""
    )
    assert (4, "mine") == (load_job(path).workload.model.layers, load_job(path).name)
    path.write_text(path.read_text().replace("layers = 4", "layers = 1000000000"))
    with pytest.raises(SpecError, match="layers"):
        load_job(path)


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="gpt3_175b"):
        load_job("gpt3_175")
    with pytest.raises(UnknownNameError, match="llama3_8b"):
        job_from_names("lama3_8b", "h100_x8")
    with pytest.raises(UnknownNameError, match="h100_x8"):
        job_from_names("llama3_8b", "h100_x")


def test_measured_times_carry_their_unit() -> None:
    assert 1.42 == parse("1.42 s", "s")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("plan.zero_stage=9", "--set: plan.zero_stage = 9: expected at most 3"),
        ("cluster.parts=[{nodes=1,network=0.0}]", "--set: cluster.parts.0.network = 0.0: expected at least 0.001"),
        ("zero_stage=1", "no setting 'zero_stage'. Did you mean 'plan.zero_stage'?"),
        (
            "plan.global_batch_size=64",
            "--set: plan.global_batch_size = 64: unknown key. Did you mean workload.global_batch_size?",
        ),
        (
            "workload.tensor_parallel=2",
            "--set: workload.tensor_parallel = 2: unknown key. Did you mean plan.tensor_parallel?",
        ),
        ("plan.gpus=64", "--set: plan.gpus = 64: unknown key. Did you mean cluster.gpus or "),
        ("plan.parameter_ofload=1", "--set: plan.parameter_ofload = 1: unknown key. Did you mean parameter_offload?"),
    ],
)
def test_a_wrong_setting_is_not_blamed_on_the_file(setting: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_job("gpt3_13b_2xdgx_a100", [setting])
    assert str(caught.value).startswith(said)


def test_a_model_in_place_of_a_job_is_told_apart() -> None:
    with pytest.raises(SpecError, match=r"'t5_11b' is a model, not a job. Way out: --model t5_11b --cluster NAME"):
        load_job("t5_11b")


@pytest.mark.parametrize(("key", "meant"), [("zero_stage", "plan.zero_stage"), ("plan.zero_stag", "plan.zero_stage")])
def test_a_comparison_over_a_key_that_no_job_has_is_refused_once(key: str, meant: str) -> None:
    """It would be wrong in every row, so it is the user's input, not a row that cannot be."""
    with pytest.raises(UnknownNameError, match=f"no setting '{key}'. Did you mean '{meant}'"):
        variants([], [], [f"{key}=0,1"])
    assert len(variants([], [], [f"{meant}=0,1", "model.layers=4,8", "measured_step_time=1 s"])) == 4


@pytest.mark.parametrize(("model", "longest", "usual"), [("qwen2_5_7b", 131072, 8192), ("gpt3_1_3b", 2048, 2048)])
def test_a_sequence_that_nobody_asked_for_is_as_long_for_all_verbs(model: str, longest: int, usual: int) -> None:
    job = job_from_names(model, "h100_x8")
    assert job.workload.sequence_length == usual == write_job("job", model, "h100_x8").job.workload.sequence_length
    said = "the model's" if usual == longest else f"the model takes up to {longest}"
    assert f"sequence_length = {usual} ({said})" in job.assumptions
    asked = job_from_names(model, "h100_x8", [f"workload.sequence_length={longest}"])
    assert asked.workload.sequence_length == longest
    assert not any("sequence_length" in one for one in asked.assumptions)


def test_a_job_of_names_bears_the_cluster_and_model_that_settings_put_in_their_place() -> None:
    settings = ["cluster.name=dgx_h100", "workload.model=gpt3_2_7b", "cluster.gpus=8"]
    assert job_from_names("gpt3_1_3b", "dgx_a100", settings).name == "gpt3_2_7b on dgx_h100"
    assert job_from_names("gpt3_1_3b", "dgx_a100").name == "gpt3_1_3b on dgx_a100"
