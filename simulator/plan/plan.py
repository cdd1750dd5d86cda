"""A parallel plan: how the work is split over the GPUs, and how they talk.

Every choice is declared once, here: type, bounds and default, what it says, its group, whose default it takes where it is left open
(`FrameworkDefault`), and what it needs to matter (`Need`).  `simulator.options` reads these declarations.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from simulator.options.option import FrameworkDefault, Group, check_needs, given, more_than, one_of
from simulator.plan.needs import (
    ACROSS_EXPERTS,
    ADDED,
    AHEAD,
    BESIDE_MASTER,
    BY_GATHER,
    BY_MASKS,
    COPIES,
    DEALT,
    EACH_MICROBATCH,
    ENDS_APART,
    EXPERT_CHOICE,
    GATHERED_AFTER,
    GATHERS,
    IN_BACKWARD,
    IN_TURNS,
    MESSAGES,
    OF_MASTER,
    ON_DRIVES,
    ON_GPU,
    PARTITIONED,
    REGISTERS,
    SHARDED,
    SHARED_EXPERTS,
    UNITS,
)
from simulator.plan.stages import Stage
from simulator.plan.values import (
    Attention,
    Degree,
    Exchange,
    ExpertLoop,
    Layers,
    LayerSplits,
    MeshShape,
    Messages,
    Module,
    MomentFormat,
    Offload,
    RecomputeKind,
    graphs,
    one_or_several,
)
from simulator.specs import Listed, MadeSpec, Name
from simulator.units import BYTES_PER_ELEMENT, Bytes

__all__ = ["Plan"]

DEGREES, TENSOR, CONTEXT = Group("degrees"), Group("tensor parallelism"), Group("context parallelism")
EXPERTS, PIPELINE, STATES = Group("experts"), Group("pipeline"), Group("what is sharded")
FSDP, GRADIENTS, RECOMPUTE = Group("FSDP (ZeRO-3)"), Group("gradients and weights"), Group("recompute")
HOST, KERNELS = Group("host memory"), Group("kernels")


class Plan(MadeSpec):
    """How a workload is split.  A field left at None takes the framework's default; a field that could have no effect in
    the plan at hand is refused when it is set (`needs` of its declaration, and the rules of `simulator.lowering.resolve.resolved_plan`).
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    tensor_parallel: Annotated[Degree, DEGREES] = 1
    """Ranks that split every layer's matrix products."""
    context_parallel: Annotated[Degree, DEGREES] = 1
    """Ranks that share the tokens of a sequence."""
    context_parallel_kind: Annotated[
        Literal["ring", "all_gather", "ulysses", "hybrid", "ring_self_attention"] | None,
        CONTEXT,
        more_than(
            "context_parallel",
            1,
            "context_parallel_kind = {value!r} matters only between ranks that share a sequence",
            way="leave it out, or context_parallel > 1",
        ),
    ] = None
    """How attention sees the other ranks' tokens: "ring" (keys and values go round beside the attention),
    "all_gather" (gathered first), "ulysses" (heads against tokens by all_to_all), "hybrid" (ulysses inside groups
    of context_parallel_inner consecutive ranks, a ring between them) or "ring_self_attention" (keys go round until all
    scores stand in memory, then values do; Li et al., arXiv 2105.13120); left out: ring."""
    context_parallel_inner: Annotated[Degree | None, CONTEXT] = None
    """Ranks of a group of context_parallel_kind "hybrid"."""
    pipeline_parallel: Annotated[Degree, DEGREES] = 1
    """Pipeline ranks, each with a part of the layers."""
    data_parallel: Annotated[Degree | None, DEGREES] = None
    """Replicas; left out: what remains of the world size."""
    expert_parallel: Annotated[Degree, DEGREES, EXPERT_CHOICE] = 1
    """Ranks, consecutive inside data_parallel x context_parallel (and tensor_parallel, where experts are not split by
    it), over which the experts of a layer are dealt out."""
    expert_tensor_parallel: Annotated[Degree | None, DEGREES, EXPERT_CHOICE] = None
    """Ranks that split each expert: 1, or tensor_parallel (left out)."""
    expert_exchange: Annotated[
        Exchange | None, EXPERTS, FrameworkDefault("expert_exchange"), EXPERT_CHOICE, BY_GATHER
    ] = None
    """How tokens reach their experts: "all_to_all" (a row per expert), "once_per_node" (a row per node that has
    some of them, handed on inside it, as DeepEP and HybridEP do) or "einsum" (rows are made and summed up by products with
    one-hot masks around an all_to_all, as in GShard and Mesh-TensorFlow; the model has a capacity_factor)."""
    expert_group_size: Annotated[Degree | None, EXPERTS, EXPERT_CHOICE, BY_MASKS] = None
    """Tokens of a group, at most, of a rank's microbatch, which is cut into equal ones; left out: a sequence, in codes whose
    masks span one (MaxText), else 1,024, as in Mesh-TensorFlow."""
    expert_loop: Annotated[ExpertLoop | None, EXPERTS, FrameworkDefault("expert_loop"), EXPERT_CHOICE] = None
    """Whether the host starts one expert after the other and waits for each one's rows: "modules" (each has weight tensors of its own),
    "slices" (of tensors of all experts, whose whole gradients are added up expert by expert) or "none" (grouped products)."""
    expert_permute_fusion: Annotated[bool | None, EXPERTS, FrameworkDefault("fuses_permute"), EXPERT_CHOICE] = None
    """Whether one kernel copies tokens' rows for their experts, and one sums them (Megatron-LM: --moe-permute-fusion); else plain
    operations do, whose sums are atomic additions."""
    expert_imbalance: Annotated[float, Field(ge=1, le=1000), EXPERTS, EXPERT_CHOICE, SHARED_EXPERTS] = 1.0
    """Rows of the rank with the most popular experts over the mean of all."""
    sequence_parallel: Annotated[
        bool,
        TENSOR,
        more_than(
            "tensor_parallel",
            1,
            "sequence_parallel splits norms over the tensor-parallel group",
            way="sequence_parallel = false, or tensor_parallel > 1",
        ),
    ] = False
    """Norms and residuals are split along the sequence inside the tensor-parallel group."""
    layout: Annotated[
        str,
        TENSOR,
        more_than("tensor_parallel", 1, "layout = {value!r} lays the tensors of a layer on the tensor-parallel ranks"),
    ] = "megatron"
    """Which dimensions lie on the tensor-parallel ranks: megatron (heads, inner widths and the vocabulary), whole_vocabulary
    (embedding and output whole on every rank), summa_2d, tesseract or cubic_3d (sequences and widths on tensor_mesh) or
    another file of `simulator/partition/strategies`."""
    tensor_mesh: Annotated[
        MeshShape, TENSOR, more_than("tensor_parallel", 1, "tensor_mesh = {value!r} shapes the tensor-parallel ranks")
    ] = None
    """Rows, columns and depth of these ranks, as the layout needs them ([4, 4]); left out: the only shape, or tesseract's deepest."""
    tensor_parallel_splits: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=1024)] | None,
        TENSOR,
        given(
            "sequence_parallel",
            "tensor_parallel_splits lets products run beside the gathers and scatters of sequence parallelism",
            values="tensor_parallel_splits = {value} and sequence_parallel = false",
            way="sequence_parallel = true, or leave it out",
        ),
    ] = None
    """Pieces in which products are cut so that their tensor-parallel collectives run beside them (Megatron's
    --tp-comm-overlap); left out: products and their collectives one after the other."""
    chunks_per_rank: Annotated[Degree, PIPELINE] = 1
    """Model chunks per pipeline rank (interleaved schedules)."""
    microbatch_size: Annotated[Degree, PIPELINE] = 1
    """Sequences per microbatch and replica."""
    schedule: Annotated[
        str | None,
        PIPELINE,
        *AHEAD,
    ] = None
    """Name of a pipeline schedule; left out: one_f_one_b, or interleaved_1f1b where a rank has several chunks."""
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3), STATES] = 0
    """0 nothing sharded, 1 optimizer states, 2 and gradients, 3 and weights (FSDP)."""
    shard_size: Annotated[Degree | None, STATES, SHARDED] = None
    """Ranks that hold one copy of the sharded states (hybrid sharding); left out: all that hold the same weights."""
    shard_across_experts: Annotated[bool, STATES, *ACROSS_EXPERTS] = False
    """Weights that are no experts are sharded over ranks of different groups of expert_parallel, each group with a copy of its own (a
    mesh of dp x ep, FSDP over dp); else over the ranks of a group first."""
    secondary_shard_size: Annotated[Degree | None, STATES] = None
    """Ranks that hold a second copy of the weights for the backward pass of ZeRO-3 (ZeRO++ hpZ)."""
    recompute: Annotated[RecomputeKind | None, RECOMPUTE, FrameworkDefault("recompute")] = None
    """none, selective (attention core), operators (memory-bound kernels, every second matrix product and
    grouped products of experts, as torchtitan's selective mode does), full (every layer from its input) or revolve (from
    recompute_checkpoints inputs, in the order of fewest forwards; Griewank and Walther, Algorithm 799)."""
    recompute_modules: Annotated[tuple[Module, ...] | None, Listed, RECOMPUTE] = None
    """What selective recompute makes again, in place of the attention core."""
    recompute_policy: Annotated[Name | None, RECOMPUTE] = None
    """Name of a policy (hardware_specs/recompute_policies): the values that it names and the layer's input are kept,
    what the backward pass needs beside them is made again; in place of recompute."""
    recompute_method: Annotated[Literal["block", "every", "uniform", "recursive"] | None, RECOMPUTE] = None
    """Which layers of a chunk recompute: its first recompute_layers ("block"), "every" n-th one, all, so many at a time from
    one input ("uniform"), or all, from the input of the middle, and halves of that alike ("recursive"); left out: all, each
    from its own."""
    recompute_layers: Annotated[Degree | Literal["auto"] | None, RECOMPUTE] = None
    """How many layers, as recompute_method says; "auto": so many at a time ("uniform") as need least memory."""
    recompute_checkpoints: Annotated[Degree | None, RECOMPUTE, IN_TURNS] = None
    """Inputs of a chunk's layers that revolve keeps at once, at most, of every microbatch."""
    partition_activations: Annotated[bool | None, RECOMPUTE, FrameworkDefault("divides_checkpoints"), *PARTITIONED] = (
        None
    )
    """Whether each tensor-parallel rank keeps a part of a layer's input, which an all_gather puts together before the layer
    runs again (Pa of ZeRO-R, arXiv 1910.02054, section 6.1)."""
    attention: Annotated[Attention | None, KERNELS, FrameworkDefault("attention")] = None
    """Attention kernel; "sdpa" is PyTorch's from 2.11 on, which takes cuDNN's on Hopper and Blackwell, "sdpa_2025" that of releases
    before; "te" is Transformer Engine's, which takes it too; "flash3" is Hopper's alone (its package takes the instructions of "flash2" on
    Ampere and Ada: Dao-AILab/flash-attention issue 1049); "unfused" has all scores in memory, "chunked" those of 1,024 queries and
    sqrt(n) keys at a time (arXiv 2112.05682)."""
    fused_cross_entropy: Annotated[bool | None, KERNELS, FrameworkDefault("fused_cross_entropy")] = None
    """Whether the loss is computed without an fp32 copy of all logits."""
    loss_chunks: Annotated[Degree | None, KERNELS] = None
    """Parts of a microbatch's tokens that pass head and loss one after the other, forward and backward at once, so
    that the logits of one part stand at a time (Liger's fused linear cross entropy, torchtitan's chunked loss); left
    out: 1."""
    vocabulary_parallel_loss: Annotated[
        bool | None,
        TENSOR,
        FrameworkDefault("gathers_logits", opposite=True),
        more_than(
            "tensor_parallel",
            1,
            "vocabulary_parallel_loss is about logits that tensor-parallel ranks share",
            way="leave it out, or tensor_parallel > 1",
        ),
    ] = None
    """Whether each tensor-parallel rank computes its part of the loss, or gathers all logits."""
    overlap_gradients: Annotated[
        bool | Literal["bubbles"] | None,
        GRADIENTS,
        FrameworkDefault("gradients_overlap"),
        COPIES,
        more_than(
            "schedule.replicas",
            1,
            "overlap_gradients = 'bubbles' is about copies of a chunk on several pipeline ranks",
            values="schedule = {schedule.name!r} keeps one",
            way="overlap_gradients = true, or schedule = 'chimera'",
            when=("bubbles",),
        ),
        one_of(
            "zero_stage", (0, 1, 2), "FSDP always reduces beside the backward pass", way="leave overlap_gradients out"
        ),
    ] = None
    """Reduce gradients beside the backward pass; "bubbles": copies of a chunk on several pipeline ranks only where
    those ranks idle afterwards (the optimised eager synchronisation of Chimera)."""
    overlap_parameters: Annotated[
        bool | None,
        GRADIENTS,
        FrameworkDefault("parameters_overlap"),
        *GATHERED_AFTER,
    ] = None
    """Gather the weights that ZeRO-1 and ZeRO-2 updated beside the next forward pass."""
    overlap_tensor_parallel: Annotated[
        bool | None,
        TENSOR,
        FrameworkDefault("tensor_parallel_overlap"),
        more_than("tensor_parallel", 1, "overlap_tensor_parallel is about collectives of the tensor-parallel group"),
    ] = None
    """Run the tensor-parallel collective of an input gradient beside the weight-gradient GEMM."""
    bucket_size: Annotated[Bytes | None, GRADIENTS, FrameworkDefault("bucket_size"), COPIES] = None
    """Gradient bytes reduced at once."""
    reduce_gradients: Annotated[
        Literal["step", "microbatch"],
        GRADIENTS,
        COPIES,
        *EACH_MICROBATCH,
    ] = "step"
    """When replicas add gradients: once per "step" (accumulation under DistributedDataParallel's no_sync), or after every
    "microbatch", as its plain loop does, whose next forward waits for that."""
    gradient_exchange: Annotated[str | None, GRADIENTS, FrameworkDefault("gradient_exchange")] = None
    """What replicas exchange, and in which steps: all_reduce (gradients, in every step), one_bit (signs of the momentum, after a dense
    warm-up), power_sgd (factors of low rank), local_sgd (weights, every exchange_every steps), diloco (changes of weights, with an outer
    optimizer), streaming_diloco (in parts), one_process (through GPU 0: torch's DataParallel), parameter_server (servers update),
    stale_parameter_server (and no worker waits for others), wave_synchronous (pipelines push what a wave of microbatches changed: HetPipe),
    byteps (servers add up) or another file of `simulator/lowering/exchanges`; with shard_size between the copies of the states."""
    exchange_every: Annotated[Degree | None, GRADIENTS] = None
    """Steps from one exchange of weights to the next; left out: 500 of diloco, 100 of streaming_diloco (local_sgd needs it)."""
    exchange_warmup: Annotated[Annotated[float, Field(ge=0, le=0.99)] | None, GRADIENTS] = None
    """Share of the steps that are dense, before compressed ones; left out: 0.15 of one_bit, 0 of power_sgd."""
    exchange_bits: Annotated[Literal[4, 8, 16, 32] | None, GRADIENTS] = None
    """Bits of a number that diloco sends; left out: 32, of streaming_diloco 4."""
    exchange_rank: Annotated[Degree | None, GRADIENTS] = None
    """Rank of the factors that power_sgd sends for a matrix, which needs it; left out of all others."""
    exchange_parts: Annotated[Degree | None, GRADIENTS] = None
    """Parts of the weights that streaming_diloco exchanges in turn, each once in exchange_every steps; left out: 1."""
    exchange_servers: Annotated[Layers | None, GRADIENTS] = None
    """Machines without GPUs, each with a node's network cards, that parameter_server or byteps go through; left out: 0, the nodes."""
    exchange_priority: Annotated[bool | None, GRADIENTS] = None
    """Layers go to parameter servers in the order in which they are needed, of those that are ready; left out: as they are made."""
    exchange_staleness: Annotated[Degree | None, GRADIENTS] = None
    """Steps of stale_parameter_server (left out: any number) or waves of wave_synchronous (0) that a worker may be ahead of the slowest."""
    gradient_dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None, GRADIENTS, FrameworkDefault("gradient_dtype"), BESIDE_MASTER
    ] = None
    """Number format of the gradient buffers."""
    gradient_reduce_dtype: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        GRADIENTS,
        FrameworkDefault("reduction_dtype"),
        ADDED,
    ] = None
    """Number format in which gradients are added between ranks; left out: that of the framework, else of the buffers."""
    moment_dtype: Annotated[tuple[MomentFormat, ...] | None, BeforeValidator(one_or_several), GRADIENTS, ON_GPU] = None
    """Number format of the optimizer's moments, or one for each (Megatron-LM: --exp-avg-dtype, --exp-avg-sq-dtype); left out: as wide as
    the weights that are updated."""
    splits_master_weights: Annotated[
        bool | None, GRADIENTS, FrameworkDefault("splits_master_weights"), OF_MASTER, ON_GPU
    ] = None
    """bf16 weights are the upper halves of the fp32 ones, of which only the lower are kept beside them (store_param_remainders of
    Transformer Engine and Apex)."""
    p2p: Annotated[Messages | None, PIPELINE, FrameworkDefault("p2p"), MESSAGES] = None
    """Messages between pipeline ranks: latency (a message only delays its receiver) or blocking (it also holds the sender)."""
    registers: Annotated[Degree | None, PIPELINE, REGISTERS] = None
    """Buffers for messages to a neighbour, on either side: what would make one more waits until one is free (OneFlow); left out: any."""
    layer_split: Annotated[tuple[Layers, ...] | None, Listed, PIPELINE, DEALT] = None
    """Layers per chunk, in order of the global chunk number; left out: balanced."""
    replica_layer_splits: Annotated[LayerSplits | None, Listed, PIPELINE, DEALT] = None
    """Layers per chunk of each replica, where replicas go at their own pace (wave_synchronous); left out: alike."""
    stages: Annotated[tuple[Stage, ...] | None, Listed, PIPELINE] = None
    """Pipeline stages that have ranks of their own, one after another on the cluster: [{ranks = 8}, {ranks = 4, tensor_parallel = 2}],
    each with its layers (else in proportion to its GPUs) and its recompute where these are its own; microbatch_size counts the
    sequences that all of a stage share; left out: all stages are as wide."""
    fsdp_unit: Annotated[Literal["chunk"] | Degree | None, FSDP, UNITS] = None
    """Layers gathered together, or "chunk" for all of a chunk; left out: 1."""
    fsdp_gather: Annotated[Literal["microbatch", "visit"] | None, FSDP, UNITS] = None
    """Weights are gathered for every microbatch (left out) or once per "visit": a run of microbatches through one chunk."""
    fsdp_reduce: Annotated[
        Literal["microbatch", "visit", "step"] | None,
        FSDP,
        UNITS,
        more_than(
            "microbatches",
            1,
            "gradients of one microbatch are added once in any case",
            values="fsdp_reduce = {value!r} and a step has 1 microbatch",
            way="leave fsdp_reduce out",
            when=("visit", "step"),
        ),
    ] = None
    """Gradients are added after every "microbatch", every "visit", or once per "step"; left out: as weights are
    gathered, or once per step where the code adds them up whole."""
    fsdp_prefetch: Annotated[
        Annotated[int, Field(strict=True, ge=0, le=16)] | None, FSDP, FrameworkDefault("fsdp_prefetch"), GATHERS
    ] = None
    """Units gathered ahead of the one that computes."""
    reshard_after_forward: Annotated[bool | None, FSDP, FrameworkDefault("reshards_after_forward"), GATHERS] = None
    """Whether gathered weights are dropped between forward and backward."""
    quantized_weights: Annotated[bool, FSDP, UNITS] = False
    """Weights are gathered as 8-bit integers (ZeRO++ qwZ)."""
    quantized_gradients: Annotated[
        bool,
        FSDP,
        UNITS,
        given(
            "secondary_shard_size",
            "quantised gradients are added inside a node first, and secondary_shard_size says how many ranks that is",
            values="secondary_shard_size is not given",
            way="secondary_shard_size = GPUs of a node, or quantized_gradients = false",
        ),
    ] = False
    """Gradients are added as 4-bit integers, inside groups of secondary_shard_size, then between them (ZeRO++
    qgZ)."""
    optimizer_offload: Annotated[Offload, HOST, ON_DRIVES] = 0.0
    """Part of the optimizer states that lives in host memory ("host": all) and is updated by the CPU, or "nvme": all on its
    drives, read and written layer by layer with their gradients; with zero_stage 2 gradients go down bucket by bucket."""
    optimizer_offload_overlap: Annotated[
        bool,
        HOST,
        given(
            "optimizer_offload",
            "optimizer_offload_overlap is about copies of offloaded optimizer states",
            values="optimizer_offload = 0",
            way="leave it out, or optimizer_offload = 1",
        ),
    ] = False
    """Copies and CPU updates go layer by layer, each beside the others'; else one after the other."""
    activation_offload: Annotated[Layers | None, HOST] = None
    """Layers of each chunk, from its first, whose activations go to host memory between forward and backward."""
    parameter_offload: Annotated[
        Offload,
        HOST,
        one_of(
            "zero_stage",
            (3,),
            "parameter_offload keeps shards of weights on the host until they are gathered",
            values="zero_stage = {found} keeps whole weights (parameter_offload = {value})",
            way="leave it out, or zero_stage = 3",
        ),
    ] = 0.0
    """Part of the weights that ZeRO-3 gathers whose shards live in host memory ("host": all), or on its drives ("nvme"), and
    are copied to the GPU before every gather."""
    clip_gradients: Annotated[bool | None, GRADIENTS, FrameworkDefault("clips_gradients")] = None
    """Global gradient norm before the update."""
    optimizer_in_backward: Annotated[bool, GRADIENTS, *IN_BACKWARD] = False
    """Each weight is updated in the backward pass, as soon as its gradient is there, which is then freed (torchtune's
    optimizer_in_bwd; Lv et al., arXiv 2306.09782): gradients never stand together, and are not clipped. The kernels, one
    set per tensor, take as long as at the end of the step, where they are counted."""
    post_validation: Annotated[
        bool | None,
        PIPELINE,
        FrameworkDefault("post_validates"),
        *ENDS_APART,
    ] = None
    """Ranks update and begin the next step without waiting for the global gradient norm, which is checked afterwards
    (Zero Bubble)."""
    dropout: Annotated[bool | None, KERNELS, FrameworkDefault("dropout")] = None
    """Whether the model is trained with dropout."""
    narrow_gate_input: Annotated[bool, KERNELS] = False
    """Keep the inputs of gates in 8 bits, widened for their backward pass (Megatron-Core's activation_func_fp8_input_store)."""
    gradient_accumulation_fusion: Annotated[bool | None, KERNELS, FrameworkDefault("fused_wgrad_accumulation")] = None
    """Whether the products that make weight gradients add them to the sum over microbatches themselves (Megatron-LM: unless
    --no-gradient-accumulation-fusion, which codes without apex' kernels need); else a pass of its own does."""
    cuda_graphs: Annotated[
        str | tuple[str, ...] | None, BeforeValidator(graphs), KERNELS, FrameworkDefault("cuda_graphs")
    ] = None
    """What is started by CUDA graphs: "none", "full_iteration", or parts of layers: attn, mlp, moe_router,
    moe_preprocess, moe; left out: the framework's, where the plan allows it."""
    rank_order: Annotated[
        tuple[Literal["tp", "cp", "dp", "pp"], ...] | None,
        Listed,
        DEGREES,
        more_than(
            "axes",
            1,
            "rank_order says along which axis neighbouring ranks lie",
            values="{axes} of the axes has more than one rank",
            way="leave rank_order out, or split the work along two axes",
        ),
    ] = None
    """Mesh axes from consecutive ranks outward; left out: tp, cp, dp, pp."""
    framework: Annotated[str, KERNELS] = "megatron_core"
    """Name of the framework profile, which says what the plan leaves open."""

    @property
    def moment_bytes(self) -> tuple[float, ...]:
        """Bytes of a number of each of `moment_dtype`; () = left out."""
        return tuple([BYTES_PER_ELEMENT[name] for name in self.moment_dtype or ()])

    @model_validator(mode="before")
    @classmethod
    def _count_stages(cls, data: object) -> object:
        """As many pipeline ranks as stages, where nobody says how many."""
        if isinstance(data, dict) and isinstance(data.get("stages"), list | tuple):
            return {"pipeline_parallel": max(1, len(data["stages"])), **data}
        return data

    @property
    def model_parallel_size(self) -> int:
        """GPUs of one replica."""
        if self.stages:
            return sum(stage.ranks for stage in self.stages)
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    def check_needs(self, of: str, *names: str, **facts: object) -> None:
        """Refuse choices that could have no effect, for want of one thing (`simulator.options.option.check_needs`)."""
        if not self.model_fields_set.isdisjoint(names):
            check_needs(self, of, *names, **facts)
