"""What the rules of a plan ask for: facts that follow from it, each made when it is first asked for, and the rules in their order.

A rule is a function of facts alone, so that what decides over a plan can be told: the fields that its facts are made of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from simulator.errors import PlanError, SimulatorError
from simulator.lowering.exchanges import EXCHANGES
from simulator.lowering.exchanges.base import GradientExchange
from simulator.lowering.layers.graphs import graphs_of
from simulator.lowering.layers.recompute import Recompute
from simulator.lowering.resolve.asynchronous_rules import UNROLLED, check_asynchronous, post_validation
from simulator.lowering.resolve.context_rules import check_context, with_ring
from simulator.lowering.resolve.deal_rules import dealt_layers
from simulator.lowering.resolve.degrees import count_microbatches, count_replicas
from simulator.lowering.resolve.effect_rules import check_effects
from simulator.lowering.resolve.exchange_rules import check_exchange, check_one_process, check_servers_of_code
from simulator.lowering.resolve.expert_rules import BY_MASKS, Groups, check_experts, expert_loop, with_experts
from simulator.lowering.resolve.head_rules import with_shared_heads
from simulator.lowering.resolve.mesh_rules import check_mesh, with_tensor_mesh
from simulator.lowering.resolve.model_rules import check_model
from simulator.lowering.resolve.network_rules import check_network
from simulator.lowering.resolve.offload_rules import check_adapters, check_offload
from simulator.lowering.resolve.plan_rules import check_reduce_dtype
from simulator.lowering.resolve.recompute_rules import resolve_recompute
from simulator.lowering.resolve.shape_rules import check_shapes
from simulator.lowering.resolve.shard_rules import check_shards, check_units, with_shards
from simulator.lowering.resolve.stage_rules import schedule_of
from simulator.lowering.resolve.workload_rules import (
    check_chunks,
    check_documents,
    check_gates,
    check_loss,
    check_optimizer,
)
from simulator.options.option import chosen
from simulator.partition.compose import compose
from simulator.partition.layout import Layout
from simulator.partition.strategies.base import TENSOR
from simulator.plan.framework import Framework, load_framework
from simulator.plan.plan import Plan
from simulator.plan.values import AXES
from simulator.remembered import kept
from simulator.schedules.base import Schedule, Shape
from simulator.workload.blocks.one_hot import GROUP_SIZE
from simulator.workload.graph import Dim
from simulator.workload.operator import KernelStyle
from simulator.workload.workload import Workload

__all__ = ["RULES", "Facts"]

MOST_ACTIONS = 5_000_000
"""A step with more pipeline actions than this is refused: it would need gigabytes."""


class Facts:
    """What follows from a plan.  Making one may break a rule, too.

    Args:
        workload, plan: of which.
        world_size: GPUs of the job.
        cluster_name: for messages.
        tries: whether degrees that a refusal names are tried before (in milliseconds each); else they divide the world alone.
    """

    def __init__(self, workload: Workload, plan: Plan, world_size: int, cluster_name: str, tries: bool = False) -> None:
        self.workload, self.plan, self.world_size, self.cluster_name = workload, plan, world_size, cluster_name
        self.tries = tries

    @kept
    def framework(self) -> Framework:
        """The profile of the code."""
        return load_framework(self.plan.framework)

    @kept
    def replicas(self) -> int:
        """Data-parallel ones."""
        return count_replicas(self.plan, self.world_size, self.cluster_name, self._works if self.tries else None)

    def _works(self, plan: Plan) -> bool:
        """Whether another plan of the same work breaks no rule."""
        other = Facts(self.workload, plan, self.world_size, self.cluster_name)
        try:
            for rule in RULES:
                rule(other)
        except SimulatorError:
            return False
        return True

    @property
    def ranks(self) -> int:
        """Ranks that hold the same weights."""
        return self.replicas * self.plan.context_parallel

    @kept
    def exchanges(self) -> GradientExchange:
        """What replicas exchange, and when."""
        return EXCHANGES.get(chosen(self.plan, self.framework, "gradient_exchange"))

    @kept
    def exchange(self) -> str:
        """How tokens reach their experts."""
        if self._masks_by_sequence and self.plan.expert_exchange is None:
            return BY_MASKS
        return str(chosen(self.plan, self.framework, "expert_exchange"))

    @property
    def _masks_by_sequence(self) -> bool:
        """Whether the code dispatches by masks over a sequence, as it does where experts drop rows."""
        return self.framework.masks_by_sequence and self.workload.model.capacity_factor > 0

    @kept
    def expert_group(self) -> int:
        """Tokens that one-hot masks dispatch together, at most; 0 without masks."""
        if self.exchange != BY_MASKS:
            return 0
        return self.plan.expert_group_size or (self.workload.sequence_length if self._masks_by_sequence else GROUP_SIZE)

    @kept
    def microbatches(self) -> int:
        """Of a step, on each replica."""
        return count_microbatches(self.workload, self.plan, self.replicas)

    @kept
    def schedule(self) -> Schedule:
        """The one named, or the usual one."""
        return schedule_of(self.plan)

    @kept
    def chunks(self) -> int:
        """Of the pipeline, of layers."""
        return self.plan.pipeline_parallel * self.schedule.held(self.plan.chunks_per_rank)

    @kept
    def layer_split(self) -> tuple[int, ...] | None:
        """Layers per chunk, where they are not as even as can be."""
        first = next(iter(self.plan.replica_layer_splits or ()), None)
        return self.plan.layer_split or first or dealt_layers(self.workload.model, self.framework, self.chunks)

    @kept
    def shape(self) -> Shape:
        """What the schedule sees."""
        return Shape(self.plan.pipeline_parallel, self.microbatches, self.plan.chunks_per_rank)

    @kept
    def layout(self) -> Layout:
        """Which dimension lies on which ranks."""
        plan = self.plan
        return compose(
            plan.layout,
            plan.tensor_parallel,
            plan.sequence_parallel,
            plan.expert_parallel,
            plan.expert_tensor_parallel or plan.tensor_parallel,
            plan.expert_imbalance,
            plan.tensor_mesh,
            self.framework.pads_sequences,
        )

    @kept
    def divides_vocabulary(self) -> bool:
        """Whether ranks have a part of the vocabulary each."""
        return bool(self.layout.along((Dim("vocabulary", self.workload.model.vocabulary),)))

    @kept
    def style(self) -> KernelStyle:
        """The kernels of the code, with what the plan says of them."""
        plan, framework, numbers = self.plan, self.framework, self.workload.numbers
        said = functools.partial(chosen, plan, framework)
        gathers = not said("vocabulary_parallel_loss") and self.divides_vocabulary
        resolved = {
            "attention": said("attention"),
            "dropout": said("dropout"),
            "narrow_gate_input": plan.narrow_gate_input,
            "gathers_logits": gathers,
            "splits_logits": self.divides_vocabulary and self.layout.tensor_ranks > 1 and not gathers,
            "fused_cross_entropy": said("fused_cross_entropy"),
            "fused_wgrad_accumulation": said("gradient_accumulation_fusion"),
            "loss_chunks": plan.loss_chunks or 1,
            "expert_group": self.expert_group,
            "expert_loop": expert_loop(plan, framework, self.exchange),
            "fuses_permute": said("expert_permute_fusion"),
            "divides_checkpoints": said("partition_activations"),
            # masks have the router's weights
            "weights_in_experts": framework.weights_in_experts and not self.expert_group,
            "fuses_experts": framework.fuses_experts and numbers.micro_scaled,
            # weights and gradients are fp32, as autocast has them
            "autocast": self.gradient == "fp32" and numbers.master_weights and framework.autocast,
            # on several tensor axes gathered operands are the layout's own affair
            "keeps_gathered_inputs": framework.keeps_gathered_inputs and len(self.layout.tensor) <= 1,
        }
        return _style(framework, tuple(resolved.items()))

    @kept
    def recomputes(self) -> Recompute:
        """What is computed again."""
        return resolve_recompute(self.workload, self.plan, self.framework, self.schedule, self.chunks, self.layer_split)

    @kept
    def post_validates(self) -> bool:
        """Whether every rank ends its steps on its own."""
        return post_validation(self.plan, self.framework, self.schedule)

    @kept
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Mesh axes before experts, shards and layouts cut them."""
        return tuple((axis, _size(self.plan, axis, self.replicas)) for axis in _rank_order(self.plan))

    @kept
    def with_experts(self) -> tuple[tuple[tuple[str, int], ...], Groups]:
        """Mesh axes and groups, experts dealt out."""
        return with_experts(self.sizes, self.plan, self.workload.model.experts > 0)

    @kept
    def mesh(self) -> tuple[tuple[tuple[str, int], ...], Groups]:
        """Mesh axes and the groups along them."""
        plan, layout = self.plan, self.layout
        axes, groups = with_shards(*with_ring(*self.with_experts, plan), plan, self.ranks)
        keys = Dim("kv_heads", self.workload.model.kv_heads, serves="heads")
        axes, groups = with_tensor_mesh(axes, groups, layout)
        return with_shared_heads(axes, groups, plan, layout.shared((keys,), TENSOR))

    @kept
    def gradient(self) -> str:
        """Number format of the gradient buffers."""
        found = str(chosen(self.plan, self.framework, "gradient_dtype"))
        numbers = self.workload.numbers
        if found == "compute" or not numbers.master_weights:
            return numbers.compute
        return "fp32" if _keeps_wide_gradients(self.framework, self.plan) else found

    @kept
    def graphs(self) -> tuple[str, ...]:
        """What CUDA graphs start."""
        return graphs_of(self.workload, self.plan, self.framework, self.recomputes.kind)


def _check_schedule(facts: Facts) -> None:
    plan, shape = facts.plan, facts.shape
    facts.schedule.check(shape)
    plan.check_needs("pipeline_parallel", "schedule")
    plan.check_needs("turns", "schedule", "optimizer_in_backward", turns=facts.microbatches * plan.pipeline_parallel)


def _check_flush(facts: Facts) -> None:
    if not facts.schedule.flush:
        check_asynchronous(facts.plan, facts.schedule)


def _check_chunks(facts: Facts) -> None:
    plan, model = facts.plan, facts.workload.model
    per_rank = facts.schedule.held(plan.chunks_per_rank)
    depth = model.depth
    if depth < facts.chunks and plan.layer_split is None and plan.replica_layer_splits is None:
        raise PlanError(
            f"every chunk needs a layer, but pipeline_parallel x chunks_per_rank = {plan.pipeline_parallel} x "
            f"{per_rank} = {facts.chunks} and model "
            f"{model.name!r} has {depth} layers. Nearest: pipeline_parallel = {max(1, depth // per_rank)}."
        )


def _check_actions(facts: Facts) -> None:
    plan, microbatches = facts.plan, facts.microbatches
    apart = facts.post_validates or facts.exchanges.on_servers
    steps = UNROLLED if apart else facts.schedule.steps(facts.shape)
    actions = 2 * microbatches * plan.pipeline_parallel * plan.chunks_per_rank * steps
    if actions > MOST_ACTIONS:
        raise PlanError(
            f"a step may have at most {MOST_ACTIONS} pipeline actions, but {microbatches} microbatches on "
            f"{plan.pipeline_parallel} x {plan.chunks_per_rank} chunks make {actions}. Way out: a larger microbatch_size, "
            "more data_parallel or a smaller global_batch_size."
        )


RULES: tuple[Callable[[Facts], object], ...] = (
    lambda facts: facts.framework,
    lambda facts: facts.replicas,
    lambda facts: check_network(facts.workload, facts.plan, facts.schedule),
    lambda facts: check_shapes(facts.workload, facts.plan, facts.framework.pads_sequences),
    lambda facts: check_mesh(facts.workload, facts.plan),
    lambda facts: check_experts(facts.workload.model, facts.plan, facts.exchange),
    lambda facts: facts.microbatches,
    _check_schedule,
    lambda facts: check_units(facts.workload, facts.plan, facts.microbatches),
    lambda facts: check_offload(facts.plan),
    lambda facts: check_adapters(facts.workload, facts.plan, facts.exchanges),
    lambda facts: check_optimizer(facts.workload, facts.plan, facts.style.autocast, facts.exchanges.on_servers),
    lambda facts: check_loss(facts.plan, facts.style),
    lambda facts: check_gates(facts.workload, facts.plan, facts.style),
    lambda facts: check_context(facts.workload.model, facts.plan, facts.style.attention),
    lambda facts: check_documents(facts.workload, facts.style, facts.schedule),
    lambda facts: check_chunks(facts.workload, facts.plan, facts.style),
    lambda facts: facts.recomputes,
    lambda facts: check_shards(facts.workload, facts.plan, facts.ranks, facts.schedule.replicas),
    lambda facts: check_effects(facts.plan, facts.framework, facts.ranks, facts.schedule),
    _check_flush,
    _check_chunks,
    lambda facts: check_model(facts.workload, facts.plan, facts.schedule, facts.framework.pads_sequences),
    lambda facts: facts.post_validates,
    lambda facts: check_exchange(
        facts.workload, facts.plan, facts.exchanges, facts.ranks, facts.schedule, facts.post_validates
    ),
    lambda facts: check_one_process(facts.plan, facts.framework, facts.exchanges, facts.ranks, facts.microbatches),
    lambda facts: check_servers_of_code(facts.plan, facts.framework, facts.exchanges, facts.ranks),
    _check_actions,
    lambda facts: facts.plan.check_needs("axes", "rank_order", axes=sum(size > 1 for _, size in facts.sizes)),
    lambda facts: facts.with_experts,
    lambda facts: facts.mesh,
    lambda facts: facts.plan.check_needs(
        "precision.master_weights", "gradient_dtype", "splits_master_weights", precision=facts.workload.numbers
    ),
    lambda facts: facts.plan.check_needs(
        "precision.loss_scaling", "optimizer_in_backward", precision=facts.workload.numbers
    ),
    lambda facts: check_reduce_dtype(facts.plan, facts.gradient, facts.ranks * facts.schedule.replicas),
    lambda facts: facts.graphs,
)
"""In the order in which a plan that breaks several is told; each raises a `PlanError`, as making its facts may."""


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


@functools.lru_cache(maxsize=256)
def _style(framework: Framework, resolved: tuple[tuple[str, Any], ...]) -> KernelStyle:
    """The kernels of a framework's profile, which has a key for every field of the style that is not `resolved` here."""
    said = dict(resolved)
    return KernelStyle(
        **said, **{f.name: getattr(framework, f.name) for f in fields(KernelStyle) if f.name not in said}
    )
