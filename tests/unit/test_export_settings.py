"""Settings that are exported are read back to the same plan, and the same prediction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import PlanError
from simulator.importers.jobs import import_files, load_any_job
from simulator.importers.write_megatron import megatron_script
from simulator.importers.write_others import deepspeed_json, torchtitan_toml
from simulator.importers.written import lost_on_the_way
from simulator.job import Job, job_from_names, load_job
from simulator.lowering import resolve
from simulator.search.job_text import job_text
from simulator.simulation import simulate_job
from simulator.specs.written import spec_toml
from simulator.studies.job_file import write_job
from simulator.workload.model import load_model
from tests.command import Dtsim


def again(
    tmp_path: Path, name: str, text: str, job: Job, settings: tuple[str, ...] = (), model: str | None = None
) -> Job:
    path = tmp_path / name
    path.write_text(text)
    assert not import_files([path]).not_understood
    return load_any_job(str(path), settings, model, job.cluster.name)


def alike(one: Job, other: Job) -> None:
    a, b = simulate_job(one), simulate_job(other)
    assert (a.step_time, a.peak_memory) == (b.step_time, b.peak_memory)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama3_8b", ("tp=2", "plan.sequence_parallel=true", "plan.zero_stage=1", "plan.dropout=false")),
        ("llama3_8b", ("pp=4", "plan.chunks_per_rank=2", "plan.recompute=full", "plan.zero_stage=1", "plan.microbatch_size=2")),
        ("llama3_8b", ("pp=2", "plan.layer_split=[15,17]", "plan.bucket_size='80 MB'", "plan.overlap_gradients=true")),
        ("llama3_8b", ("cp=2", "plan.context_parallel_kind=ulysses", "plan.attention=flash2", "workload.precision=mxfp8")),
        ("llama3_8b", ("plan.zero_stage=3", "workload.precision=bf16", "plan.optimizer_offload=0.5")),
        ("mixtral_8x7b", ("tp=2", "plan.sequence_parallel=true", "ep=4", "plan.expert_exchange=once_per_node", "plan.zero_stage=1")),
        ("deepseek_v3", ("pp=4", "plan.zero_stage=1")),
        ("deepseek_v2_lite", ("ep=8", "plan.zero_stage=1", "plan.recompute=selective", "plan.recompute_modules=['mla_up_proj']")),
        ("gpt2_1_5b", ("workload.precision=fp16", "plan.recompute=full", "plan.recompute_method=block", "plan.recompute_layers=3")),
        ("llama3_8b", ("model.window=1024", "model.mixers=['window','window','full']", "plan.zero_stage=1")),
        ("mamba2_2_7b", ("plan.zero_stage=1",)),
        ("nemotron_h_8b", ("tp=2", "plan.zero_stage=1")),
        ("nemotron3_nano_30b_a3b", ("ep=4", "plan.zero_stage=1")),
    ],
)  # fmt: skip
def test_megatron(tmp_path: Path, model: str, settings: tuple[str, ...]) -> None:
    job = job_from_names(model, "hgx_b200", ("cluster.gpus=8", "workload.global_batch_size=32", *settings))
    back = again(tmp_path, "train.sh", megatron_script(job), job)
    alike(job, back)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama3_8b", ("plan.zero_stage=3", "plan.framework=torchtitan_2025")),
        ("llama3_8b", ("tp=2", "plan.sequence_parallel=true", "plan.zero_stage=3", "plan.framework=torchtitan", "plan.recompute=full")),
        ("llama3_8b", ("plan.zero_stage=3", "plan.shard_size=4", "plan.framework=torchtitan_eager", "workload.precision=fp8_current")),
        ("llama3_8b", ("plan.zero_stage=3", "plan.framework=torchtitan_2025", "workload.precision=fp8_rowwise")),
        ("llama3_70b", ("tp=4", "pp=2", "plan.sequence_parallel=true", "plan.layer_split=[40,40]", "plan.framework=torchtitan")),
        ("qwen3_30b_a3b", ("ep=4", "plan.zero_stage=3", "plan.framework=torchtitan_2025", "plan.reshard_after_forward=false")),
    ],
)  # fmt: skip
def test_torchtitan(tmp_path: Path, model: str, settings: tuple[str, ...]) -> None:
    job = job_from_names(
        model,
        "dgx_h100",
        ("cluster.gpus=8", "workload.global_batch_size=16", "workload.sequence_length=4096", *settings),
    )
    back = again(tmp_path, "job.toml", torchtitan_toml(job), job)
    alike(job, back)


@pytest.mark.parametrize(
    "settings",
    [
        ("plan.zero_stage=2", "plan.overlap_gradients=true", "plan.bucket_size='1 GB'", "plan.framework=deepspeed"),
        ("plan.zero_stage=3", "plan.optimizer_offload=1.0", "plan.parameter_offload=1.0", "plan.framework=deepspeed"),
        ("plan.zero_stage=1", "plan.framework=deepspeed", "plan.gradient_dtype=fp32", "plan.clip_gradients=false"),
        ("plan.zero_stage=0", "plan.framework=deepspeed", "plan.gradient_exchange=one_bit"),
    ],
)  # fmt: skip
def test_deepspeed(tmp_path: Path, settings: tuple[str, ...]) -> None:
    job = job_from_names("llama3_8b", "dgx_h100", ("cluster.gpus=8", "workload.global_batch_size=32", *settings))
    text, elsewhere = deepspeed_json(job)
    back = again(tmp_path, "ds.json", text, job, ("cluster.gpus=8",), "llama3_8b")
    alike(job, back)
    assert "8 GPUs" in elsewhere[0].words


@pytest.mark.parametrize(
    "settings",
    [
        ("pp=2", "plan.zero_stage=1"),
        ("plan.recompute=full", "plan.zero_stage=3"),
        ("cp=2", "plan.context_parallel_kind=ring"),
        ("plan.gradient_exchange=local_sgd", "plan.exchange_every=4"),
    ],
)
def test_what_deepspeeds_user_code_says_is_no_other_plan(settings: tuple[str, ...]) -> None:
    """The file is read back beside what stands in code, which is told apart."""
    job = job_from_names("llama3_8b", "dgx_h100", ("cluster.gpus=16", "plan.framework=deepspeed", *settings))
    text, elsewhere = deepspeed_json(job)
    in_code = [setting for one in elsewhere for setting in one.settings]
    assert in_code
    assert [] == lost_on_the_way(job, text, ".json", in_code)


def test_states_on_drives_are_deepspeeds_alone() -> None:
    """DeepSpeed names the device; torchtitan and Megatron-LM have none."""
    both = ("plan.optimizer_offload=nvme", "plan.parameter_offload=nvme")
    settings = ("cluster.nodes=1", "workload.precision=fp16", "plan.zero_stage=3", *both)
    job = job_from_names("gpt2_1_5b", "v100_dgx2", settings)
    zero = json.loads(deepspeed_json(job)[0])["zero_optimization"]
    assert {"device": "nvme"} == zero["offload_optimizer"] == zero["offload_param"]
    assert "# Has no flag: plan.optimizer_offload = nvme" in megatron_script(job)
    with pytest.raises(PlanError, match="on drives"):
        torchtitan_toml(job_from_names("gpt2_1_5b", "v100_dgx2", (*settings, "workload.precision=fp32")))


def test_what_has_no_flag_is_said() -> None:
    job = job_from_names(
        "gemma2_9b", "dgx_h100", ("plan.fsdp_prefetch=2", "plan.zero_stage=3", "plan.framework=torchtitan")
    )
    script = megatron_script(job)
    for said in (
        "# Has no flag: plan.fsdp_prefetch = 2",
        "# Has no flag: plan.framework = torchtitan",
        "# Has no flag: model.post_norms",
    ):
        assert said in script


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="trains decoders"):
        megatron_script(job_from_names("bert_large", "dgx_h100"))
    with pytest.raises(PlanError, match="shards all states or none"):
        torchtitan_toml(job_from_names("llama3_8b", "dgx_h100", ["plan.zero_stage=1"]))
    low = job_from_names("llama3_8b", "dgx_h100", ["model.lora_rank=8", "plan.zero_stage=0"])
    for write in (megatron_script, torchtitan_toml):
        with pytest.raises(PlanError, match="trains all weights, but lora_rank = 8"):
            write(low)
    assert any(said.words.startswith("adapters of rank 8") for said in deepspeed_json(low)[1])
    with pytest.raises(PlanError, match="DeepSpeed trains in"):
        deepspeed_json(job_from_names("llama3_8b", "dgx_h100", ["workload.precision=fp8"]))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of a model and a cluster that only files have, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(spec_toml(load_model("llama3_2_1b").model_copy(update={"name": "mine"}), ""))
    (tmp_path / "machine.toml").write_text('name = "machine"\nnode = "hgx_h100"\nnodes = 4\n')
    job = tmp_path / "job.toml"
    job.write_text(
        '[workload]\nmodel = "mine.toml"\nglobal_batch_size = 64\n[plan]\ntensor_parallel = 2\nzero_stage = 1\n'
        '[cluster]\nname = "machine.toml"\ngpus = 16\n'
    )
    return job


def test_settings_of_a_model_and_a_cluster_of_ones_own_are_read_back_too(own: Path) -> None:
    job = load_job(own)
    assert [] == lost_on_the_way(job, megatron_script(job), ".sh")
    cut = megatron_script(job).replace("--use-distributed-optimizer", "")
    assert "zero_stage: 1, as read: 0" in lost_on_the_way(job, cut, ".sh")


def test_a_job_that_is_written_finds_the_cluster_of_ones_own(own: Path) -> None:
    job = load_job(own)
    (own.parent / "found.toml").write_text(job_text(job))
    alike(job, load_job("found.toml"))
    assert load_job("found.toml").cluster == job.cluster
    assert 32 == write_job("new", "mine.toml", "machine.toml").job.cluster.world_size


@pytest.mark.parametrize("framework", ["deepspeed", "megatron_deepspeed", "hugging_face_deepspeed"])
@pytest.mark.parametrize(
    "settings", [("plan.zero_stage=1",), ("plan.zero_stage=2",), ("plan.zero_stage=1", "tp=2", "pp=2")]
)
def test_deepspeed_is_told_whether_it_reduces_beside_the_backward_pass(
    framework: str, settings: tuple[str, ...]
) -> None:
    """Its own default is not to; what a file leaves out is read as what configurations of runs turn on."""
    job = job_from_names("gpt3_1_3b", "dgx_a100", (*settings, f"plan.framework={framework}", "cluster.gpus=8"))
    text, elsewhere = deepspeed_json(job)
    overlaps = resolve(job.workload, job.plan, job.cluster.world_size).overlap_gradients
    assert json.loads(text)["zero_optimization"]["overlap_comm"] is overlaps
    in_code = tuple(setting for line in elsewhere for setting in line.settings)
    lost = lost_on_the_way(job, text, ".json", in_code)
    assert not [one for one in lost if one.startswith(("overlap_gradients", "they cannot"))]


def test_a_recompute_that_torchtitan_lacks_is_named_without_a_gap(dtsim: Dtsim) -> None:
    code, _, said = dtsim("export", "torchtitan", "gpt3_175b")
    assert 2 == code
    assert "torchtitan has no recompute = 'selective'. Way out: " in said
