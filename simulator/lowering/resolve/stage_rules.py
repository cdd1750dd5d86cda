"""Plans whose pipeline stages have ranks of their own: each stage is that of a plan of equal stages as wide as it is.

    stages 9, 5, 1, 1; microbatches of 45     stage 0 as in data_parallel 9, microbatch_size 5
                                              stage 1 as in data_parallel 5, microbatch_size 9, ...

So a stage keeps all rules of a plan.  What stands here is what the stages must have in common, and what stages of unequal widths cannot do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from simulator.errors import PlanError, refuse
from simulator.options.option import chosen, declared
from simulator.partition.strategies import STRATEGIES
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.plan.stages import Stage
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule
from simulator.workload.workload import Workload

__all__ = ["schedule_of", "stage_plans"]


class _Rule(NamedTuple):
    """A refusal of stages with ranks of their own: when, the rule, what to look at and the way out."""

    broken: Callable[[Plan, Workload, Schedule], bool]
    rule: str
    values: str
    way: str


_RULES = (
    _Rule(
        lambda plan, workload, schedule: len(plan.stages or ()) < 2,
        "stages are those of a pipeline, two or more",
        "stages has {count}",
        "leave stages out, or give each stage its ranks",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.pipeline_parallel != len(plan.stages or ()),
        "a pipeline has as many ranks as it has stages",
        "pipeline_parallel = {plan.pipeline_parallel} and stages has {count}",
        "pipeline_parallel = {count}, or leave it out",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.data_parallel is not None,
        "a stage has as many data-parallel ranks as its tensor-parallel ones leave of its ranks",
        "data_parallel = {plan.data_parallel} beside stages",
        "leave data_parallel out",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.context_parallel > 1,
        "stages of unequal widths hand whole sequences on",
        "context_parallel = {plan.context_parallel} beside stages",
        "context_parallel = 1, or leave stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.rank_order is not None,
        "stages lie one after another, in each its tensor-parallel ranks side by side",
        "rank_order = {plan.rank_order} beside stages",
        "leave rank_order out",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.chunks_per_rank > 1 or schedule.replicas > 1,
        "a stage with ranks of its own holds one chunk of layers, once",
        "schedule = {schedule.name!r} with chunks_per_rank = {plan.chunks_per_rank}",
        "schedule = 'one_f_one_b' and chunks_per_rank = 1, or leave stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: not (schedule.flush or schedule.deals),
        "stages that split a microbatch wait for all of it, and end a step together",
        "schedule = {schedule.name!r} never flushes",
        "schedule = 'one_f_one_b' or 'pipedream', or leave stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: schedule.deals and plan.zero_stage > 0,
        "replicas that take microbatches in turn each keep all states of their stage",
        "zero_stage = {plan.zero_stage} and schedule = {schedule.name!r}",
        "zero_stage = 0, or schedule = 'one_f_one_b'",
    ),
    _Rule(
        lambda plan, workload, schedule: schedule.deals and plan.expert_parallel > 1,
        "replicas that take microbatches in turn share no experts, whose tokens would come at one time",
        "expert_parallel = {plan.expert_parallel} and schedule = {schedule.name!r}",
        "expert_parallel = 1, or schedule = 'one_f_one_b'",
    ),
    _Rule(
        lambda plan, workload, schedule: schedule.deals and plan.p2p == "blocking",
        "replicas that take microbatches in turn receive from whoever has the next one, ahead of time",
        "p2p = 'blocking' and schedule = {schedule.name!r}",
        "leave p2p out, or schedule = 'one_f_one_b'",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.registers is not None,
        "registers are between one rank and the next, and stages of unequal widths send parts of a message to several",
        "registers = {plan.registers} beside stages",
        "leave registers or stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: schedule.deals and workload.numbers.shares_maxima,
        "replicas that take microbatches in turn share no maxima of numbers in 8 bits",
        "precision = {workload.precision!r} and schedule = {schedule.name!r}",
        "precision = 'bf16', or schedule = 'one_f_one_b'",
    ),
    _Rule(
        lambda plan, workload, schedule: (
            schedule.deals and _shares_table(workload) and any(_width(plan, stage) > 1 for stage in plan.stages or ())
        ),
        "replicas that take microbatches in turn change their own stage's weights alone",
        "model {workload.model.name!r} uses one table in several stages, and stages have {widths} replicas",
        "a model with tied_embeddings = false, or schedule = 'one_f_one_b'",
    ),
    _Rule(
        lambda plan, workload, schedule: (
            chosen(plan, load_framework(plan.framework), "gradient_exchange") != "all_reduce"
        ),
        "replicas of a stage with ranks of its own add their gradients in every step",
        "gradient_exchange = {exchange!r} beside stages",
        "gradient_exchange = 'all_reduce', or leave stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.recompute_layers == "auto",
        "as many layers at a time as need least memory are counted over stages of one width",
        "recompute_layers = 'auto' beside stages",
        "recompute_layers = a number, or leave stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: len(STRATEGIES.get(plan.layout).axes) > 1,
        "stages hand rows on whose parts lie side by side, on one axis of tensor parallelism",
        "layout = {plan.layout!r} beside stages",
        "layout = 'megatron', or leave stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: any(s.ranks % tensor_of(plan, s) for s in plan.stages or ()),
        "the ranks of a stage are a multiple of its tensor_parallel",
        "stages of {ranks} ranks with tensor_parallel {tensor}",
        "ranks = a multiple, or another tensor_parallel",
    ),
    _Rule(
        lambda plan, workload, schedule: (
            not schedule.deals and any(plan.microbatch_size % _width(plan, s) for s in plan.stages or ())
        ),
        "every stage splits the sequences of a microbatch over its data-parallel ranks",
        "microbatch_size = {plan.microbatch_size} over {widths} ranks",
        "microbatch_size = {near}",
    ),
    _Rule(
        lambda plan, workload, schedule: len({s.layers is None for s in plan.stages or ()}) > 1,
        "the layers of all stages are given, or of none",
        "layers of stages: {layers}",
        "layers for every stage, or layer_split",
    ),
    _Rule(
        lambda plan, workload, schedule: plan.layer_split is not None and _layers(plan) not in (None, plan.layer_split),
        "layers are dealt out in one place",
        "layer_split = {plan.layer_split} and layers of stages: {layers}",
        "leave layer_split or the layers of stages out",
    ),
    _Rule(
        lambda plan, workload, schedule: (
            _shares_table(workload) and _unequal_ends(plan, every=workload.decoder_length > 0)
        ),
        "ranks of several stages add the gradients of one table of the vocabulary, each with one of every other stage",
        "model {workload.model.name!r} uses its table in its first and last stage, and stages have {ends} (tensor_parallel x "
        "data_parallel)",
        "stages of equal widths where the table is, or a model with tied_embeddings = false",
    ),
)


def tensor_of(plan: Plan, stage: Stage) -> int:
    """Return the tensor-parallel ranks of a stage."""
    return stage.tensor_parallel or plan.tensor_parallel


def _width(plan: Plan, stage: Stage) -> int:
    """Its data-parallel ranks."""
    return max(1, stage.ranks // tensor_of(plan, stage))


def _layers(plan: Plan) -> tuple[int, ...] | None:
    """What the stages say of their layers."""
    found = [stage.layers for stage in plan.stages or ()]
    return tuple(n for n in found if n is not None) or None


def _in_proportion(layers: int, ranks: list[int]) -> tuple[int, ...] | None:
    """Layers of stages by their ranks; None where all have as many, or one would have no layer: they are dealt out as ever.

    >>> _in_proportion(32, [8, 16]), _in_proportion(12, [2, 1, 1]), _in_proportion(12, [4, 4])
    ((11, 21), (6, 3, 3), None)
    """
    ends = [round(layers * total / sum(ranks)) for total in itertools.accumulate(ranks)]
    found = tuple([end - start for start, end in zip([0, *ends], ends, strict=False)])
    return found if len({*ranks}) > 1 and min(found) > 0 else None


def _shares_table(workload: Workload) -> bool:
    """Whether several stages use one table of the vocabulary."""
    model = workload.model
    return (model.tied_embeddings or model.mtp_layers > 0) and not model.lora_rank


def _unequal_ends(plan: Plan, every: bool) -> bool:
    """Whether the first and the last stage, or any two, are of unequal widths."""
    widths = [(tensor_of(plan, stage), stage.ranks) for stage in plan.stages or ()]
    return len({*widths} if every else {widths[0], widths[-1]}) > 1


def schedule_of(plan: Plan) -> Schedule:
    """Return the schedule of a plan, or the usual one."""
    return SCHEDULES.get(plan.schedule or ("interleaved_1f1b" if plan.chunks_per_rank > 1 else "one_f_one_b"))


def stage_plans(workload: Workload, plan: Plan, world_size: int, cluster_name: str) -> tuple[Plan, ...]:
    """Return, of every stage, the plan of equal stages that are as wide.

    A choice that has no effect in a narrow stage (sequence_parallel where one rank has whole layers) is that of the others.

    Raises:
        PlanError: the ranks are not those of the cluster, or stages cannot be so.
    """
    stages, schedule = plan.stages or (), schedule_of(plan)
    widths = [(tensor_of(plan, stage), _width(plan, stage)) for stage in stages]
    words = {
        "plan": plan,
        "workload": workload,
        "schedule": schedule,
        "exchange": chosen(plan, load_framework(plan.framework), "gradient_exchange"),
        "count": len(stages),
        "ranks": _listed(stage.ranks for stage in stages),
        "tensor": _listed(t for t, _ in widths),
        "widths": _listed(d for _, d in widths),
        "layers": _listed("not given" if stage.layers is None else stage.layers for stage in stages),
        "near": math.lcm(*(d for _, d in widths)),
        "ends": _listed(f"{t} x {d}" for t, d in widths),
    }
    for one in _RULES:
        if one.broken(plan, workload, schedule):
            refuse(one.rule, one.values.format(**words), one.way.format(**words))
    total = sum(stage.ranks for stage in stages)
    if total != world_size:
        raise PlanError(
            f"the ranks of all stages must add up to the world size, but {words['ranks']} make {total} and {cluster_name} has {world_size} "
            f"GPUs. Way out: cluster.gpus = {total}, or other stages."
        )
    most_tensor, most_data = (max(some) for some in zip(*widths, strict=True))
    split = _layers(plan) or plan.layer_split or _in_proportion(workload.model.depth, [s.ranks for s in stages])
    found = []
    for stage, (tensor, data) in zip(stages, widths, strict=True):
        idle = {"tensor_parallel"} if tensor == 1 < most_tensor else set()
        idle |= {"copies", "replicas", "zero_stage"} if data == 1 < most_data else set()
        own = {"recompute": stage.recompute} if stage.recompute is not None else {}
        found.append(
            plan.model_copy(
                update={
                    **_without_effect(idle),
                    "stages": None,
                    "tensor_parallel": tensor,
                    "data_parallel": data,
                    "microbatch_size": plan.microbatch_size // (1 if schedule.deals else data),
                    "layer_split": split,
                    **own,
                }
            )
        )
    return tuple(found)


def _listed(values: object) -> str:
    return ", ".join(map(str, values))  # type: ignore[call-overload]


def _without_effect(idle: set[str]) -> dict[str, object]:
    """The choices that need what a stage has one of, and those that need these, as if not chosen."""
    found: dict[str, object] = {}
    while more := {
        name: option.default
        for name, option in declared(Plan).items()
        if name not in found
        and (name in idle or any(need.of in {*idle, *found} and not need.when for need in option.needs))
    }:
        found |= more
    return found
