"""Framework profiles: facts of a training code's behaviour, read from hardware_specs/frameworks.

A profile says which kernels exist, when gradients are reduced, what the host costs.  It cannot scale a time: the only
numbers allowed are counts, byte sizes and host seconds (a test checks the types of all fields).  A profile may extend another:
a release its predecessor, a fork what it came from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.errors import SpecError
from simulator.plan.plan import Plan
from simulator.plan.values import (
    Attention,
    Deal,
    Exchange,
    ExpertLoop,
    Messages,
    RecomputeExtent,
    RecomputeKind,
    RowPicks,
)
from simulator.specs import ExtendingSpec, Listed, load_named, validate_spec
from simulator.units import Bytes, Seconds

__all__ = ["Framework", "load_framework"]

_Kinds = Annotated[tuple[dict[str, Annotated[tuple[bool | int | str, ...], Listed]], ...], Listed]


class Framework(ExtendingSpec):
    """How a training framework behaves.

    Kernels: attention, fused_*, autocast (only where gradients are fp32, as such weights' are), keeps_inner_results,
    complex_rotary, rotary_tables, norms_in_fp32, norm_sums_apart, measures_accuracy, splits_qkv, copies_qkv, packs_qkv,
    softmax_by_reductions, stacks_saved, embeds_by_product, dropout, joined_gate, joined_expert_gate, joined_qkv, keeps_values_in_place,
    plain_gate, plain_router, picks_masked, casts_apart as in `KernelStyle`.
    Recompute: recompute_extent (how much of a forward runs again: "layer", all of it; "until_kept", as far as the last operator that
    keeps something for its backward; "needed", what some backward reads, as a compiler drops the rest).
    Pipelines: deals_layers over chunks where a plan has no split ("evenly"; "ends_as_layers", embedding and head counted as a layer each
    and the rest to the first chunks; "by_weights", chunk after chunk until it has its part of the weights of all layers and the head).
    Communication: backend (the library: "nccl" and its ports, or "gloo", through host memory);
    gradient_dtype of the gradients that are kept; reduction_dtype of their copies on the wire ("gradient": as
    they are kept); reduces_whole (ZeRO-1 and 2 sum all gradients on all replicas, though each keeps its shard only);
    broadcasts_updates (ZeRO-1 deals out whole weight tensors; each owner broadcasts what it updated, one after the other);
    gradient_exchange, as in `Plan`; gradients_overlap and parameters_overlap (with compute);
    bucket_size, first_bucket (that of the gradients made first, where a plan says no bucket_size; 0 = as all), and
    bucket_growth (a bucket holds at least so many gradients for every rank that reduces it); cycle_time (a thread
    wakes so often, copies the gradients that are ready into one buffer of at most bucket_size, and reduces them; 0 = buckets are
    reduced as they fill); p2p "latency"
    (receives are posted ahead) or "blocking"; scatters_p2p (tensor-parallel ranks share the sending, and gather what they
    receive); partitions_activations (they keep no more than their parts of a chunk's output either, and gather it again before
    its backward); tensor_parallel_overlap (input-gradient collective beside the weight-gradient GEMM);
    fuses_pairs (forward and backward of two microbatches interleaved, so that the communication of one hides under the compute of
    the other; else one after the other).
    Attention: repeats_keys (keys and values are repeated for every query head before the kernel, so that kernel and exchange see
    all of them); ring_in_fp32 (a ring of context parallelism joins partial results by plain fp32 operations);
    ring_traced (the ring is part of a compiled graph: fp32 results are joined by one kernel, and every exchange is waited for
    where it starts).
    Experts: expert_exchange and expert_loop, as in `Plan`; masks_by_sequence (where experts drop rows, the exchange is "einsum",
    and a group of tokens one sequence); exchange_sorts (once_per_node it also sorts rows by expert and back, by kernels on its own
    stream); pads_expert_rows (else, and where products are in 8 bits, rows are copied once more to pad each expert's, and back);
    copies_rows_apart (tokens are repeated for their experts and then sorted, results put in order and then summed, by a pass each);
    fuses_permute (one kernel copies tokens' rows for their experts, and one sums them; else plain operations do);
    picks_rows (how these pick rows: by "mask", places that a routing map leaves, or "gather" them by given places, whose sums are atomic
    additions; or by "index", advanced indexing, whose sums sort the places and add up runs);
    grouped_kernel (products of all experts are one kernel; else the host hands each to the library by itself);
    fuses_experts (in mxfp8 the grouped products apply the activation function and write narrow results themselves).
    CUDA graphs: cuda_graphs, as in `Plan`, wherever a plan allows it.
    Loss: loss_metrics (training metrics that evaluate it again of every microbatch's logits, each by plain torch).
    End of a step: divides_gradients (replicas divide their buffer of gradients by their number, or by that of tokens, before they
    add it up; else the sum does it); checks_gradients (without loss scaling the norm of each buffer is taken before that, for NaNs, and
    the host waits for it); clips_gradients by their global norm; post_validates (with a split backward ranks update
    without waiting for it, and check it afterwards).
    FSDP: shards_in_master_precision (the fp32 shard is the only copy of the weights); fsdp_prefetch; gathers_by_tensor (every
    weight tensor is gathered and reduced by collectives of its own, and under full recompute gathered once more, for hooks of
    every module fetch and drop its weights; else a layer at a time); reuse_distance (what is used again before modules of so
    many weights have run is not dropped); gather_bucket (tensors are gathered and reduced together up to this many gathered
    bytes, a larger one alone; 0 = all of a unit); copies_bucket (under hybrid sharding the all_reduces between copies are put
    together up to this size; 0 = one for every unit); carries_gathered (a loop over layers hands gathered weights and gradients
    on to its next turn, by a copy of each); casts_gathered (narrow copies of gathered weights are made after every gather, not
    once per step); keeps_tensors_below (tensors of fewer weights are not dropped at all, and gathered after the update);
    slice_time (gathers and reductions go through a list of tensors, one per rank: what the host takes to make each of them and
    to start its copy from or to the flat message; 0 = no list); fetch_time (hooks in Python fetch and release the weights of every
    module: what the host takes for a linear layer, forward, made again and backward); fetch_slice_time (of experts in a loop, whose
    weights are gathered several together: what it takes beside to make a view of each rank's part of each); reshards_after_forward (if
    not, weights are gathered once per step and kept); accumulates_unsharded (gradients of all but the last microbatch of a step are not
    reduced but added up whole on every rank, as in no_sync).
    gathers_logits: every tensor-parallel rank gathers all logits and computes the whole loss (else each its part of it);
    widens_logits (a plain loss works on an fp32 copy of them, else on what the head makes); torch_loss (an unfused
    loss is torch's log_softmax and nll_loss, a kernel each, or DTensor's loss_parallel; else Megatron-LM's operations).
    Memory habits: gathers_rotary (every layer gathers its tokens' cosines and sines from a table, and keeps them);
    copies_attention_output (attention kernels of batch-first tensors in a sequence-first layer: the output
    projection keeps its own copy of their output); keeps_gathered_inputs (what sequence parallelism gathers for a product is
    kept for its backward, not gathered again); gathers_by_product (products that read the same each gather it for themselves, and
    scatter its gradient by themselves); sums_by_product (where its gradient is summed whole, each product's is summed by itself, as by
    Megatron-LM's modules; else every rank adds them up and the sum is sent once);
    divides_checkpoints (of a recomputed layer's input each tensor-parallel rank keeps its part, and gathers it before the backward);
    keeps_idle_products (per-operator recompute also keeps a layer's last product,
    which nothing reads); copies_sequence_parts (sequences are the second dimension of what tensor-parallel ranks share, so that
    each rank's part of several lies apart: scattered or gathered, they are copied); pads_sequences (where tensor-parallel ranks do not
    divide a sequence the first ones have one token more, and parts are padded to these to be gathered or scattered; such sequences are
    refused otherwise, as by the checks of Megatron-LM and torchtitan); flat_units (FSDP's first version: the gradients
    of a unit are joined into a flat one, which is divided in place before its reduction and behind it); copies_gathered (FSDP
    gathers and reduces through buffers of streams of their own, whose memory the
    allocator keeps apart; the compute stream copies weights out of them and gradients into them); keeps_outputs (a pipeline rank
    keeps the output of every microbatch in flight until its backward); receives_ahead (receive buffers of all microbatches of a step
    stand through it); returns_outputs (so do the outputs of the last chunk, for whoever runs the schedule); fsdp_root_unit (embedding,
    final norm and head are one FSDP unit, gathered from the first forward to the last backward); pipeline_keeps_unsharded (under
    pipeline parallelism FSDP gathers once per step and reduces once, so that whole weights and gradients stand in between);
    split_keeps_graph (a split backward is two walks through one graph of autograd: what the forward kept, but for the loss, the gradients
    of what operators with weights made and that of a chunk's input stand until the second has been there, which holds nothing else; the
    first chunk, whose input has no gradient, runs all of it in the second);
    keeps_compute_gradients (gradients in the compute dtype stand beside wider gradient buffers until the end of a microbatch's
    backward, and are cast and added to them in two passes);
    flattens_gradients (the optimizer step copies its gradients into flat tensors, and reduces through a flat buffer of
    bucket_size); sub_group_size (weights of a rank whose gradients it copies at once under ZeRO-3; 0 = all);
    makes_gradients (gradients are tensors that the first backward makes and that stay, not parts of a buffer
    made before); weights_in_experts (the router's weights scale the experts' inner activation, so their outputs need not be
    kept); weighs_rows_in_fp32 (else they scale the outputs in fp32, by plain operations, and the wide copy is kept);
    updates_in_lists (the optimizer runs one operation after the other over the list of all tensors, as torch's "foreach"
    form does: each reads and writes whole lists, and a result as large as all weights stands during the update);
    keeps_buckets (gradients stand beside the buckets in which replicas add them, as under DistributedDataParallel);
    holds_buckets (under ZeRO-2 and 3 gradients are copied into buckets that are made whole, however small the model: one of
    bucket_size, under stage 2 a second where reductions overlap);
    saves_gathered (under ZeRO-3 products keep the gathered weights that they read until their backward, as torch's own linear
    layer does and DeepSpeed's memory-efficient one does not);
    drops_gradients (an update frees the gradients, and the first backward of the next step makes them anew while
    activations go, so that a step of one microbatch holds one or the other); states_break_places (the first update makes
    the moments in places that the first step's activations left, so that the next step's find them broken up and take
    others); splits_master_weights (bf16 weights are the upper halves of the fp32 ones, of which only the lower are kept beside
    them); widens_fused_loss (a fused cross entropy still works on fp32 copies: exponentials stand beside the widened
    logits, as in Megatron-Core's compiled one).
    Host: launch_time per kernel launch; operator_time per operator that Python starts, and module_time per linear layer or
    attention of the library, launches not counted (costs/host_time.py); weight_gradient_time, what the library's own code
    for the gradient of a linear layer's weight takes beside them; split_module_time, both of layers that tensor
    parallelism splits where weights are DTensors, which Python dispatches (0 = as of others); launch_wait (the host waits
    for every kernel before it launches the next one, as under CUDA_LAUNCH_BLOCKING, and the GPU for so long for each; 0 =
    launches queue ahead of the GPU); message_wait (after a blocking message the host synchronises with the GPU, which is
    idle until the next action's first kernel); layer_wait (the same at the end of every recomputed layer, forward and
    backward); step_time per optimizer step spent with the GPU idle.
    Updates on the CPU: fused_host_optimizer (one pass over all arrays, as DeepSpeed's CPU Adam; else a loop per operation);
    unbound_host_threads (the launcher leaves every rank's threads all cores, where they get in each other's way);
    offloads_master_weights (the fp32 weights go with the states; else the GPU keeps its own and gets them back in fp32).
    Memory outside tensors: allocator (PyTorch's, of "segments" or with "expandable" ones; "none", where places are laid out beforehand),
    context (driver context and loaded kernels), workspace (GEMM libraries),
    grouped_workspace (the same for the grouped products of experts, one per stream they run on), communicator (buffers
    of one communicator).
    What it can do: supports, kinds of plans, each a table of a plan's fields and the values that they may have ([] = only left
    out); a field that is not in it may have any, and a plan needs to be of one kind only.  () = nobody looked it up.  It refuses
    nothing: a search leaves out of the space that it makes up itself what the code cannot do, and a prediction says so.
    """

    attention: Attention
    fused_softmax: bool
    fused_bias_activation: bool
    fused_residual: bool
    fused_rotary: bool
    scales_rotary: bool = True
    complex_rotary: bool = False
    rotary_tables: int = Field(default=0, ge=0, le=16)
    fused_norm: bool
    autocast: bool = False
    keeps_inner_results: bool = False
    norms_in_fp32: bool = False
    measures_accuracy: bool = False
    splits_qkv: bool = False
    copies_qkv: bool = False
    keeps_values_in_place: bool = False
    packs_qkv: bool = False
    softmax_by_reductions: bool = False
    stacks_saved: bool = False
    embeds_by_product: bool = False
    recompute_extent: RecomputeExtent = "layer"
    fused_cross_entropy: bool
    in_place_cross_entropy: bool
    widens_logits: bool = True
    torch_loss: bool = False
    fused_wgrad_accumulation: bool
    fused_optimizer: bool
    dropout: bool
    repeats_keys: bool = False
    ring_in_fp32: bool = False
    ring_traced: bool = False
    casts_apart: bool = False
    expert_exchange: Exchange = "all_to_all"
    expert_loop: ExpertLoop = "none"
    grouped_kernel: bool = False
    masks_by_sequence: bool = False
    exchange_sorts: bool = False
    pads_expert_rows: bool = False
    fuses_experts: bool = False
    copies_rows_apart: bool = False
    fuses_permute: bool = True
    picks_rows: RowPicks = "mask"
    gradient_dtype: Literal["fp32", "bf16", "fp16", "compute"]
    gradient_exchange: str = "all_reduce"
    gradients_overlap: bool
    parameters_overlap: bool
    bucket_size: Bytes
    first_bucket: Bytes = 0.0
    bucket_growth: int = Field(default=0, ge=0)
    cycle_time: Seconds = 0.0
    p2p: Messages
    deals_layers: Deal = "evenly"
    backend: Literal["nccl", "gloo"] = "nccl"
    scatters_p2p: bool
    partitions_activations: bool = False
    tensor_parallel_overlap: bool
    fuses_pairs: bool
    shards_in_master_precision: bool
    fsdp_prefetch: int = Field(ge=0, le=16)
    reshards_after_forward: bool
    accumulates_unsharded: bool = False
    clips_gradients: bool
    post_validates: bool = False
    vocabulary_multiple: int = Field(ge=1, le=4096)
    recompute: RecomputeKind
    gathers_logits: bool
    gathers_rotary: bool
    copies_attention_output: bool
    keeps_gathered_inputs: bool
    gathers_by_product: bool = False
    sums_by_product: bool = True
    divides_checkpoints: bool = False
    keeps_idle_products: bool
    copies_sequence_parts: bool = False
    pads_sequences: bool = False
    flat_units: bool = False
    copies_gathered: bool
    keeps_outputs: bool
    receives_ahead: bool
    returns_outputs: bool
    fsdp_root_unit: bool
    pipeline_keeps_unsharded: bool
    split_keeps_graph: bool = False
    keeps_compute_gradients: bool
    flattens_gradients: bool
    sub_group_size: int = 0
    makes_gradients: bool
    weights_in_experts: bool
    weighs_rows_in_fp32: bool = False
    updates_in_lists: bool = False
    keeps_buckets: bool = False
    holds_buckets: bool = False
    saves_gathered: bool = False
    drops_gradients: bool = False
    states_break_places: bool = False
    splits_master_weights: bool = False
    widens_fused_loss: bool = False
    cuda_graphs: Literal["none", "full_iteration"] = "none"
    launch_time: Seconds
    operator_time: Seconds
    module_time: Seconds
    weight_gradient_time: Seconds = 0.0
    split_module_time: Seconds = 0.0
    launch_wait: Seconds = 0.0
    message_wait: Seconds = 0.0
    layer_wait: Seconds = 0.0
    step_time: Seconds
    fused_host_optimizer: bool = False
    unbound_host_threads: bool = False
    offloads_master_weights: bool = False
    allocator: Literal["segments", "expandable", "none"] = "segments"
    context: Bytes
    workspace: Bytes
    grouped_workspace: Bytes
    communicator: Bytes
    joined_gate: bool = True
    joined_expert_gate: bool = True
    joined_qkv: bool = True
    norm_sums_apart: bool = False
    plain_gate: bool = False
    picks_masked: bool = False
    plain_router: bool = False
    reduction_dtype: Literal["fp32", "bf16", "fp16", "gradient"] = "gradient"
    reduces_whole: bool = False
    checks_gradients: bool = False
    broadcasts_updates: bool = False
    divides_gradients: bool = False
    gathers_by_tensor: bool = False
    loss_metrics: int = Field(default=0, ge=0, le=16)
    reuse_distance: int = Field(default=0, ge=0)
    keeps_tensors_below: int = Field(default=0, ge=0)
    gather_bucket: Bytes = 0.0
    copies_bucket: Bytes = 0.0
    carries_gathered: bool = False
    casts_gathered: bool = False
    slice_time: Seconds = 0.0
    fetch_time: Seconds = 0.0
    fetch_slice_time: Seconds = 0.0
    supports: _Kinds = ()

    @model_validator(mode="after")
    def _check(self) -> Framework:
        if self.gather_bucket and self.gathers_by_tensor:
            raise ValueError("gather_bucket puts tensors together, but gathers_by_tensor = true; leave one of them out")
        if self.fuses_experts and not self.joined_expert_gate:
            raise ValueError(
                "fuses_experts applies the activation function to the one product of gate and up projection, but "
                "joined_expert_gate = false; leave one of them out"
            )
        if self.weights_in_experts and self.weighs_rows_in_fp32:
            raise ValueError(
                "the router's weights scale either the experts' inner activation (weights_in_experts) or their outputs "
                "(weighs_rows_in_fp32), but both are true; leave one of them out"
            )
        for name in ("reuse_distance", "keeps_tensors_below"):
            if getattr(self, name) and not self.gathers_by_tensor:
                raise ValueError(
                    f"{name} is about weight tensors that are gathered one by one, but {name} = {getattr(self, name)} and "
                    "gathers_by_tensor = false; leave it out"
                )
        for kind in self.supports:
            for field, values in kind.items():
                if field not in Plan.model_fields:
                    raise ValueError(f"supports: {field[:40]!r} is no field of a plan")
                for value in values:
                    try:
                        validate_spec({field: value}, Plan, f"supports {field}")
                    except SpecError as error:
                        raise ValueError(str(error)) from None
        return self

    def lacks(self, plan: Plan, schedule: str | None = None) -> dict[str, object]:
        """Return the choices of a plan that keep it from being one that the code runs; {} = it runs it, or nobody looked it up.

        Args:
            schedule: by its own name; None where there is none, or it is the user's own.
        """
        found: dict[str, object] = {}
        for kind in self.supports:
            chosen = {field: schedule if field == "schedule" else getattr(plan, field) for field in kind}
            beyond = {field: value for field, value in chosen.items() if value is not None and value not in kind[field]}
            if not beyond:
                return {}
            found |= beyond
        return found

    def can(self, field: str, value: object) -> bool:
        """Return whether the code runs any plan in which a field has this value."""
        allowed = [kind.get(field) for kind in self.supports]
        return not allowed or value is None or any(values is None or value in values for values in allowed)


def load_framework(name: str) -> Framework:
    """Return the framework profile with this name, from hardware_specs/frameworks."""
    return load_named("frameworks", name, Framework)
