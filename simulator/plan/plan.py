"""A parallel plan: how the work is split over the GPUs, and how they talk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from simulator.specs import Listed, Name, Spec
from simulator.units import Bytes

__all__ = ["AXES", "GRAPH_PARTS", "WHOLE_STEP", "Plan"]

AXES = ("tp", "cp", "dp", "pp")
"""Mesh axes, innermost (consecutive ranks) first: the order Megatron-LM uses."""

Degree = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Layers = Annotated[int, Field(strict=True, ge=0, le=100_000)]


GRAPH_PARTS = ("attn", "mlp", "moe", "moe_router", "moe_preprocess")
"""Parts of layers that CUDA graphs may start, as Megatron-Core's --cuda-graph-scope names them."""
WHOLE_STEP = "full_iteration"
"""One graph of the whole step's forward and backward."""
_WHOLE_GRAPHS = ("none", WHOLE_STEP)


def _graphs(value: Any) -> Any:
    """What CUDA graphs start: none, full_iteration, or parts of layers as a tuple; one part may stand alone."""
    if value is None or value in _WHOLE_GRAPHS:
        return value
    parts = (value,) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(part in GRAPH_PARTS for part in parts):
        raise ValueError(
            f"expected {' or '.join(_WHOLE_GRAPHS)}, or a list of parts of layers such as ['attn']: {', '.join(GRAPH_PARTS)}"
        )
    return tuple(parts)


class Plan(Spec):
    """How a workload is split.  A field left at None takes the framework's habit; a field that could have no effect in
    the plan at hand is refused when it is set (`feasibility.check_plan`).

    Args:
        tensor_parallel, context_parallel, pipeline_parallel: degrees.
        context_parallel_kind: how attention sees the other ranks' tokens: "ring" (keys and values go round beside the
            attention), "all_gather" (gathered first), "ulysses" (heads against tokens by all_to_all) or "hybrid" (ulysses inside
            groups of context_parallel_inner consecutive ranks, a ring between them).
        context_parallel_inner: ranks of such a group.
        data_parallel: replicas; None = what is left of the world size.
        expert_parallel: ranks, consecutive inside data_parallel x context_parallel (and tensor_parallel, where experts are not
            split by it), over which the experts of a layer are dealt out.
        expert_tensor_parallel: ranks that split each expert: tensor_parallel (None) or 1.
        expert_exchange: how tokens reach their experts: "all_to_all" (a row per expert) or "once_per_node" (a row per
            node that has some of them, handed on inside it, as DeepEP and HybridEP do).
        expert_imbalance: rows of the rank with the most popular experts over the mean of all.
        sequence_parallel: norms and residuals split along the sequence inside the tensor-parallel group.
        tensor_parallel_splits: pieces in which products are cut so that their tensor-parallel collectives run beside them, with
            sequence parallelism (Megatron's --tp-comm-overlap); None = products and their collectives one after the other.
        chunks_per_rank: model chunks per pipeline rank (interleaved schedules).
        microbatch_size: sequences per microbatch and replica.
        schedule: name of a pipeline schedule.
        zero_stage: 0 nothing sharded, 1 optimizer states, 2 and gradients, 3 and weights (FSDP).
        shard_size: ranks that hold one copy of the sharded states (hybrid sharding); None = all that hold the same weights.
        secondary_shard_size: ranks that hold a second copy of the weights for the backward pass of ZeRO-3 (ZeRO++ hpZ).
        recompute: none, selective (attention core), operators (memory-bound kernels and every second matrix product, as
            torchtitan's selective mode does) or full (every layer from its input).
        recompute_modules: what selective recompute makes again, in place of the attention core.
        recompute_policy: name of a policy (hardware_specs/recompute_policies): the values that it names and the layer's input are
            kept, what the backward pass needs beside them is made again; in place of recompute.
        recompute_method: which layers of a chunk recompute: its first recompute_layers ("block"), "every" n-th one, or all, so many
            at a time from one input ("uniform"); None = all, each from its own.
        recompute_layers: how many, as the method says.
        attention: attention kernel, in place of the framework's.
        fused_cross_entropy: whether the loss is computed without an fp32 copy of all logits; None = the framework's habit.
        loss_chunks: parts of a microbatch's tokens that pass head and loss one after the other, forward and backward at once, so that
            the logits of one part stand at a time (Liger's fused linear cross entropy, torchtitan's chunked loss); None = 1.
        vocabulary_parallel_loss: whether each tensor-parallel rank computes its part of the loss, or gathers all logits.
        overlap_gradients: reduce gradients beside the backward pass; "bubbles": copies of a chunk on several pipeline ranks only
            where those ranks idle afterwards (the optimised eager synchronisation of Chimera).
        overlap_parameters: gather ZeRO-1/2 weights beside the next forward pass.
        overlap_tensor_parallel: run the tensor-parallel collective of an input gradient beside the weight-gradient GEMM.
        bucket_size: gradient bytes reduced at once.
        gradient_dtype: of the gradient buffers.
        gradient_reduce_dtype: in which gradients are added between ranks; None = that of the buffers.
        p2p: latency (a message only delays its receiver) or blocking (it also holds the sender).
        layer_split: layers per chunk, in order of the global chunk number.
        fsdp_unit: layers gathered together under ZeRO-3, or "chunk" for all of a chunk; None = 1.
        fsdp_gather: weights are gathered for every microbatch (None) or once per "visit": a run of microbatches through one chunk.
        fsdp_reduce: gradients are added after every "microbatch", every "visit", or once per "step"; None = as weights are gathered.
        fsdp_prefetch: units gathered ahead of the one that computes.
        reshard_after_forward: whether gathered weights are dropped between forward and backward.
        quantized_weights: ZeRO-3 gathers weights as 8-bit integers (ZeRO++ qwZ).
        quantized_gradients: ZeRO-3 adds gradients as 4-bit integers, inside groups of secondary_shard_size, then between them
            (ZeRO++ qgZ).
        optimizer_offload: part of the optimizer states (0 to 1) that lives in host memory and is updated by the CPU.
        optimizer_offload_overlap: copies and CPU updates go layer by layer, each beside the others'; else one after the other.
        activation_offload: layers of each chunk, from its first, whose activations go to host memory between forward and backward.
        parameter_offload: part of the weights that ZeRO-3 gathers (0 to 1) whose shards live in host memory and are copied to the GPU
            before every gather.
        clip_gradients: global gradient norm before the update.
        post_validation: ranks update and begin the next step without waiting for the global gradient norm, which is checked
            afterwards (Zero Bubble).
        dropout: whether the model is trained with dropout.
        cuda_graphs: what is started by CUDA graphs: "none", "full_iteration", or parts of layers: attn, mlp, moe_router,
            moe_preprocess, moe; None = the framework's habit, where the plan allows it.
        rank_order: mesh axes from consecutive ranks outward.
        framework: name of the framework profile.
    """

    tensor_parallel: Degree = 1
    context_parallel: Degree = 1
    context_parallel_kind: Literal["ring", "all_gather", "ulysses", "hybrid"] | None = None
    context_parallel_inner: Degree | None = None
    pipeline_parallel: Degree = 1
    data_parallel: Degree | None = None
    expert_parallel: Degree = 1
    expert_tensor_parallel: Degree | None = None
    expert_exchange: Literal["all_to_all", "once_per_node"] | None = None
    expert_imbalance: Annotated[float, Field(ge=1, le=1000)] = 1.0
    sequence_parallel: bool = False
    tensor_parallel_splits: Degree | None = None
    chunks_per_rank: Degree = 1
    microbatch_size: Degree = 1
    schedule: str | None = None
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] = 0
    shard_size: Degree | None = None
    secondary_shard_size: Degree | None = None
    recompute: Literal["none", "selective", "operators", "full"] | None = None
    recompute_modules: Annotated[
        tuple[Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"], ...] | None,
        Listed,
    ] = None
    recompute_policy: Name | None = None
    recompute_method: Literal["block", "every", "uniform"] | None = None
    recompute_layers: Degree | None = None
    attention: Literal["unfused", "flash1", "flash2", "flash3", "te", "te_2024", "sdpa"] | None = None
    fused_cross_entropy: bool | None = None
    loss_chunks: Degree | None = None
    vocabulary_parallel_loss: bool | None = None
    overlap_gradients: bool | Literal["bubbles"] | None = None
    overlap_parameters: bool | None = None
    overlap_tensor_parallel: bool | None = None
    bucket_size: Bytes | None = None
    gradient_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    gradient_reduce_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    p2p: Literal["latency", "blocking"] | None = None
    layer_split: Annotated[tuple[Layers, ...] | None, Listed] = None
    fsdp_unit: Literal["chunk"] | Degree | None = None
    fsdp_gather: Literal["microbatch", "visit"] | None = None
    fsdp_reduce: Literal["microbatch", "visit", "step"] | None = None
    fsdp_prefetch: Annotated[int, Field(strict=True, ge=0, le=16)] | None = None
    reshard_after_forward: bool | None = None
    quantized_weights: bool = False
    quantized_gradients: bool = False
    optimizer_offload: Annotated[float, Field(ge=0, le=1)] = 0.0
    optimizer_offload_overlap: bool = False
    activation_offload: Layers | None = None
    parameter_offload: Annotated[float, Field(ge=0, le=1)] = 0.0
    clip_gradients: bool | None = None
    post_validation: bool | None = None
    dropout: bool | None = None
    cuda_graphs: Annotated[str | tuple[str, ...] | None, BeforeValidator(_graphs)] = None
    rank_order: Annotated[tuple[Literal["tp", "cp", "dp", "pp"], ...] | None, Listed] = None
    framework: str = "megatron_core"

    @property
    def model_parallel_size(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel
