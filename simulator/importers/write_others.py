"""A job as torchtitan's TOML and as DeepSpeed's JSON; `torchtitan` and `deepspeed` read them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from simulator.errors import PlanError
from simulator.importers.known_models import model_table
from simulator.importers.settings import written_as
from simulator.importers.torchtitan import CONTEXT, FLAVORS
from simulator.importers.torchtitan_stages import SCHEDULES
from simulator.job import Job
from simulator.lowering import resolve_on
from simulator.plan.plan import Plan
from simulator.specs.toml_text import table_lines, toml_value
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.model import Model, load_model

__all__ = ["InCode", "deepspeed_json", "torchtitan_toml"]

_PYTORCH = {ours: theirs for theirs, (ours, _) in SCHEDULES.items()}
_CONTEXT = written_as(CONTEXT)
_DTYPES = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8_current": "bfloat16",
    "fp8_rowwise": "bfloat16",
    "mxfp8": "bfloat16",
    "bf16_true": "bfloat16",
}
_CONVERTERS = {"fp8_current": "float8", "fp8_rowwise": "float8", "mxfp8": "mx"}
_OPTIMIZERS = {"sgd": "SGD", "lamb": "Lamb", "lion": "Lion"}
"""Optimizers by DeepSpeed's names; all others are written as AdamW."""


def torchtitan_toml(job: Job) -> str:
    """Return torchtitan's settings; what they cannot say stands in comments.

    Raises:
        PlanError: what torchtitan does not run: ZeRO-1 or 2, another schedule or precision.
    """
    w, p = job.workload, job.plan
    s = resolve_on(w, p, job.cluster)
    if s.zero_stage in (1, 2):
        raise PlanError(
            f"torchtitan shards all states or none, but zero_stage = {s.zero_stage}. Way out: zero_stage = 3, or 0."
        )
    _check_shards(p, "torchtitan")
    if w.model.lora_rank:
        raise PlanError(f"torchtitan trains all weights, but lora_rank = {w.model.lora_rank}. Way out: lora_rank = 0.")
    if w.precision not in _DTYPES:
        raise PlanError(f"torchtitan has no precision {w.precision!r}. Way out: {', '.join(_DTYPES)}.")
    if s.schedule.name not in _PYTORCH:
        raise PlanError(
            f"torchtitan's schedules are {', '.join(_PYTORCH)}, but schedule = {s.schedule.name!r}. Way out: one of them, or "
            "dtsim export torch-csv for its pipeline_parallel_schedule_csv."
        )
    shards = (p.shard_size or s.data_parallel * p.context_parallel) // p.context_parallel if s.zero_stage else 1
    tables: dict[str, dict[str, object]] = {
        "model": _flavor(w.model),
        "optimizer": {"name": "AdamW"},
        "training": {
            "local_batch_size": w.global_batch_size // s.data_parallel
            if p.pipeline_parallel > 1
            else p.microbatch_size,
            "global_batch_size": w.global_batch_size,
            "seq_len": w.sequence_length,
            "mixed_precision_param": _DTYPES[w.precision],
            "max_norm": 1.0 if s.clip_gradients else 0.0,
        },
        "parallelism": {
            "data_parallel_replicate_degree": s.data_parallel // shards,
            "data_parallel_shard_degree": shards,
            "tensor_parallel_degree": p.tensor_parallel,
            "context_parallel_degree": p.context_parallel,
            "pipeline_parallel_degree": p.pipeline_parallel,
            "expert_parallel_degree": p.expert_parallel,
        },
        "activation_checkpoint": _recompute(s.recompute, s.recomputes.method, s.recomputes.layers),
        "compile": {"enable": p.framework != "torchtitan_eager"},
    }
    if p.framework == "torchtitan":
        tables["compile"]["components"] = ["model"]
    if w.precision == "bf16_true":
        tables["training"]["dtype"] = "bfloat16"
    if w.precision in _CONVERTERS:
        tables["model"]["converters"] = [_CONVERTERS[w.precision]]
    if w.precision == "fp8_rowwise":
        tables["quantize.linear.float8"] = {"recipe_name": "rowwise"}
    parallel = tables["parallelism"]
    if p.pipeline_parallel > 1:
        parallel["pipeline_parallel_schedule"] = _PYTORCH[s.schedule.name]
        parallel["pipeline_parallel_microbatch_size"] = p.microbatch_size
        if p.chunks_per_rank != SCHEDULES[_PYTORCH[s.schedule.name]][1]:
            stages = p.pipeline_parallel * p.chunks_per_rank
            parallel["pipeline_parallel_layers_per_stage"] = -(-(w.model.layers + 2) // stages)
    if p.context_parallel > 1:
        if s.context_parallel_kind not in _CONTEXT:
            raise PlanError(
                f"torchtitan exchanges keys and values by allgather or alltoall, but context_parallel_kind = "
                f"{s.context_parallel_kind!r}. Way out: ring or all_gather."
            )
        parallel["context_parallel_rotate_method"] = _CONTEXT[s.context_parallel_kind]
    if p.reshard_after_forward is not None:
        parallel["fsdp_reshard_after_forward"] = "always" if p.reshard_after_forward else "never"
    if p.tensor_parallel_splits:
        parallel["enable_async_tensor_parallel"] = True
    if "nvme" in (s.parameter_tier, s.optimizer_tier):
        raise PlanError(
            "torchtitan keeps states on GPUs or in host memory, but the plan has some on drives. Way out: 'host'."
        )
    if s.parameter_offload == 1.0 and s.optimizer_offload == 1.0:
        tables["training"]["enable_cpu_offload"] = True
    return _toml(job, tables)


def _flavor(model: Model) -> dict[str, object]:
    """Name and flavour of the model; {} when torchtitan has none of its shape."""
    for words, ours in FLAVORS.items():
        if model_table(ours) and _same(model, load_model(ours)):
            name, flavor = words.split(" ")
            return {
                "name": name,
                "flavor": flavor.upper() if name.startswith(("llama3", "qwen", "deepseek")) else flavor,
            }
    return {}


def _same(a: Model, b: Model) -> bool:
    left, right = (
        m.model_dump(exclude={"name", "family", "aliases", "sources", "notes", "parameters_published"}) for m in (a, b)
    )
    return left == right


def _recompute(kind: str, method: str, layers: int) -> dict[str, object]:
    if kind == "operators":
        return {"mode": "selective", "selective_ac_option": "op"}
    if kind == "full" and method == "every":
        return {"mode": "selective", "selective_ac_option": str(layers)}
    if kind not in ("none", "full") or method:
        so = f", recompute_method = {method!r}" if method else ""
        raise PlanError(
            f"torchtitan has no recompute = {kind!r}{so}. Way out: none, operators, full, or every n-th layer."
        )
    return {"mode": kind}


def _toml(job: Job, tables: dict[str, dict[str, object]]) -> str:
    lines = [f"# {job.name}, as torchtitan takes it.  Written by dtsim export torchtitan."]
    if not tables["model"].get("flavor"):
        lines.append(f"# torchtitan has no flavour of the shape of {job.workload.model.name}: add one to its models.")
    for table, fields in tables.items():
        if fields:
            lines += table_lines(table, fields)
    return "\n".join(lines) + "\n"


def _check_shards(plan: Plan, code: str) -> None:
    if plan.shard_across_experts:
        raise PlanError(
            f"{code} shards what is no expert over the ranks of a group of experts, too, but shard_across_experts = true. "
            "Way out: leave it out."
        )


class InCode(NamedTuple):
    """What user code says, not the file: in words, and as settings of a job that is read from the file alone."""

    words: str
    settings: tuple[str, ...] = ()


def deepspeed_json(job: Job) -> tuple[str, tuple[InCode, ...]]:
    """Return (ds_config.json, what user code must say: the pipeline's degree, recompute, exchanges).

    Raises:
        PlanError: a precision that DeepSpeed does not have.
    """
    w, p = job.workload, job.plan
    s = resolve_on(w, p, job.cluster)
    if w.precision not in ("fp32", "fp16", "bf16"):
        raise PlanError(
            f"DeepSpeed trains in fp32, fp16 or bf16, but precision = {w.precision!r}. Way out: one of these."
        )
    _check_shards(p, "DeepSpeed")
    zero: dict[str, object] = {"stage": s.zero_stage}
    if 0 < s.zero_stage < 3 or (s.zero_stage == 0 and p.overlap_gradients is not None):
        zero["overlap_comm"] = s.overlap_gradients
    if p.bucket_size:
        zero["reduce_bucket_size"] = int(p.bucket_size / BYTES_PER_ELEMENT[p.gradient_dtype or w.precision])
    if s.optimizer_offload:
        ratio = {"ratio": s.optimizer_offload} if s.optimizer_tier == "host" else {}
        zero["offload_optimizer"] = {"device": _DEVICES[s.optimizer_tier]} | ratio
    if s.parameter_offload:
        zero["offload_param"] = {"device": _DEVICES[s.parameter_tier]}
    if p.secondary_shard_size:
        zero["zero_hpz_partition_size"] = p.secondary_shard_size
    for field in ("quantized_weights", "quantized_gradients"):
        if getattr(p, field):
            zero[f"zero_{field}"] = True
    if p.shard_size:
        zero["mics_shard_size"] = p.shard_size
    config: dict[str, object] = {
        "train_batch_size": w.global_batch_size,
        "train_micro_batch_size_per_gpu": p.microbatch_size,
        "gradient_accumulation_steps": s.microbatches,
        "gradient_clipping": 1.0 if s.clip_gradients else 0.0,
        "zero_optimization": zero,
        "optimizer": {"type": _optimizer(w.optimizer, s.exchange.name), "params": {"lr": 1e-4}},
    }
    if w.precision != "fp32":
        config[w.precision] = {"enabled": True}
    if p.gradient_dtype:
        config["data_types"] = {"grad_accum_dtype": p.gradient_dtype}
    if p.gradient_reduce_dtype:
        config["communication_data_type"] = p.gradient_reduce_dtype
    if p.tensor_parallel > 1:
        config["tensor_parallel"] = {"autotp_size": p.tensor_parallel}
    if p.context_parallel > 1 and s.context_parallel_kind == "ulysses":
        config["sequence_parallel_size"] = p.context_parallel
    return json.dumps(config, indent=2) + "\n", tuple(_elsewhere(job))


_DEVICES = {"host": "cpu", "nvme": "nvme"}


def _optimizer(name: str, exchange: str) -> str:
    """DeepSpeed's name of an optimizer."""
    if exchange == "one_bit":
        return "OneBitLamb" if name == "lamb" else "OneBitAdam"
    return _OPTIMIZERS.get(name, "AdamW")


def _elsewhere(job: Job) -> Iterator[InCode]:
    p, m = job.plan, job.workload.model
    yield InCode(f"model {m.name}, sequences of {job.workload.sequence_length} tokens, {job.cluster.world_size} GPUs")
    if m.lora_rank:
        rest = f", the rest in {m.frozen_format}" if m.frozen_format else ""
        yield InCode(f"adapters of rank {m.lora_rank} beside {', '.join(m.lora_modules)}{rest}")
    if p.pipeline_parallel > 1:
        yield InCode(
            f"PipelineModule(num_stages={p.pipeline_parallel})", (f"plan.pipeline_parallel={p.pipeline_parallel}",)
        )
    if p.recompute not in (None, "none"):
        yield InCode(f"recompute = {p.recompute}", (f"plan.recompute={p.recompute}",))
    if p.gradient_exchange == "one_bit":
        yield InCode("OneBitAdam: freeze_step, the steps before compression")
    elif p.gradient_exchange not in (None, "all_reduce"):
        fields = ("gradient_exchange", *(name for name in type(p).model_fields if name.startswith("exchange_")))
        given = [f"{name} = {toml_value(value)}" for name in fields if (value := getattr(p, name)) is not None]
        yield InCode(", ".join(given), tuple(f"plan.{one}" for one in given))
    if p.context_parallel > 1 and p.context_parallel_kind != "ulysses":
        kind = p.context_parallel_kind or "ring"
        settings = (f"plan.context_parallel={p.context_parallel}", f"plan.context_parallel_kind={kind}")
        yield InCode(f"context_parallel = {p.context_parallel} ({kind})", settings)
