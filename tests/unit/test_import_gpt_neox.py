"""GPT-NeoX's names become a job's; those of Megatron and DeepSpeed beside them do not make it one of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.importers.jobs import import_files, load_any_job
from simulator.workload.model import load_model

TWENTY = """{
  # a comment, words in Python's manner and a comma too many, as its own files have them
  "pipe_parallel_size": 4,
  "model_parallel_size": 2,
  "num_layers": 44,
  "hidden_size": 6144,
  "num_attention_heads": 64,
  "seq_length": 2048,
  "max_position_embeddings": 2048,
  "norm": "layernorm",
  "pos_emb": "rotary",
  "rotary_pct": 0.25,
  "no_weight_tying": true,
  "attention_config": [[["flash"], 44]],
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 32,
  "checkpoint-activations": true,
  "hidden_dropout": 0,
  "attention_dropout": 0,
  "fp16": {"enabled": true, "loss_scale": 0},
  "optimizer": {"type": "Adam", "params": {"lr": 0.97e-4}},
  "gradient_clipping": 1.0,
  %s
}
"""


def imported(tmp_path: Path, more: str = "") -> dict[str, Any]:
    path = tmp_path / "20B.yml"
    path.write_text(TWENTY % more)
    return import_files([path]).to_dict()


def test_its_plan_and_its_model(tmp_path: Path) -> None:
    answer = imported(tmp_path)
    assert ("gpt_neox", []) == (answer["source_format"], answer["not_understood"])
    want = {
        "framework": "gpt_neox", "tensor_parallel": 2, "pipeline_parallel": 4, "schedule": "one_f_one_b", "zero_stage": 1,
        "microbatch_size": 4, "recompute": "full", "dropout": False, "clip_gradients": True, "attention": "flash2",
        "overlap_gradients": True, "bucket_size": "1000000000 B",
    }  # fmt: skip
    assert want == answer["job"]["plan"]
    assert ("fp16", "adam") == tuple(answer["job"]["workload"][name] for name in ("precision", "optimizer"))
    job = load_any_job(str(tmp_path / "20B.yml"), ("model.vocabulary=50432",), None, "dgx_a100")
    assert load_model("gpt_neox_20b").parameters == job.workload.model.parameters


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        (
            '"activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256',
            {"ffn": 11008, "gated_mlp": True},
        ),
        ('"activation": "swiglu"', {"ffn": 8192, "gated_mlp": True}),
        ('"norm": "rmsnorm"', {"norm": "rms_norm", "ffn": 24576}),
        ('"pos_emb": "alibi"', {"positions": "alibi"}),
        ('"use_bias_in_attn_linear": false', {"qkv_bias": False, "linear_bias": True}),
        ('"num_kv_heads": 8', {"kv_heads": 8}),
    ],
)
def test_sizes_in_its_own_manner(tmp_path: Path, more: str, fields: dict[str, Any]) -> None:
    """With a gate intermediate_size is cut to a third: gate and up are one matrix of two thirds (ParallelMLP)."""
    name = more.split('"')[1]
    text = "\n".join(line for line in (TWENTY % more).split("\n") if f'"{name}"' not in line or line.strip() == more)
    (tmp_path / "a.yml").write_text(text)
    model = import_files([tmp_path / "a.yml"]).to_dict()["job"]["workload"]["model"]
    assert fields == {field: model[field] for field in fields}


def test_bf16_has_whole_gradients_in_fp32_and_what_is_not_known_is_said(tmp_path: Path) -> None:
    answer = imported(tmp_path, '"precision": "bfloat16", "moe_num_experts": 8, "tokenizer_type": "HFTokenizer"')
    assert ("gpt_neox_bf16", "bf16") == (answer["job"]["plan"]["framework"], answer["job"]["workload"]["precision"])
    assert ["moe_num_experts", "tokenizer_type"] == sorted(
        line["text"].partition(":")[0] for line in answer["not_understood"]
    )
