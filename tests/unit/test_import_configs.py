"""DeepSpeed, torchtitan, Trainer, Accelerate and NeMo: fields of a job, what was assumed, what was not understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.importers.jobs import import_files, load_any_job
from simulator.importers.trees import parse_yaml
from simulator.lowering.steps.assign import ends_as_layers
from simulator.workload.model import load_model
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data" / "imports"


def imported(*names: str) -> dict[str, Any]:
    return import_files([DATA / name for name in names]).to_dict()


def of_text(tmp_path: Path, name: str, text: str) -> dict[str, Any]:
    (tmp_path / name).write_text(text)
    return import_files([tmp_path / name]).to_dict()


def lost(answer: dict[str, Any]) -> list[str]:
    return [line["text"].partition(":")[0] for line in answer["not_understood"]]


def test_deepspeed() -> None:
    answer = imported("deepspeed.json")
    assert "deepspeed" == answer["source_format"]
    assert {
        "framework": "deepspeed", "microbatch_size": 4, "data_parallel": 32, "zero_stage": 2, "overlap_gradients": True,
        "bucket_size": "1000000000 B", "optimizer_offload": 1.0, "clip_gradients": True,
    } == answer["job"]["plan"]  # fmt: skip
    assert {"precision": "bf16", "global_batch_size": 256, "optimizer": "adam"} == answer["job"]["workload"]
    assert {} == answer["job"]["cluster"]
    assert ["zero_optimization.marvel"] == lost(answer)
    assert answer["not_understood"][0]["place"].endswith("deepspeed.json, line 12")


@pytest.mark.parametrize(
    ("config", "plan"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, {"zero_stage": 3, "parameter_offload": 1.0}),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/d", "buffer_count": 5},
             "offload_optimizer": {"device": "nvme", "pipeline_read": True}, "sub_group_size": 1e9}},
            {"zero_stage": 3, "parameter_offload": "nvme", "optimizer_offload": "nvme"},
        ),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, {"secondary_shard_size": 8}),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, {"shard_size": 8}),
        ({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}}, {"tensor_parallel": 4}),
        ({"zero_optimization": {"stage": 0}, "optimizer": {"type": "OneBitLamb"}}, {"gradient_exchange": "one_bit"}),
        ({"zero_optimization": {"stage": 1}, "sequence_parallel_size": 4}, {"context_parallel": 4, "context_parallel_kind": "ulysses"}),
        ({"zero_optimization": {"stage": "auto"}, "train_batch_size": "auto"}, {"zero_stage": None, "framework": "hugging_face_deepspeed"}),
        ({"zero_optimization": {"memory_efficient_linear": False}, "train_batch_size": "auto"},
         {"framework": "hugging_face_deepspeed_plain"}),
    ],
)  # fmt: skip
def test_deepspeed_plans(tmp_path: Path, config: dict[str, Any], plan: dict[str, Any]) -> None:
    found = of_text(tmp_path, "ds.json", json.dumps(config))["job"]["plan"]
    assert plan == {key: found.get(key) for key in plan}


def test_torchtitan() -> None:
    answer = imported("torchtitan.toml")
    assert "torchtitan" == answer["source_format"]
    plan = answer["job"]["plan"]
    assert [6, *[7] * 9, 6, 5] == plan.pop("layer_split")
    assert {
        "tensor_parallel": 8, "context_parallel": None, "pipeline_parallel": 4, "sequence_parallel": True, "zero_stage": 3,
        "data_parallel": 16, "shard_size": 8, "schedule": "interleaved_1f1b", "chunks_per_rank": 3, "recompute": "operators",
        "framework": "torchtitan_2025", "clip_gradients": True,
    } == plan | {"context_parallel": None}  # fmt: skip
    assert {"gpus": 512} == answer["job"]["cluster"]
    assert load_model("llama3_70b").layers == answer["job"]["workload"]["model"]["layers"]
    assert 64 == answer["job"]["workload"]["global_batch_size"]
    assert "wonder.drug" in lost(answer)


def test_torchtitan_deals_layers_as_its_code_does() -> None:
    """pipeline_parallel.py counts embedding and output as a layer each, and gives what is left to the first stages."""
    assert ([8, 9, 8, 7], [4, 5, 5, 4, 4, 4, 4, 2]) == (ends_as_layers(32, 4), ends_as_layers(32, 8, 1, 2))
    assert ends_as_layers(2, 8) is None


def test_torchtitan_flags_and_saved_json(tmp_path: Path) -> None:
    flags = "NGPU=4\ntorchrun --nproc_per_node ${NGPU} -m torchtitan.train --training.local_batch_size 2 "
    flags += "--parallelism.tensor_parallel_degree=2\n"
    by_flags = of_text(tmp_path, "run.sh", flags)
    assert (4, 2, 2) == (
        by_flags["job"]["cluster"]["gpus"],
        by_flags["job"]["plan"]["tensor_parallel"],
        by_flags["job"]["plan"]["microbatch_size"],
    )
    saved = {"training": {"local_batch_size": 2, "seq_len": 4096}, "parallelism": {"tensor_parallel_degree": 2}}
    assert 4096 == of_text(tmp_path, "config.json", json.dumps(saved))["job"]["workload"]["sequence_length"]


@pytest.mark.parametrize(
    ("optim", "name"),
    [
        ("adamw_torch", "adam"),
        ("adamw_torch_fused", "adam_fused"),
        ("adamw_bnb_8bit", "adam_8bit"),
        ("adafactor", "adafactor"),
        ("lion_32bit", "lion"),
        ("paged_lion_32bit", "lion"),
    ],
)
def test_the_trainers_optimizer(tmp_path: Path, optim: str, name: str) -> None:
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True, "optim": optim}
    assert name == of_text(tmp_path, "trainer.json", json.dumps(arguments))["job"]["workload"]["optimizer"]


def test_trainer_and_accelerate_join() -> None:
    answer = imported("accelerate.yaml", "trainer.json")
    assert {"framework": "hugging_face_fsdp", "zero_stage": 2, "microbatch_size": 2, "recompute": "full"} == answer[
        "job"
    ]["plan"]
    assert (16, 256, 4096) == (
        answer["job"]["cluster"]["gpus"],
        answer["job"]["workload"]["global_batch_size"],
        answer["job"]["workload"]["sequence_length"],
    )
    assert 32 == answer["job"]["workload"]["model"]["layers"]
    assert ["unheard_of"] == lost(answer)
    assert imported("trainer.json", "accelerate.yaml")["job"] == answer["job"]


def test_two_files_that_differ_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"per_device_train_batch_size": 4, "bf16": true}')
    answer = import_files([DATA / "trainer.json", tmp_path / "a.json"]).to_dict()
    assert 2 == answer["job"]["plan"]["microbatch_size"]
    assert any("an earlier file says 2" in line["text"] for line in answer["not_understood"])


def test_nemo() -> None:
    answer = imported("nemo.yaml")
    assert ("nemo", {"gpus": 32}) == (answer["source_format"], answer["job"]["cluster"])
    model = answer["job"]["workload"]["model"]
    assert (24, 8192, 4096, True, "rms_norm") == tuple(
        model[key] for key in ("layers", "ffn", "sequence_length", "gated_mlp", "norm")
    )
    assert {"zero_stage": 1, "recompute": "selective", "framework": "nemo", "sequence_parallel": True} == {
        key: answer["job"]["plan"][key] for key in ("zero_stage", "recompute", "framework", "sequence_parallel")
    }
    assert ["model.magic"] == lost(answer)


def test_yaml_is_read_as_yaml_1_2() -> None:
    tree = parse_yaml("a: no\nb: 1e9\nc: [1, 0x, yes]\nd: '12'\ne: ~\n", "x.yaml")
    assert {"a": "no", "b": 1e9, "c": [1, "0x", "yes"], "d": "12", "e": None} == tree.data
    assert 3 == tree.lines[("c",)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ds.json", '{"zero_optimization": {"stage": 7}}', "a ZeRO stage is 0, 1, 2 or 3"),
        ("ds.json", '{"zero_optimization": {"stage": "two"}}', "line 1: zero_optimization.stage: two: expected a whole number"),
        ("ds.json", '{"zero_optimization": ', "is no JSON"),
        (
            "ds.json",
            '{"zero_optimization": {}, "train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}',
            "is no whole number",
        ),
        ("t.toml", '[training]\nlocal_batch_size = "x"\n[parallelism]\n', "line 2: training.local_batch_size: x"),
        ("t.toml", "[training]\nseq_len = 3\n[parallelism]\ntensor_parallel_degree = 0\n", "above zero"),
        ("n.yaml", "trainer: {devices: 8}\nmodel: {micro_batch_size: -1}\n", "above zero"),
        ("n.yaml", "trainer: {devices: 8}\nmodel: {micro_batch_size: [1\n", "is no YAML"),
        ("n.yaml", "a: &x [1]\nb: *x\n", "aliases"),
        ("a.yaml", "distributed_type: FSDP\nnum_processes: lots\n", "num_processes: lots"),
        ("a.yaml", "{a: 1}: 2\n", "a key must be a word"),
        ("x.json", '{"some": "thing"}', "formats that are known here (dtsim list importers)"),
        ("x.toml", "a = [", "is no TOML"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        of_text(tmp_path, name, text)
    assert said in str(refused.value)


def test_a_file_is_a_job_where_a_job_is_asked_for(tmp_path: Path) -> None:
    job = load_any_job(str(DATA / "deepspeed.json"), ["cluster.gpus=32"], "llama3_8b", "dgx_h100")
    assert (32, 2, "llama3_8b") == (job.cluster.world_size, job.plan.zero_stage, job.workload.model.name)
    assert any("not understood and left out" in line for line in job.assumptions)
    with pytest.raises(SpecError, match="says nothing about the model"):
        load_any_job(str(DATA / "deepspeed.json"), (), None, "dgx_h100")
    with pytest.raises(SpecError, match="does not say on which cluster"):
        load_any_job(str(DATA / "torchtitan.toml"))


def test_the_batch_follows_the_gpus_that_the_job_has(tmp_path: Path) -> None:
    """Microbatch 4, two of them added up: 8 sequences on each replica, however many there are."""
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1}}'
    )
    for settings, batch in (((), 8 * 128), (("cluster.gpus=32",), 8 * 32), (("cluster.gpus=32", "tp=4"), 8 * 8)):
        assert batch == load_any_job(str(path), settings, "llama3_8b", "dgx_h100").workload.global_batch_size
    alone = load_any_job(str(path), ("cluster.gpus=1",), "llama3_8b", "dgx_h100")
    assert (8, 0) == (alone.workload.global_batch_size, alone.plan.zero_stage)


def test_hooks_of_zero_3_stay_on_one_gpu(tmp_path: Path) -> None:
    """They fetch and release weights there, too, from a host where these are offloaded."""
    path = tmp_path / "ds.json"
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero}))
    plan = load_any_job(str(path), ("cluster.gpus=1",), "llama3_8b", "dgx_h100").plan
    assert (3, 1.0, 1.0) == (plan.zero_stage, plan.parameter_offload, plan.optimizer_offload)
    path.write_text(path.read_text().replace("cpu", "nvme"))
    plan = load_any_job(str(path), ("cluster.gpus=1",), "gpt2_1_5b", "v100_dgx2").plan
    assert (3, 0.0, "nvme") == (plan.zero_stage, plan.parameter_offload, plan.optimizer_offload)


def test_a_pipeline_order_of_pytorch_becomes_the_schedule(tmp_path: Path) -> None:
    job = load_any_job(str(DATA / "order.csv"), ("cluster.gpus=8",), "llama3_8b", "dgx_h100")
    assert (2, 8, str(DATA / "order.csv").endswith("order.csv")) == (
        job.plan.pipeline_parallel,
        job.workload.global_batch_size,
        str(job.plan.schedule).endswith("order.csv"),
    )
    (tmp_path / "bad.csv").write_text("0F0,0B0\n1F0\n")
    with pytest.raises(SpecError, match=r"bad\.csv"):
        import_files([tmp_path / "bad.csv"])


def test_a_written_job_runs(tmp_path: Path, dtsim: Dtsim) -> None:
    path = tmp_path / "job.toml"
    code, out, _ = dtsim("import", str(DATA / "torchtitan.toml"), "--cluster", "dgx_h100", "-o", str(path), "--json")
    answer = json.loads(out)
    assert (0, "import", 1) == (code, answer["kind"], answer["schema_version"])
    assert load_any_job(str(path)).plan == load_any_job(str(DATA / "torchtitan.toml"), (), None, "dgx_h100").plan


def test_liger_kernels_of_a_trainer_go_with_how_it_shards(tmp_path: Path) -> None:
    for zero, framework in (
        ("deepspeed: ds.json", "hugging_face_deepspeed_liger"),
        ("fsdp: full_shard", "hugging_face_liger"),
    ):
        text = f"per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nlearning_rate: 1.0e-5\nuse_liger_kernel: true\n{zero}\n"
        assert framework == of_text(tmp_path, "train.yaml", text)["job"]["plan"]["framework"]


AXOLOTL = """
base_model: meta-llama/Meta-Llama-3-8B
model_type: LlamaForCausalLM
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
"""


def test_axolotl_names_a_class_and_leaves_the_precision_to_the_gpu(tmp_path: Path) -> None:
    """Its model_type is a class of the library, not the mark of a config.json; auto is bf16 where the GPU has it, as all here do."""
    answer = of_text(tmp_path, "axolotl.yaml", AXOLOTL)
    assert "hugging_face_trainer" == answer["source_format"]
    assert ("bf16", 4096) == (answer["job"]["workload"]["precision"], answer["job"]["workload"]["sequence_length"])
    assert "workload.precision" in [one["field"] for one in answer["assumed"]]
    assert [] == lost(answer)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true, offload_params: true}\n",
         {"zero_stage": 3, "reshard_after_forward": True, "parameter_offload": 1.0, "optimizer_offload": 1.0}),
        ("fsdp_config: {sharding_strategy: SHARD_GRAD_OP, auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n", {"zero_stage": 2}),
        ("fsdp: full_shard auto_wrap offload\n", {"zero_stage": 3, "parameter_offload": 1.0}),
        ("fsdp_version: 2\ndp_shard_size: 4\ndp_replicate_size: 2\ntensor_parallel_size: 2\n",
         {"zero_stage": 3, "shard_size": 4, "tensor_parallel": 2}),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: {parallelism_config_tp_size: 2, "
         "parallelism_config_cp_size: 2, parallelism_config_cp_comm_strategy: alltoall, parallelism_config_dp_shard_size: 2}\n",
         {"tensor_parallel": 2, "context_parallel": 2, "context_parallel_kind": "ring", "shard_size": None}),
    ],
)  # fmt: skip
def test_sharding_under_each_of_its_names(tmp_path: Path, text: str, plan: dict[str, Any]) -> None:
    answer = of_text(tmp_path, "a.yaml", AXOLOTL + text)
    found = answer["job"]["plan"]
    assert plan | {"framework": "hugging_face_fsdp"} == {key: found.get(key) for key in (*plan, "framework")}
    assert [] == lost(answer)


@pytest.mark.parametrize(
    ("text", "rank", "modules", "width"),
    [
        ("adapter: lora\nlora_r: 32\nlora_target_linear: true\n", 32, 7, None),
        ("adapter: qlora\nlora_r: 64\nlora_target_modules: [q_proj, v_proj]\nload_in_4bit: true\n", 64, 2, "nf4"),
        ("finetuning_type: lora\n", 8, 7, None),
        ("finetuning_type: lora\nlora_rank: 4\nlora_target: q_proj,gate_proj\nquantization_bit: 4\n", 4, 2, "nf4"),
        ("use_peft: true\nlora_r: 16\n", 16, 2, None),
    ],
)
def test_adapters_are_read(tmp_path: Path, text: str, rank: int, modules: int, width: str | None) -> None:
    answer = of_text(tmp_path, "a.yaml", AXOLOTL + text)
    model = answer["job"]["workload"]["model"]
    assert (rank, modules, width) == (model["lora_rank"], len(model["lora_modules"]), model.get("frozen_format"))
    assert [] == lost(answer)


@pytest.mark.parametrize(
    "line", ["adapter: dora", "finetuning_type: freeze", "load_in_8bit: true", "load_in_4bit: true"]
)
def test_what_freezes_other_weights_is_said_to_be_taken_for_the_training_of_all(tmp_path: Path, line: str) -> None:
    answer = of_text(tmp_path, "a.yaml", AXOLOTL + line + "\n")
    assert [line.partition(":")[0]] == lost(answer)
    assert ["as without it"] == [one["value"] for one in answer["assumed"] if one["field"] == "trained"]
    none = of_text(tmp_path, "b.yaml", AXOLOTL + "finetuning_type: full\nload_in_8bit: false\n")
    assert [] == lost(none) + [one for one in none["assumed"] if one["field"] == "trained"]


def test_a_stage_of_llama_factory_with_a_second_model_is_not_passed_over(tmp_path: Path) -> None:
    assert [] == lost(of_text(tmp_path, "a.yaml", AXOLOTL + "stage: sft\n"))
    assert ["stage"] == lost(of_text(tmp_path, "b.yaml", AXOLOTL + "stage: dpo\n"))


def test_a_checkpoint_that_goes_to_the_host_is_recompute_and_a_line_that_was_not_followed(tmp_path: Path) -> None:
    answer = of_text(tmp_path, "a.yaml", AXOLOTL.replace("checkpointing: true", "checkpointing: offload"))
    assert "full" == answer["job"]["plan"]["recompute"]
    assert ["gradient_checkpointing"] == lost(answer)


@pytest.mark.parametrize("name", ["meta-llama/Meta-Llama-3-8B-Instruct", "NousResearch/Meta-Llama-3.1-8B-Instruct"])
def test_releases_of_one_shape_are_one_model(tmp_path: Path, name: str) -> None:
    answer = of_text(tmp_path, "a.yaml", AXOLOTL.replace("meta-llama/Meta-Llama-3-8B", name))
    assert (32, []) == (answer["job"]["workload"]["model"]["layers"], lost(answer))


NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16}
exp_manager:
  name: a_run
  checkpoint_callback_params: {model_parallel_size: 64, filename: 'step-{step}'}
run: {name: a_run, time_limit: "0-01:00:00"}
model:
  micro_batch_size: 1
  global_batch_size: 64
  rampup_batch_size: null
  encoder_seq_length: 4096
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  gradient_accumulation_fusion: %s
  activations_checkpoint_granularity: %s
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: %s
  optim: {name: distributed_fused_adam, overlap_grad_sync: true, overlap_param_sync: false, bucket_cap_mb: 125}
"""


@pytest.mark.parametrize(
    ("said", "layers", "recompute", "unread"),
    [
        ("null", "0", "none", []),
        ("null", "2", "none", []),
        ("full", "2", "full", []),
        ("full", "0", "none", []),
        ("selective", "0", "selective", ["model.activations_checkpoint_method", "model.activations_checkpoint_num_layers"]),
    ],
)  # fmt: skip
def test_recompute_of_nemo_goes_by_the_granularity_where_the_file_has_one(
    tmp_path: Path, said: str, layers: str, recompute: str, unread: list[str]
) -> None:
    """Its recipes state method and number of layers beside a granularity of null: nothing is made again then."""
    answer = of_text(tmp_path, "n.yaml", NEMO % ("false", said, layers))
    assert (recompute, unread) == (answer["job"]["plan"].get("recompute", "none"), lost(answer))


def test_overlap_and_buckets_of_nemos_optimizer(tmp_path: Path) -> None:
    plan = of_text(tmp_path, "n.yaml", NEMO % ("false", "null", "0"))["job"]["plan"]
    want = {"zero_stage": 1, "overlap_gradients": True, "overlap_parameters": False, "bucket_size": "125 MiB",
            "gradient_accumulation_fusion": False, "tensor_parallel": None}  # fmt: skip
    assert want == {key: plan.get(key) for key in want}
    assert of_text(tmp_path, "n.yaml", NEMO % ("true", "null", "0"))["job"]["plan"]["gradient_accumulation_fusion"]
    sharded = NEMO.replace("hidden_size", "fsdp: true\n  hidden_size") % ("false", "null", "0")
    assert 3 == of_text(tmp_path, "n.yaml", sharded)["job"]["plan"]["zero_stage"]


TITAN = """
[training]
local_batch_size = 2
seq_len = 4096
mixed_precision_reduce = "%s"
[model]
name = "qwen3"
flavor = "1.7B"
[optimizer]
early_step_in_backward = %s
[parallelism]
data_parallel_shard_degree = 8
[float8]
enable_fsdp_float8_all_gather = true
"""


@pytest.mark.parametrize(
    ("dtype", "early", "plan"), [("bfloat16", "true", ("bf16", True)), ("float32", "false", (None, None))]
)
def test_how_torchtitan_reduces_and_updates_is_not_passed_over(
    tmp_path: Path, dtype: str, early: str, plan: tuple[str | None, bool | None]
) -> None:
    """A section float8 without its converter has no effect."""
    answer = of_text(tmp_path, "t.toml", TITAN % (dtype, early))
    found = answer["job"]["plan"]
    assert plan == (found.get("gradient_reduce_dtype"), found.get("optimizer_in_backward"))
    assert (28, []) == (answer["job"]["workload"]["model"]["layers"], lost(answer))


@pytest.mark.parametrize(
    ("line", "recompute"),
    [("", "full"), ("disable_gradient_checkpointing: true\n", "none"), ("gradient_checkpointing: false\n", "none")],
)
def test_llama_factory_makes_layers_again_unless_it_is_told_not_to(tmp_path: Path, line: str, recompute: str) -> None:
    text = f"per_device_train_batch_size: 1\nfinetuning_type: full\ncutoff_len: 2048\nbf16: true\n{line}"
    assert recompute == of_text(tmp_path, "a.yaml", text)["job"]["plan"]["recompute"]


def test_the_tokenizer_of_nemo_has_a_vocabulary_where_its_type_is_of_one_model(tmp_path: Path) -> None:
    text = NEMO % ("false", "null", "0") + "  tokenizer: {library: megatron, type: GPT2BPETokenizer}\n"
    assert 50257 == of_text(tmp_path, "n.yaml", text)["job"]["workload"]["model"]["vocabulary"]


@pytest.mark.parametrize(
    ("name", "framework"), [("fsdp2", "hugging_face_fsdp"), ("deepspeed", "hugging_face_deepspeed")]
)
def test_llama_factorys_new_arguments(tmp_path: Path, name: str, framework: str) -> None:
    text = f"model: Qwen/Qwen3-0.6B\nmodel_class: llm\ndist_config: {{name: {name}}}\n"
    text += "micro_batch_size: 1\nglobal_batch_size: 16\ncutoff_len: 2048\n"
    answer = of_text(tmp_path, "a.yaml", text)
    assert (framework, 28, "full", 16, []) == (
        answer["job"]["plan"]["framework"], answer["job"]["workload"]["model"]["layers"], answer["job"]["plan"]["recompute"],
        answer["job"]["workload"]["global_batch_size"], lost(answer),
    )  # fmt: skip
    assert "model.lora_rank" in [
        one["field"] for one in of_text(tmp_path, "b.yaml", text + "peft_config: {name: lora}\n")["assumed"]
    ]
