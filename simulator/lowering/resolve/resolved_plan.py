"""A resolved plan: every choice made, every rule checked, before a row is written.

`resolve` fills what the plan leaves open from the framework profile and refuses what cannot be, with the rule, the values and
the nearest plan that works.  An option that would have no effect is refused too, never ignored.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields, replace

from simulator.errors import PlanError
from simulator.lowering.layers.graphs import graphs_of
from simulator.lowering.layers.recompute import Recompute
from simulator.lowering.resolve.asynchronous_rules import UNROLLED, check_asynchronous, post_validation
from simulator.lowering.resolve.context_rules import check_context, with_ring
from simulator.lowering.resolve.degrees import count_microbatches, count_replicas
from simulator.lowering.resolve.effect_rules import check_effects
from simulator.lowering.resolve.expert_rules import BY_MASKS, Groups, check_experts, with_experts
from simulator.lowering.resolve.head_rules import with_shared_heads
from simulator.lowering.resolve.mesh_rules import check_mesh, with_tensor_mesh
from simulator.lowering.resolve.model_rules import check_model
from simulator.lowering.resolve.offload_rules import check_offload, gradients_leave
from simulator.lowering.resolve.plan_rules import check_reduce_dtype
from simulator.lowering.resolve.recompute_rules import resolve_recompute
from simulator.lowering.resolve.shape_rules import check_shapes
from simulator.lowering.resolve.shard_rules import check_shards, check_units, with_shards
from simulator.lowering.resolve.workload_rules import check_documents, check_loss
from simulator.options.option import chosen
from simulator.partition.compose import compose
from simulator.partition.layout import Layout
from simulator.partition.strategies.base import TENSOR
from simulator.plan.framework import Framework, load_framework
from simulator.plan.plan import Plan
from simulator.plan.values import AXES
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule, Shape
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.blocks.one_hot import GROUP_SIZE
from simulator.workload.graph import Dim
from simulator.workload.operator import KernelStyle
from simulator.workload.precision import Precision
from simulator.workload.workload import Workload

__all__ = ["ResolvedPlan", "resolve"]

MOST_ACTIONS = 5_000_000
"""A step with more pipeline actions than this is refused: it would need gigabytes."""


@dataclass(frozen=True, kw_only=True)
class ResolvedPlan:
    """A plan without open choices; names as in `Plan`."""

    tensor_parallel: int
    context_parallel: int
    context_parallel_kind: str
    pipeline_parallel: int
    data_parallel: int
    sequence_parallel: bool
    chunks_per_rank: int
    microbatch_size: int
    microbatches: int
    schedule: Schedule
    zero_stage: int
    overlap_gradients: bool
    overlaps_in_bubbles: bool = False
    post_validation: bool = False
    overlap_parameters: bool
    overlap_tensor_parallel: bool
    bucket_size: float
    gradient_bytes: int
    gradient_dtype: str
    p2p: str
    layer_split: tuple[int, ...] | None
    fsdp_prefetch: int
    reshard_after_forward: bool
    clip_gradients: bool
    optimizer_in_backward: bool
    axes: tuple[tuple[str, int], ...]
    style: KernelStyle
    precision: Precision
    framework: Framework
    vocabulary: int
    groups: Groups = Groups()
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    expert_exchange: str = "all_to_all"
    expert_imbalance: float = 1.0
    secondary_shard_size: int = 0
    reduces_once: bool = False
    fsdp_unit: int = 1
    fsdp_gather: str = "microbatch"
    fsdp_reduce: str = "microbatch"
    quantized_weights: bool = False
    quantized_gradients: bool = False
    recomputes: Recompute = Recompute("none")
    gradient_reduce_dtype: str = ""
    tensor_parallel_splits: int = 1
    context_parallel_inner: int = 1
    optimizer_offload: float = 0.0
    optimizer_offload_overlap: bool = False
    activation_offload: int = 0
    parameter_offload: float = 0.0
    cuda_graphs: tuple[str, ...] = ()
    layout: Layout = Layout(name="one rank", mesh=(), rules=())

    @property
    def divides_stream(self) -> bool:
        """Whether the ranks that split layers have a part each of what goes from layer to layer."""
        return self.layout.ways((Dim("batch", 1), Dim("sequence", 1), Dim("hidden", 1))) > 1

    @property
    def replica_axes(self) -> tuple[str, ...]:
        """Mesh axes along which ranks hold the same weights: gradients are added and states sharded over them."""
        return self.groups.replicas

    @functools.cached_property
    def replicas(self) -> int:
        """Ranks that hold the same weights, experts apart."""
        return self.context_parallel * self.data_parallel

    @functools.cached_property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        ranks = self.tensor_parallel * self.context_parallel * self.data_parallel
        return ranks // (self.expert_parallel * self.expert_tensor_parallel)

    @property
    def reduce_dtype(self) -> str:
        """Number format in which gradients are added between ranks."""
        return self.gradient_reduce_dtype or self.gradient_dtype

    @property
    def reduce_bytes(self) -> float:
        """Bytes of a gradient on its way."""
        return BYTES_PER_ELEMENT[self.reduce_dtype]

    @property
    def reductions(self) -> int:
        """How often a step adds each gradient between ranks."""
        each = self.zero_stage == 2 or (self.zero_stage == 3 and self.fsdp_reduce == "microbatch")
        return self.microbatches if each else 1

    @property
    def gradients_leave(self) -> bool:
        """Whether the gradients that the CPU updates with go to the host bucket by bucket, as they are made.

        Shards that are added between copies after the last microbatch stay until then.
        """
        return self.zero_stage == 2 and self.optimizer_offload > 0 and self.lanes == 1 and self.copies == 1

    @property
    def gradients_kept(self) -> float:
        """Part of the gradients that a GPU keeps until the update."""
        return 1.0 - self.optimizer_offload if self.gradients_leave else 1.0

    @property
    def lanes(self) -> int:
        """Copies of the weights that the schedule itself keeps, each on other pipeline ranks (2 in Chimera)."""
        return self.schedule.replicas

    @functools.cached_property
    def copies(self) -> int:
        """Groups that each hold one copy of the sharded states."""
        sizes = dict(self.axes)
        return math.prod(sizes[axis] for axis in self.groups.copies)

    @functools.cached_property
    def shard_size(self) -> int:
        """Ranks over which states are sharded, those of experts apart."""
        return self.replicas // self.copies

    @functools.cached_property
    def expert_shard_size(self) -> int:
        """Ranks over which the states of experts are sharded."""
        return self.expert_replicas // self.copies

    @property
    def expert_inner_size(self) -> int:
        """Ranks of a secondary shard group that hold the same experts."""
        return self.expert_replicas * self.secondary_shard_size // self.replicas

    @property
    def experts_apart(self) -> bool:
        """Whether experts are held by other sets of ranks than the rest of the weights."""
        return self.groups.expert_replicas != self.groups.replicas

    @functools.cached_property
    def reduces(self) -> bool:
        """Whether any gradients are added between ranks."""
        return self.replicas > 1 or (self.experts_apart and self.expert_replicas > 1)

    @functools.cached_property
    def steps(self) -> int:
        """Steps in a program: 1 where all ranks end a step together, else as many as it takes to see one in the steady state."""
        return UNROLLED if self.post_validation else int(self.schedule.steps(self.shape))

    @property
    def recompute(self) -> str:
        """What is recomputed: none, selective, operators or full."""
        return self.recomputes.kind

    @functools.cached_property
    def shape(self) -> Shape:
        """What the schedule sees."""
        return Shape(self.pipeline_parallel, self.microbatches, self.chunks_per_rank)


def resolve(workload: Workload, plan: Plan, world_size: int, cluster_name: str = "the cluster") -> ResolvedPlan:
    """Return the plan with every choice made.

    Args:
        world_size: GPUs of the job.

    Raises:
        PlanError: a rule is broken; the message names the nearest plan that works.
    """
    framework = load_framework(plan.framework)
    said = functools.partial(chosen, plan, framework)
    replicas = count_replicas(plan, world_size, cluster_name)
    check_shapes(workload, plan)
    check_mesh(workload, plan)
    exchange: str = said("expert_exchange")
    check_experts(workload.model, plan, exchange)
    microbatches = count_microbatches(workload, plan, replicas)
    schedule = _schedule(plan, microbatches)
    check_units(workload, plan, microbatches)
    check_offload(plan)
    layout = compose(
        plan.layout,
        plan.tensor_parallel,
        plan.sequence_parallel,
        plan.expert_parallel,
        plan.expert_tensor_parallel or plan.tensor_parallel,
        plan.expert_imbalance,
        plan.tensor_mesh,
    )
    divides_vocabulary = bool(layout.along((Dim("vocabulary", workload.model.vocabulary),)))
    style = _style(
        framework,
        said("attention"),
        said("dropout"),
        not said("vocabulary_parallel_loss") and divides_vocabulary,
        said("fused_cross_entropy"),
        plan.loss_chunks or 1,
        (plan.expert_group_size or GROUP_SIZE) if exchange == BY_MASKS else 0,
    )
    if len(layout.tensor) > 1:  # gathered operands are the layout's own affair
        style = replace(style, keeps_gathered_inputs=False)
    check_loss(plan, style)
    check_context(workload.model, plan, style.attention)
    check_documents(workload, style, schedule)
    recomputes = resolve_recompute(workload, plan, framework, schedule.slices)
    check_shards(workload, plan, replicas * plan.context_parallel, schedule.replicas)
    check_effects(plan, framework, replicas * plan.context_parallel, schedule)
    if not schedule.flush:
        check_asynchronous(plan, schedule)
    per_rank = 1 if schedule.slices else plan.chunks_per_rank
    depth = workload.model.depth
    if depth < plan.pipeline_parallel * per_rank and plan.layer_split is None:
        raise PlanError(
            f"every chunk needs a layer, but pipeline_parallel x chunks_per_rank = {plan.pipeline_parallel} x "
            f"{per_rank} = {plan.pipeline_parallel * per_rank} and model "
            f"{workload.model.name!r} has {depth} layers. Nearest: pipeline_parallel = {max(1, depth // per_rank)}."
        )
    check_model(workload, plan, schedule)
    post_validates = post_validation(plan, framework, schedule)
    steps = (
        UNROLLED
        if post_validates
        else schedule.steps(Shape(plan.pipeline_parallel, microbatches, plan.chunks_per_rank))
    )
    actions = 2 * microbatches * plan.pipeline_parallel * plan.chunks_per_rank * steps
    if actions > MOST_ACTIONS:
        raise PlanError(
            f"a step may have at most {MOST_ACTIONS} pipeline actions, but {microbatches} microbatches on "
            f"{plan.pipeline_parallel} x {plan.chunks_per_rank} chunks make {actions}. Way out: a larger microbatch_size, "
            "more data_parallel or a smaller global_batch_size."
        )
    numbers = workload.numbers
    sizes = tuple((axis, _size(plan, axis, replicas)) for axis in _rank_order(plan))
    plan.check_needs("axes", "rank_order", axes=sum(size > 1 for _, size in sizes))
    axes, groups = with_experts(sizes, plan, workload.model.experts > 0)
    inner = plan.context_parallel_inner
    axes, groups = with_shards(*with_ring(axes, groups, plan), plan, replicas * plan.context_parallel)
    keys = Dim("kv_heads", workload.model.kv_heads, serves="heads")
    axes, groups = with_tensor_mesh(axes, groups, layout)
    axes, groups = with_shared_heads(axes, groups, plan, layout.shared((keys,), TENSOR))
    plan.check_needs("precision.master_weights", "gradient_dtype", precision=numbers)
    plan.check_needs("precision.loss_scaling", "optimizer_in_backward", precision=numbers)
    gradient: str = said("gradient_dtype")
    if gradient == "compute" or not numbers.master_weights:
        gradient = numbers.compute
    elif _keeps_wide_gradients(framework, plan):
        gradient = "fp32"
    check_reduce_dtype(plan, gradient, replicas * plan.context_parallel * schedule.replicas)
    waits = schedule.flush and not post_validates
    multiple = framework.vocabulary_multiple * (plan.tensor_parallel if divides_vocabulary else 1)
    unsharded = framework.pipeline_keeps_unsharded and plan.pipeline_parallel > 1 and plan.zero_stage == 3
    dropped = plan.fsdp_gather is not None or plan.secondary_shard_size is not None
    reshards: bool = said("reshard_after_forward", not (unsharded or dropped), dropped)
    reduce: str = plan.fsdp_reduce or plan.fsdp_gather or ("step" if unsharded else "microbatch")
    return ResolvedPlan(
        tensor_parallel=plan.tensor_parallel,
        context_parallel=plan.context_parallel,
        context_parallel_kind=plan.context_parallel_kind or "ring",
        pipeline_parallel=plan.pipeline_parallel,
        data_parallel=replicas,
        sequence_parallel=plan.sequence_parallel,
        chunks_per_rank=plan.chunks_per_rank,
        microbatch_size=plan.microbatch_size,
        microbatches=microbatches,
        schedule=schedule,
        zero_stage=plan.zero_stage,
        overlap_gradients=bool(said("overlap_gradients", waits))
        and (replicas * plan.context_parallel * schedule.replicas > 1 or gradients_leave(plan, schedule)),
        overlaps_in_bubbles=plan.overlap_gradients == "bubbles",
        overlap_parameters=said("overlap_parameters", waits and schedule.replicas == 1)
        and plan.zero_stage in (1, 2)
        and replicas * plan.context_parallel > 1,
        overlap_tensor_parallel=said("overlap_tensor_parallel"),
        bucket_size=plan.bucket_size or framework.bucket_size,
        gradient_bytes=int(BYTES_PER_ELEMENT[gradient]),
        gradient_dtype=gradient,
        p2p=said("p2p", _takes_messages_in_turn(schedule), "latency"),
        layer_split=plan.layer_split,
        fsdp_prefetch=said("fsdp_prefetch"),
        post_validation=post_validates,
        reshard_after_forward=reshards,
        reduces_once=unsharded and reduce == "step",
        clip_gradients=said("clip_gradients", schedule.flush and not plan.optimizer_in_backward),
        optimizer_in_backward=plan.optimizer_in_backward,
        axes=axes,
        groups=groups,
        secondary_shard_size=plan.secondary_shard_size or 0,
        fsdp_unit=0 if plan.fsdp_unit == "chunk" else plan.fsdp_unit or 1,
        fsdp_gather=plan.fsdp_gather or "microbatch",
        fsdp_reduce=reduce,
        quantized_weights=plan.quantized_weights,
        quantized_gradients=plan.quantized_gradients,
        recomputes=recomputes,
        gradient_reduce_dtype=said("gradient_reduce_dtype").replace("gradient", ""),
        tensor_parallel_splits=plan.tensor_parallel_splits or 1,
        context_parallel_inner=plan.context_parallel if plan.context_parallel_kind == "ulysses" else inner or 1,
        optimizer_offload=plan.optimizer_offload,
        optimizer_offload_overlap=plan.optimizer_offload_overlap,
        activation_offload=plan.activation_offload or 0,
        parameter_offload=plan.parameter_offload,
        cuda_graphs=graphs_of(workload, plan, framework, recomputes.kind),
        expert_parallel=plan.expert_parallel,
        expert_tensor_parallel=plan.expert_tensor_parallel or plan.tensor_parallel,
        expert_exchange=exchange,
        expert_imbalance=plan.expert_imbalance,
        layout=layout,
        style=style,
        precision=numbers,
        framework=framework,
        vocabulary=-(-workload.model.vocabulary // multiple) * multiple,
    )


def _takes_messages_in_turn(schedule: Schedule) -> bool:
    """Whether messages are what the framework says: runtimes of split, two-way, sliced, eager or asynchronous schedules post their
    receives ahead."""
    ahead = schedule.splits_backward or schedule.slices or schedule.sends_ahead
    return not ahead and schedule.replicas == 1 and schedule.flush


def _keeps_wide_gradients(framework: Framework, plan: Plan) -> bool:
    """Whether gradients are as wide as the fp32 weights, as under autocast: narrow reductions are those of FSDP.

    A compiled program that casts gathered weights beside their products adds what the products make, before it is widened.
    """
    narrow = framework.casts_gathered or plan.zero_stage == 3 or plan.gradient_dtype is not None
    return framework.shards_in_master_precision and not narrow


def _size(plan: Plan, axis: str, replicas: int) -> int:
    sizes = {"tp": plan.tensor_parallel, "cp": plan.context_parallel, "dp": replicas, "pp": plan.pipeline_parallel}
    return sizes[axis]


def _rank_order(plan: Plan) -> tuple[str, ...]:
    """Mesh axes, innermost first; without context parallelism its axis need not be named."""
    if plan.rank_order is None:
        return AXES if plan.context_parallel > 1 else tuple(axis for axis in AXES if axis != "cp")
    wanted = AXES if plan.context_parallel > 1 or "cp" in plan.rank_order else tuple(a for a in AXES if a != "cp")
    if sorted(plan.rank_order) != sorted(wanted):
        raise PlanError(
            f"rank_order must name each of {', '.join(wanted)} once, but it is {list(plan.rank_order)}. "
            f"Nearest: {list(wanted)}."
        )
    return plan.rank_order


@functools.lru_cache(maxsize=64)
def _style(
    framework: Framework, attention: str, dropout: bool, gathers: bool, fused: bool, chunks: int, group: int
) -> KernelStyle:
    """The kernels of a framework's profile, which has a key for every field of the style; what the plan resolved comes on top."""
    habits = {
        f.name: getattr(framework, f.name) for f in fields(KernelStyle) if f.name not in ("loss_chunks", "expert_group")
    }
    resolved = {"attention": attention, "dropout": dropout, "loss_chunks": chunks, "expert_group": group}
    if group:  # masks have the router's weights
        resolved["weights_in_experts"] = False
    return KernelStyle(**{**habits, **resolved, "gathers_logits": gathers, "fused_cross_entropy": fused})


def _schedule(plan: Plan, microbatches: int) -> Schedule:
    name = plan.schedule or ("interleaved_1f1b" if plan.chunks_per_rank > 1 else "one_f_one_b")
    schedule = SCHEDULES.get(name)
    schedule.check(Shape(plan.pipeline_parallel, microbatches, plan.chunks_per_rank))
    plan.check_needs("pipeline_parallel", "schedule")
    plan.check_needs("turns", "schedule", "optimizer_in_backward", turns=microbatches * plan.pipeline_parallel)
    return schedule
