"""A job as a launch script of Megatron-LM; `megatron` reads it back to the same job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator.errors import PlanError
from simulator.importers.megatron_model import PATTERN
from simulator.importers.megatron_plan import CONTEXT, FP8, KERNELS, SHARDING
from simulator.importers.settings import written_as
from simulator.job import Job
from simulator.lowering import resolve_on
from simulator.lowering.steps.assign import assign_layers
from simulator.workload.model import Model

__all__ = ["megatron_script"]

_CONTEXT, _SHARDING, _FP8 = written_as(CONTEXT), written_as(SHARDING), written_as(FP8)
_BACKENDS, _LETTERS = written_as(KERNELS), written_as(PATTERN)
"""Our words -> Megatron's."""
_SCHEDULES = ("one_f_one_b", "interleaved_1f1b", "combined_1f1b")
_CONVOLVED = 4
"""Tokens that a layer with a state convolves (core/ssm/mamba_mixer.py: d_conv)."""
_POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
_SAID = {
    "tensor_parallel", "context_parallel", "context_parallel_kind", "context_parallel_inner", "pipeline_parallel", "data_parallel",
    "expert_parallel", "expert_tensor_parallel", "expert_exchange", "sequence_parallel", "tensor_parallel_splits", "chunks_per_rank",
    "microbatch_size", "schedule", "zero_stage", "recompute", "recompute_modules", "recompute_method", "recompute_layers",
    "partition_activations", "attention",
    "gradient_accumulation_fusion", "expert_permute_fusion",
    "fused_cross_entropy", "overlap_gradients", "overlap_parameters", "bucket_size", "gradient_dtype", "layer_split", "optimizer_offload",
    "optimizer_offload_overlap", "moment_dtype", "splits_master_weights", "activation_offload", "dropout", "cuda_graphs", "framework",
}  # fmt: skip
"""Fields of a plan that have flags."""


def megatron_script(job: Job) -> str:
    """Return a bash script that launches Megatron-LM's pretrain_gpt.py as the job says; what has no flag stands in comments.

    Raises:
        PlanError: the model is no decoder, or the plan cannot be.
    """
    model, cluster = job.workload.model, job.cluster
    if model.architecture != "transformer":
        raise PlanError(
            f"Megatron's pretrain_gpt.py trains decoders, but model {model.name!r} is of architecture {model.architecture!r}. "
            "Way out: another form of export, or a decoder."
        )
    if model.lora_rank:
        raise PlanError(
            f"Megatron's pretrain_gpt.py trains all weights, but lora_rank = {model.lora_rank}. Way out: another form of export, or "
            "lora_rank = 0."
        )
    per_node = min(cluster.node.gpus, cluster.world_size)
    left = list(_without_flags(job))
    lines = [
        "#!/bin/bash",
        f"# {job.name}, as Megatron-LM takes it.  Written by dtsim export megatron; data and tokenizer are placeholders.",
        *(f"# Has no flag: {text}" for text in left),
        "",
        f"GPUS_PER_NODE={per_node}",
        f"NNODES={cluster.world_size // per_node}",
        "",
        *_array("MODEL_ARGS", _model(job)),
        *_array("PARALLEL_ARGS", _parallel(job)),
        *_array("TRAINING_ARGS", _training(job)),
        "DATA_ARGS=(",
        "    --mock-data",
        "    --tokenizer-type NullTokenizer",
        f"    --vocab-size {model.vocabulary}",
        ")",
        "",
        f"torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_{'mamba' if _letters(model) else 'gpt'}.py \\",
        '    "${MODEL_ARGS[@]}" \\',
        '    "${PARALLEL_ARGS[@]}" \\',
        '    "${TRAINING_ARGS[@]}" \\',
        '    "${DATA_ARGS[@]}"',
    ]
    return "\n".join(lines) + "\n"


def _array(name: str, flags: Iterator[tuple[str, object]]) -> list[str]:
    def text(value: Any) -> str:
        return "" if value is True else f" {value}"

    return [f"{name}=(", *(f"    --{flag}{text(value)}" for flag, value in flags), ")", ""]


def _model(job: Job) -> Iterator[tuple[str, object]]:
    m = job.workload.model
    yield "use-mcore-models", True
    yield "num-layers", m.layers
    yield "hidden-size", m.hidden
    yield "ffn-hidden-size", m.ffn
    yield "num-attention-heads", m.heads
    if m.attention == "latent":
        yield "multi-latent-attention", True
        if m.q_lora_rank:
            yield "q-lora-rank", m.q_lora_rank
        yield "kv-lora-rank", m.kv_lora_rank
        yield "qk-head-dim", m.qk_nope_head_dim
        yield "qk-pos-emb-head-dim", m.qk_rope_head_dim
        yield "v-head-dim", m.v_head_dim
    else:
        if m.kv_heads != m.heads:
            yield "group-query-attention", True
            yield "num-query-groups", m.kv_heads
        yield "kv-channels", m.head_dim
        if m.qk_norm:
            yield "qk-layernorm", True
    yield "seq-length", job.workload.sequence_length
    yield "max-position-embeddings", m.sequence_length
    yield "position-embedding-type", _POSITIONS.get(m.positions, "none")
    if m.rotary_share < 1:
        yield "rotary-percent", m.rotary_share
    yield "normalization", "RMSNorm" if m.norm == "rms_norm" else "LayerNorm"
    if m.gated_mlp:
        yield "swiglu", True
    if not m.linear_bias:
        yield "disable-bias-linear", True
    if m.qkv_bias and not m.linear_bias:
        yield "add-qkv-bias", True
    if not m.tied_embeddings:
        yield "untie-embeddings-and-output-weights", True
    if m.window:
        yield "window-size", f"{m.window - 1},0"
    if m.window and set(m.layer_mixers) == {"window", "full"}:
        yield "window-attn-skip-freq", "[" + ",".join(str(int(mixer == "window")) for mixer in m.layer_mixers) + "]"
    if letters := _letters(m):
        yield "is-hybrid-model", True
        yield "hybrid-override-pattern", f'"{letters}"'
        yield "spec", "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
        yield "mamba-state-dim", m.ssm_state
        yield "mamba-head-dim", m.ssm_head_dim
        yield "mamba-num-groups", m.ssm_groups
        yield "mamba-num-heads", m.ssm_heads
    yield from _experts(job)
    if m.mtp_layers:
        yield "mtp-num-layers", m.mtp_layers


def _letters(m: Model) -> str:
    """The layers of a hybrid of states and attention, a letter each; "" of other models."""
    layers = zip(m.layer_mixers, m.layer_mlps, m.moe_layers, strict=True)
    letters = [_LETTERS.get(layer, "") for layer in layers] if "mamba2" in m.layer_mixers else []
    return "".join(letters) if all(letters) else ""


def _experts(job: Job) -> Iterator[tuple[str, object]]:
    m, p = job.workload.model, job.plan
    if not m.experts:
        return
    yield "num-experts", m.experts
    yield "moe-router-topk", m.experts_per_token
    yield "moe-ffn-hidden-size", m.expert_ffn
    if m.shared_expert_ffn:
        yield "moe-shared-expert-intermediate-size", m.shared_expert_ffn
    if not all(m.moe_layers) and not _letters(m):
        yield "moe-layer-freq", "[" + ",".join(str(int(sparse)) for sparse in m.moe_layers) + "]"
    if m.expert_groups:
        yield "moe-router-num-groups", m.expert_groups
        yield "moe-router-group-topk", m.groups_per_token
    if m.capacity_factor:
        yield "moe-expert-capacity-factor", m.capacity_factor
    yield "moe-grouped-gemm", True
    if p.expert_exchange == "einsum":
        raise PlanError(
            "Megatron-LM has no one-hot dispatch of tokens to experts, but expert_exchange = 'einsum'. Way out: all_to_all."
        )
    once = p.expert_exchange == "once_per_node"
    yield "moe-token-dispatcher-type", "flex" if once else "alltoall"
    if once:
        yield "moe-enable-deepep", True
    if p.expert_permute_fusion:
        yield "moe-permute-fusion", True


def _parallel(job: Job) -> Iterator[tuple[str, object]]:
    p = job.plan
    s = resolve_on(job.workload, p, job.cluster)
    yield "tensor-model-parallel-size", p.tensor_parallel
    yield "pipeline-model-parallel-size", p.pipeline_parallel
    yield "context-parallel-size", p.context_parallel
    if p.context_parallel > 1:
        yield "cp-comm-type", _kind(s.context_parallel_kind)
        if p.context_parallel_inner:
            outer = p.context_parallel // p.context_parallel_inner
            yield "hierarchical-context-parallel-sizes", f"{p.context_parallel_inner} {outer}"
    if job.workload.model.experts:
        yield "expert-model-parallel-size", p.expert_parallel
        yield "expert-tensor-parallel-size", p.expert_tensor_parallel or p.tensor_parallel
    if p.sequence_parallel:
        yield "sequence-parallel", True
    if p.tensor_parallel_splits:
        yield "tp-comm-overlap", True
    model = job.workload.model
    if p.pipeline_parallel > 1 and (p.layer_split or model.mtp_layers):
        count = p.pipeline_parallel * p.chunks_per_rank
        chunks = assign_layers(model.layers, count, p.layer_split or None, mtp=model.mtp_layers)
        layout = "E" + "|".join("t" * chunk.layers + "m" * chunk.mtp for chunk in chunks) + "L"
        yield "pipeline-model-parallel-layout", f'"{layout}"'
    elif p.chunks_per_rank > 1:
        yield "num-virtual-stages-per-pipeline-rank", p.chunks_per_rank
    if s.zero_stage:
        yield "use-distributed-optimizer", True
    if s.zero_stage > 1:
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", _SHARDING[s.zero_stage]
    if s.overlap_gradients and s.zero_stage < 3:
        yield "overlap-grad-reduce", True
    if s.overlap_parameters:
        yield "overlap-param-gather", True
    if p.bucket_size:
        yield "ddp-bucket-size", int(p.bucket_size // s.gradient_bytes)
    if s.schedule.name == "combined_1f1b":
        yield "overlap-moe-expert-parallel-comm", True


def _kind(ours: str) -> str:
    """Megatron-LM's word for a kind of context parallelism."""
    if ours not in _CONTEXT:
        raise PlanError(
            f"Megatron-LM's --cp-comm-type is one of {', '.join(_CONTEXT.values())}, but context_parallel_kind = {ours!r}. Way out: "
            f"{', '.join(_CONTEXT)}."
        )
    return _CONTEXT[ours]


def _training(job: Job) -> Iterator[tuple[str, object]]:
    w, p = job.workload, job.plan
    s = resolve_on(w, p, job.cluster)
    yield "micro-batch-size", p.microbatch_size
    yield "global-batch-size", w.global_batch_size
    yield "train-iters", 100
    yield "optimizer", "sgd" if w.optimizer == "sgd" else "adam"
    yield "lr", "1e-4"
    if p.moment_dtype or p.splits_master_weights:
        yield "use-precision-aware-optimizer", True
        formats = p.moment_dtype or ("fp32",)
        yield "exp-avg-dtype", formats[0]
        yield "exp-avg-sq-dtype", formats[-1]
    if w.numbers.compute in ("bf16", "fp16"):
        yield w.numbers.compute, True
    if w.precision in _FP8:
        yield "fp8-format", "hybrid"
        yield "fp8-recipe", _FP8[w.precision]
    elif w.precision == "nvfp4":
        yield "fp4-format", "e2m1"
    if s.gradient_dtype == "bf16":
        yield "grad-reduce-in-bf16", True
    elif s.gradient_dtype == "fp32" and w.numbers.compute != "fp32":
        yield "accumulate-allreduce-grads-in-fp32", True
    if s.recompute in ("full", "selective"):
        yield "recompute-granularity", s.recompute
        if p.recompute_modules:
            yield "recompute-modules", " ".join(p.recompute_modules)
        if s.recompute == "full":
            has = s.recomputes.method in ("block", "uniform")
            yield "recompute-method", s.recomputes.method if has else "uniform"
            yield "recompute-num-layers", s.recomputes.layers if has else 1
            if p.partition_activations:
                yield "distribute-saved-activations", True
    dropout = 0.1 if s.style.dropout else 0.0
    yield "attention-dropout", dropout
    yield "hidden-dropout", dropout
    if p.attention in _BACKENDS:
        yield "attention-backend", _BACKENDS[p.attention]
    if p.gradient_accumulation_fusion is False:
        yield "no-gradient-accumulation-fusion", True
    if p.fused_cross_entropy:
        yield "cross-entropy-loss-fusion", True
    if p.optimizer_offload:
        yield "optimizer-cpu-offload", True
        yield "optimizer-offload-fraction", s.optimizer_offload
        if p.optimizer_offload_overlap:
            yield "overlap-cpu-optimizer-d2h-h2d", True
    if p.activation_offload:
        yield "cpu-offloading-num-layers", p.activation_offload
    if p.cuda_graphs not in (None, "none"):
        parts = (p.cuda_graphs,) if isinstance(p.cuda_graphs, str) else p.cuda_graphs
        yield "cuda-graph-scope", " ".join(parts)


def _without_flags(job: Job) -> Iterator[str]:
    """What the job says and Megatron's flags do not."""
    p, m = job.plan, job.workload.model
    defaults = type(p)()
    for name in type(p).model_fields:
        value = getattr(p, name)
        if name not in _SAID and value != getattr(defaults, name):
            yield f"plan.{name} = {value}"
    if p.schedule is not None:
        from simulator.schedules import SCHEDULES

        if SCHEDULES.get(p.schedule).name not in _SCHEDULES:
            yield f"plan.schedule = {p.schedule}: Megatron-LM runs 1F1B, plain or interleaved"
    if p.recompute in ("operators", "revolve") or p.recompute_method in ("every", "recursive"):
        yield f"plan.recompute = {p.recompute} {p.recompute_method or ''}".rstrip()
    if p.optimizer_offload == "nvme":
        yield "plan.optimizer_offload = nvme: Megatron-LM keeps states in host memory"
    if p.attention is not None and p.attention not in _BACKENDS:
        yield f"plan.attention = {p.attention}"
    if p.framework != "megatron_core":
        yield f"plan.framework = {p.framework}: habits that no flag sets"
    if job.workload.precision not in ("fp32", "bf16", "fp16", "nvfp4", *_FP8):
        yield f"workload.precision = {job.workload.precision}"
    if job.workload.optimizer not in ("adam", "sgd"):
        yield f"workload.optimizer = {job.workload.optimizer}"
    if not set(m.layer_mixers) <= {"full", "window"} and not _letters(m):
        yield f"model.mixers = {list(m.mixers)}"
    if m.rotary_scale != 1:
        yield f"model.rotary_scale = {m.rotary_scale}"
    if m.conv_width not in (0, _CONVOLVED):
        yield f"model.conv_width = {m.conv_width}"
    for name in ("post_norms", "clamped_gate", "attention_gate"):
        if getattr(m, name):
            yield f"model.{name}"
    if m.positions not in _POSITIONS:
        yield f"model.positions = {m.positions}"
