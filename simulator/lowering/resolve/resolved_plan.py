"""A resolved plan: every choice made, every rule checked, before a row is written.

`resolve` fills what the plan leaves open from the framework profile and refuses what cannot be, with the rule, the values and
the nearest plan that works.  An option that would have no effect is refused too, never ignored.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simulator.errors import PlanError
from simulator.lowering.exchanges import EXCHANGES
from simulator.lowering.exchanges.base import EVERY_STEP, GradientExchange, StepKind, Terms
from simulator.lowering.layers.recompute import Recompute
from simulator.lowering.resolve.asynchronous_rules import UNROLLED
from simulator.lowering.resolve.exchange_rules import terms_of
from simulator.lowering.resolve.expert_rules import Groups
from simulator.lowering.resolve.facts import RULES, Facts
from simulator.lowering.resolve.offload_rules import gradients_leave
from simulator.lowering.resolve.stage_rules import stage_plans
from simulator.options.option import chosen
from simulator.partition.layout import Layout
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.plan.values import part_away, tier_of
from simulator.program.program import Axes
from simulator.remembered import kept
from simulator.schedules.base import Schedule, Shape
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.graph import Dim
from simulator.workload.operator import KernelStyle
from simulator.workload.precision import Precision
from simulator.workload.workload import Workload

__all__ = ["EXPERTS", "Holders", "ResolvedPlan", "resolve"]

EXPERTS = " (experts)"
"""What parts of weights are called that belong to experts held by other sets of ranks."""


class Holders(NamedTuple):
    """Ranks that hold the same weights: `shards` of them hold one copy of the states of these, and there are so many copies.

    Args:
        what: weights: "" = all that are no experts, EXPERTS.
        ranks, axes: all of them, and the mesh axes along which they lie.
        shards, shard_axes: those that hold one copy.
        copies, copy_axes: those that hold the same shard.
    """

    what: str
    ranks: int
    axes: tuple[str, ...]
    shards: int
    shard_axes: tuple[str, ...]
    copies: int
    copy_axes: tuple[str, ...]


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
    bucket_sizes: tuple[float, ...] = ()
    """Bytes of the buckets in turn, the last also of all that follow; () = each as large as `bucket_size`."""
    served_turns: tuple[tuple[int, ...], ...] = ()
    """Of each rank: the turns in which the layers of a step go to servers, where these were seen; () = as their gradients are made."""
    gradient_bytes: int
    gradient_dtype: str
    p2p: str
    registers: int = 0
    """Buffers for messages to a neighbour; 0 = as many as are wanted."""
    layer_split: tuple[int, ...] | None
    replica_layer_splits: tuple[tuple[int, ...], ...] = ()
    """Of each replica, where they differ; `layer_split` is that of the first."""
    fsdp_prefetch: int
    reshard_after_forward: bool
    clip_gradients: bool
    optimizer_in_backward: bool
    axes: Axes
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
    fsdp_unit: int = 1
    fsdp_gather: str = "microbatch"
    fsdp_reduce: str = "microbatch"
    reduce_gradients: str = "step"
    quantized_weights: bool = False
    quantized_gradients: bool = False
    recomputes: Recompute = Recompute("none")
    gradient_reduce_dtype: str = ""
    moment_bytes: tuple[float, ...] = ()
    """Bytes of each of the optimizer's moments, or of all; () = as wide as the weights that are updated."""
    splits_master_weights: bool = False
    tensor_parallel_splits: int = 1
    context_parallel_inner: int = 1
    optimizer_offload: float = 0.0
    optimizer_tier: str = "host"
    optimizer_offload_overlap: bool = False
    activation_offload: int = 0
    parameter_offload: float = 0.0
    parameter_tier: str = "host"
    cuda_graphs: tuple[str, ...] = ()
    layout: Layout = Layout(name="one rank", mesh=(), rules=())
    exchange: GradientExchange = field(default_factory=lambda: EXCHANGES.get("all_reduce"))
    exchange_terms: Terms = Terms()
    step_kind: StepKind = EVERY_STEP
    """Of which a program is made: one of `step_kinds`, the first where nobody chose."""
    stages: tuple[ResolvedPlan, ...] = ()
    """Of stages with ranks of their own: of each the plan of equal stages that are as wide; the fields above are those of the first."""

    @property
    def step_kinds(self) -> tuple[StepKind, ...]:
        """Kinds of steps of a run; the one with least to send first."""
        return self.exchange.step_kinds(self.exchange_terms)

    def in_kind(self, kind: StepKind) -> ResolvedPlan:
        """Return the plan of which a program of this kind of step is made."""
        return self if kind == self.step_kind else replace(self, step_kind=kind)

    @kept
    def on_servers(self) -> bool:
        """Whether servers keep the optimizer's states and update the weights, layer by layer."""
        return self.exchange.on_servers and self.replicas > 1

    @kept
    def in_waves(self) -> bool:
        """Whether replicas change their own weights after every backward, and servers add up what a step of each changed."""
        return self.exchange.waves and self.replicas > 1

    @kept
    def divides_stream(self) -> bool:
        """Whether the ranks that split layers have a part each of what goes from layer to layer."""
        return bool(self.layout.axes((Dim("batch", 1), Dim("sequence", 1), Dim("hidden", 1))))

    @property
    def replica_axes(self) -> tuple[str, ...]:
        """Mesh axes along which ranks hold the same weights: gradients are added and states sharded over them."""
        return self.groups.replicas

    @kept
    def replicas(self) -> int:
        """Ranks that hold the same weights, experts apart."""
        return self.context_parallel * self.data_parallel

    @kept
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        ranks = self.tensor_parallel * self.context_parallel * self.data_parallel
        return ranks // (self.expert_parallel * self.expert_tensor_parallel)

    @kept
    def reduce_dtype(self) -> str:
        """Number format in which gradients are added between ranks."""
        return self.gradient_reduce_dtype or self.gradient_dtype

    @kept
    def reduce_bytes(self) -> float:
        """Bytes of a gradient on its way."""
        return BYTES_PER_ELEMENT[self.reduce_dtype]

    @kept
    def gathered_bytes(self) -> float:
        """Bytes of a weight as FSDP gathers it: under autocast, which casts beside the products, those of its fp32 shard."""
        return 4.0 if self.style.autocast else float(self.precision.element)

    @property
    def added_bytes(self) -> float:
        """Bytes of a gradient as several microbatches' are added up: as it is kept, or whole in FSDP's format of reductions
        (PyTorch FSDPParam.to_accumulated_grad_if_needed)."""
        whole = self.zero_stage == 3 and self.fsdp_reduce != "microbatch"
        return max(self.gradient_bytes, self.reduce_bytes) if whole else float(self.gradient_bytes)

    @property
    def reductions(self) -> int:
        """How often a step adds each gradient between ranks."""
        each = self.reduces_each or (self.zero_stage == 3 and self.fsdp_reduce == "microbatch")
        return self.microbatches if each else 1

    @property
    def reduces_each(self) -> bool:
        """Whether the buckets of every microbatch are added between replicas below ZeRO-3."""
        return self.zero_stage == 2 or self.reduce_gradients == "microbatch"

    @property
    def gradients_leave(self) -> bool:
        """Whether the gradients that the CPU updates with go to the host bucket by bucket, as they are made.

        Shards that are added between copies after the last microbatch stay until then.
        """
        return self.zero_stage == 2 and self.optimizer_offload > 0 and self.lanes == 1 and self.copies == 1

    @property
    def gradients_kept(self) -> float:
        """Part of the gradients that a GPU keeps until the update.

        ZeRO-3's shards are copied to the host unit by unit beside the backward (DeepSpeed runtime/zero/stage3.py,
        grad_partitions_flat_buffer on the CPU; PyTorch, CPUOffload and CPUOffloadPolicy); what is on its way is not counted, and
        the copies' time is at the end.
        """
        return 1.0 - self.optimizer_offload if self.gradients_leave or self.zero_stage == 3 else 1.0

    @property
    def lanes(self) -> int:
        """Copies of the weights that the schedule itself keeps, each on other pipeline ranks (2 in Chimera)."""
        return self.schedule.replicas

    @kept
    def copies(self) -> int:
        """Groups that each hold one copy of the sharded states, those of experts apart."""
        sizes = dict(self.axes)
        return math.prod(sizes[axis] for axis in self.groups.copies)

    @kept
    def expert_copies(self) -> int:
        """Groups that each hold one copy of the sharded states of experts."""
        sizes = dict(self.axes)
        return math.prod(sizes[axis] for axis in self.groups.expert_copies)

    @kept
    def shard_size(self) -> int:
        """Ranks over which states are sharded, those of experts apart."""
        return self.replicas // self.copies

    @kept
    def expert_shard_size(self) -> int:
        """Ranks over which the states of experts are sharded."""
        return self.expert_replicas // self.expert_copies

    @kept
    def holders(self) -> tuple[Holders, Holders]:
        """The ranks that hold the same weights, experts apart, and those that hold the same experts."""
        g, experts = self.groups, (self.expert_replicas, self.groups.expert_replicas)
        return (
            Holders("", self.replicas, g.replicas, self.shard_size, g.shards, self.copies, g.copies),
            Holders(EXPERTS, *experts, self.expert_shard_size, g.expert_shards, self.expert_copies, g.expert_copies),
        )

    @property
    def expert_inner_size(self) -> int:
        """Ranks of a secondary shard group that hold the same experts."""
        return self.expert_replicas * self.secondary_shard_size // self.replicas

    @property
    def experts_apart(self) -> bool:
        """Whether experts are held by other sets of ranks than the rest of the weights."""
        return self.groups.expert_replicas != self.groups.replicas

    @kept
    def reduces(self) -> bool:
        """Whether any gradients are added between ranks: in a step in which copies are on their own, inside of each."""
        several = self.replicas > 1 or (self.experts_apart and self.expert_replicas > 1)
        return several and (self.step_kind.adds or self.copies > 1)

    @kept
    def steps(self) -> int:
        """Steps in a program: 1 where all ranks end a step together, else as many as it takes to see one in the steady state."""
        return UNROLLED if self.post_validation or self.on_servers else int(self.schedule.steps(self.shape))

    @property
    def recompute(self) -> str:
        """What is recomputed: none, selective, operators or full."""
        return self.recomputes.kind

    @kept
    def shape(self) -> Shape:
        """What the schedule sees."""
        return Shape(self.pipeline_parallel, self.microbatches, self.chunks_per_rank)


def resolve(
    workload: Workload, plan: Plan, world_size: int, cluster_name: str = "the cluster", tries: bool = False
) -> ResolvedPlan:
    """Return the plan with every choice made.

    Args:
        world_size: GPUs of the job.
        tries: whether degrees that a refusal names are tried before (`Facts`).

    Raises:
        PlanError: a rule is broken; the message names the nearest plan that works.
    """
    if plan.stages is not None:
        return _with_stages(workload, stage_plans(workload, plan, world_size, cluster_name), cluster_name)
    facts = Facts(workload, plan, world_size, cluster_name, tries)
    for rule in RULES:
        rule(facts)
    framework, schedule, replicas, numbers = facts.framework, facts.schedule, facts.replicas, workload.numbers
    said = functools.partial(chosen, plan, framework)
    waits = schedule.flush and not facts.post_validates
    multiple = framework.vocabulary_multiple * (plan.tensor_parallel if facts.divides_vocabulary else 1)
    unsharded = framework.pipeline_keeps_unsharded and plan.pipeline_parallel > 1 and plan.zero_stage == 3
    dropped = plan.fsdp_gather is not None or plan.secondary_shard_size is not None
    reshards: bool = said("reshard_after_forward", not (unsharded or dropped), dropped)
    adds = framework.accumulates_unsharded and plan.zero_stage == 3 and facts.microbatches > 1
    reduce: str = plan.fsdp_reduce or plan.fsdp_gather or ("step" if unsharded or adds else "microbatch")
    axes, groups = facts.mesh
    exchange = facts.exchanges
    tokens = float(plan.microbatch_size * workload.sequence_length)
    apart = exchange.on_servers and facts.ranks > 1
    terms = terms_of(plan, exchange, numbers, BYTES_PER_ELEMENT[facts.gradient], tokens)
    bucket = plan.bucket_size or max(
        framework.bucket_size, framework.bucket_growth * facts.ranks * BYTES_PER_ELEMENT[facts.gradient]
    )
    small = framework.first_bucket if plan.bucket_size is None and plan.zero_stage < 2 else 0.0
    return ResolvedPlan(
        tensor_parallel=plan.tensor_parallel,
        context_parallel=plan.context_parallel,
        context_parallel_kind=plan.context_parallel_kind or "ring",
        pipeline_parallel=plan.pipeline_parallel,
        data_parallel=replicas,
        sequence_parallel=plan.sequence_parallel,
        chunks_per_rank=plan.chunks_per_rank,
        microbatch_size=plan.microbatch_size,
        microbatches=facts.microbatches,
        schedule=schedule,
        zero_stage=plan.zero_stage,
        overlap_gradients=bool(apart or said("overlap_gradients", waits))
        and (facts.ranks * schedule.replicas > 1 or gradients_leave(plan, schedule)),
        overlaps_in_bubbles=plan.overlap_gradients == "bubbles",
        overlap_parameters=said("overlap_parameters", waits and schedule.replicas == 1)
        and plan.zero_stage in (1, 2)
        and facts.ranks > 1,
        overlap_tensor_parallel=said("overlap_tensor_parallel"),
        bucket_size=bucket,
        bucket_sizes=(small, bucket) if small else (),
        gradient_bytes=int(BYTES_PER_ELEMENT[facts.gradient]),
        gradient_dtype=facts.gradient,
        registers=plan.registers or 0,
        p2p="latency" if plan.registers else said("p2p", _takes_messages_in_turn(schedule), "latency"),
        layer_split=facts.layer_split,
        replica_layer_splits=plan.replica_layer_splits or (),
        fsdp_prefetch=said("fsdp_prefetch"),
        post_validation=facts.post_validates,
        reshard_after_forward=reshards,
        clip_gradients=said("clip_gradients", schedule.flush and not plan.optimizer_in_backward and not apart),
        optimizer_in_backward=plan.optimizer_in_backward,
        axes=axes,
        groups=groups,
        secondary_shard_size=plan.secondary_shard_size or 0,
        fsdp_unit=0 if plan.fsdp_unit == "chunk" else plan.fsdp_unit or 1,
        fsdp_gather=plan.fsdp_gather or "microbatch",
        fsdp_reduce=reduce,
        reduce_gradients=plan.reduce_gradients,
        quantized_weights=plan.quantized_weights,
        quantized_gradients=plan.quantized_gradients,
        recomputes=facts.recomputes,
        gradient_reduce_dtype=said("gradient_reduce_dtype").replace("gradient", ""),
        moment_bytes=plan.moment_bytes,
        splits_master_weights=said("splits_master_weights"),
        tensor_parallel_splits=plan.tensor_parallel_splits or 1,
        context_parallel_inner=plan.context_parallel
        if plan.context_parallel_kind == "ulysses"
        else plan.context_parallel_inner or 1,
        optimizer_offload=part_away(plan.optimizer_offload),
        optimizer_tier=tier_of(plan.optimizer_offload),
        optimizer_offload_overlap=plan.optimizer_offload_overlap,
        activation_offload=plan.activation_offload or 0,
        parameter_offload=part_away(plan.parameter_offload),
        parameter_tier=tier_of(plan.parameter_offload),
        cuda_graphs=facts.graphs,
        expert_parallel=plan.expert_parallel,
        expert_tensor_parallel=plan.expert_tensor_parallel or plan.tensor_parallel,
        expert_exchange=facts.exchange,
        expert_imbalance=plan.expert_imbalance,
        layout=facts.layout,
        exchange=exchange,
        exchange_terms=terms,
        step_kind=exchange.step_kinds(terms)[0],
        style=facts.style,
        precision=numbers,
        framework=framework,
        vocabulary=-(-workload.model.vocabulary // multiple) * multiple,
    )


def _with_stages(workload: Workload, plans: tuple[Plan, ...], cluster_name: str) -> ResolvedPlan:
    """Return the plan of stages with ranks of their own, each resolved as that of equal stages."""
    known: dict[int, ResolvedPlan] = {}
    first = [plans.index(plan) for plan in plans]
    for number in dict.fromkeys(first):
        plan = plans[number]
        try:
            known[number] = resolve(workload, plan, plan.model_parallel_size * (plan.data_parallel or 1), cluster_name)
        except PlanError as error:
            raise PlanError(f"stages[{number}]: {error}") from None
    stages = tuple([known[number] for number in first])
    if stages[0].schedule.deals:
        schedule = stages[0].schedule.dealt(tuple([stage.data_parallel for stage in stages]))
        every = workload.global_batch_size // plans[0].microbatch_size
        stages = tuple([replace(stage, schedule=schedule, microbatches=every) for stage in stages])
    return replace(stages[0], stages=stages)


def _takes_messages_in_turn(schedule: Schedule) -> bool:
    """Whether messages are what the framework says: runtimes of split, two-way, sliced, eager or asynchronous schedules post their
    receives ahead."""
    ahead = schedule.splits_backward or schedule.slices or schedule.sends_ahead
    return not ahead and schedule.replicas == 1 and schedule.flush
