"""What replicas exchange: the member a plan names, what it takes, and what it cannot go with."""

from __future__ import annotations

from typing import Any

from simulator.errors import refuse
from simulator.lowering.exchanges import EXCHANGES
from simulator.lowering.exchanges.base import GradientExchange, Terms
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.schedules.base import Schedule
from simulator.workload.optimizers import OPTIMIZERS
from simulator.workload.precision import Precision
from simulator.workload.workload import Workload

__all__ = ["check_exchange", "check_one_process", "check_servers_of_code", "terms_of"]

_OPTIONS = {
    "exchange_every": "every",
    "exchange_warmup": "warmup",
    "exchange_bits": "bits",
    "exchange_parts": "parts",
    "exchange_rank": "rank",
    "exchange_servers": "servers",
    "exchange_priority": "priority",
    "exchange_staleness": "staleness",
}
"""Choice of a plan -> what `Terms` calls it."""
_OF_REDUCTIONS = ("overlap_gradients", "bucket_size", "reduce_gradients", "gradient_reduce_dtype")
_USUAL = "gradient_exchange = 'all_reduce'"


def terms_of(plan: Plan, exchange: GradientExchange, numbers: Precision, gradient_bytes: float, tokens: float) -> Terms:
    """Return what a plan says of its exchange, what it leaves open as the member has it."""
    said: dict[str, Any] = {
        _OPTIONS[name]: default if getattr(plan, name) is None else getattr(plan, name)
        for name, default in exchange.options.items()
    }
    master = numbers.master_weights
    return Terms(
        updated=4.0 if master else float(numbers.element),
        updated_dtype="fp32" if master else numbers.compute,
        rewritten=float(numbers.element) if master else 0.0,
        gradient=gradient_bytes,
        tokens=tokens,
        **said,
    )


def check_exchange(
    workload: Workload, plan: Plan, exchange: GradientExchange, replicas: int, schedule: Schedule, post_validates: bool
) -> None:
    """Refuse an exchange that could have no effect, or that the rest of the plan does not let be.

    Args:
        replicas: ranks that hold the same weights.
        post_validates: whether every rank ends its steps on its own.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    name = f"gradient_exchange = {exchange.name!r}"
    _check_options(plan, exchange)
    if plan.exchange_parts and plan.exchange_parts > (
        every := plan.exchange_every or exchange.options["exchange_every"] or 1
    ):
        refuse(
            "exchange_parts go in turn, each once in exchange_every steps, one in a step",
            f"exchange_parts = {plan.exchange_parts} and exchange_every = {every}",
            f"exchange_parts = {every:.0f}, or exchange_every = {plan.exchange_parts}",
        )
    if plan.replica_layer_splits is not None and not exchange.waves:
        refuse(
            "replicas that add up gradients have their layers on the same pipeline ranks",
            f"replica_layer_splits beside {name}",
            "layer_split, or gradient_exchange = 'wave_synchronous' and schedule = 'hetpipe'",
        )
    if exchange.usual:
        return
    if replicas == 1 and plan.gradient_exchange is None:
        return
    if replicas == 1:
        refuse("replicas exchange gradients or weights", f"data_parallel = 1 and {name}", "leave gradient_exchange out")
    if exchange.on_servers:
        _check_servers(plan, exchange, name)
    if exchange.waves:
        _check_waves(plan, name, replicas, schedule)
    elif not schedule.flush or schedule.replicas > 1 or post_validates:
        how = "post_validation = true" if post_validates else f"schedule = {schedule.name!r}"
        refuse(
            f"{name} stands around the update that ends a step of all ranks, of one copy of the model each",
            how,
            f"post_validation = false, or {_USUAL}" if post_validates else f"schedule = 'one_f_one_b', or {_USUAL}",
        )
    for field in ("optimizer_offload", "parameter_offload", "optimizer_in_backward"):
        if getattr(plan, field):
            refuse(
                f"{name} stands around an update of all weights on the GPU",
                f"{field} = {getattr(plan, field)}",
                f"leave {field} out, or {_USUAL}",
            )
    if exchange.optimizers and OPTIMIZERS.get(workload.optimizer).name not in exchange.optimizers:
        allowed = " or ".join(repr(one) for one in exchange.optimizers)
        refuse(
            f"{name} goes with the update of {allowed}",
            f"optimizer = {workload.optimizer!r}",
            f"optimizer = {exchange.optimizers[0]!r}, or {_USUAL}",
        )
    if exchange.whole and plan.zero_stage:
        refuse(
            f"with {name} no replica has a part of the states",
            f"zero_stage = {plan.zero_stage}",
            f"zero_stage = 0, or {_USUAL}",
        )
    if exchange.drifts:
        _check_drift(plan, name, replicas)


def check_servers_of_code(plan: Plan, framework: Framework, exchange: GradientExchange, replicas: int) -> None:
    """Refuse servers below a thread of a code that fuses gradients for a library's all_reduce.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if exchange.algorithm and framework.cycle_time and replicas > 1:
        refuse(
            "a thread that fuses what is ready hands it to an all_reduce, and servers take each gradient as it is made",
            f"gradient_exchange = {exchange.name!r} and framework = {framework.name!r}",
            f"framework = 'pytorch_ddp', or {_USUAL}",
        )


def check_one_process(
    plan: Plan, framework: Framework, exchange: GradientExchange, replicas: int, microbatches: int
) -> None:
    """Refuse one process for all GPUs where a code has one for each, and what such a code cannot split.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if exchange.one_process != EXCHANGES.get(framework.gradient_exchange).one_process:
        refuse(
            "one process launches the kernels of all GPUs, or each its own",
            f"gradient_exchange = {exchange.name!r} and framework = {framework.name!r}",
            f"gradient_exchange = {framework.gradient_exchange!r}, or framework = "
            + ("'torch_data_parallel'" if exchange.one_process else "'pytorch_ddp'"),
        )
    if not exchange.one_process or replicas == 1:
        return
    split = [f"{name}_parallel" for name in ("tensor", "context", "pipeline", "expert")]
    for field in (name for name in split if getattr(plan, name) > 1):
        refuse(
            f"gradient_exchange = {exchange.name!r} divides a batch over GPUs, each with the whole model",
            f"{field} = {getattr(plan, field)}",
            f"{field} = 1, or framework = 'pytorch_ddp'",
        )
    if microbatches > 1 or plan.loss_chunks:
        refuse(
            f"with gradient_exchange = {exchange.name!r} GPU 0 computes the loss of a whole batch at once",
            f"a step has {microbatches} microbatches" if microbatches > 1 else f"loss_chunks = {plan.loss_chunks}",
            "a smaller global_batch_size, or a larger microbatch_size" if microbatches > 1 else "leave loss_chunks out",
        )


def _check_options(plan: Plan, exchange: GradientExchange) -> None:
    """Refuse options of another exchange, and one that lacks its own."""
    for option in _OPTIONS:
        value = getattr(plan, option)
        if value is not None and option not in exchange.options:
            takers = [one.name for one in EXCHANGES if option in one.options]
            refuse(
                f"{option} is a choice of {' or '.join(takers)}",
                f"gradient_exchange = {exchange.name!r} ({option} = {value})",
                f"leave {option} out, or gradient_exchange = {takers[0]!r}",
            )
        if value is None and option in exchange.options and exchange.options[option] is None:
            refuse(
                f"gradient_exchange = {exchange.name!r} needs {option}", "it is not given", f"{option} = 8, for example"
            )


def _check_servers(plan: Plan, exchange: GradientExchange, name: str) -> None:
    """Where servers update: what a worker would need all gradients, or all other workers, for."""
    for field, value, why in (
        ("clip_gradients", True, "a layer is updated as its gradients come, before the norm of all is known"),
        ("overlap_gradients", False, "layers go to servers one by one, as their gradients are made"),
        ("overlap_gradients", "bubbles", "layers go to servers one by one, as their gradients are made"),
        ("bucket_size", plan.bucket_size, "layers go to servers one by one"),
        ("reduce_gradients", "microbatch", "servers update once per step"),
        ("zero_stage", plan.zero_stage or None, "servers keep the optimizer's states"),
    ):
        found = getattr(plan, field)
        if found is not None and found == value:
            refuse(f"with {name} {why}", f"{field} = {str(found).lower()}", f"leave {field} out, or {_USUAL}")
    if not exchange.stale:
        return
    if plan.exchange_servers == 0:
        refuse(
            "workers that do not wait for each other keep a pace of their own, which servers on their own machines would share",
            f"exchange_servers = 0 and {name}",
            "exchange_servers = 1 or more, or gradient_exchange = 'parameter_server'",
        )
    _check_apart(plan, name, "gradient_exchange = 'parameter_server'")


def _check_apart(plan: Plan, name: str, way: str) -> None:
    """Where replicas do not wait for each other: no ranks of several that do."""
    for field in ("context_parallel", "expert_parallel"):
        if getattr(plan, field) > 1:
            refuse(
                f"with {name} replicas do not wait for each other, and ranks that share sequences or experts do",
                f"{field} = {getattr(plan, field)}",
                f"{field} = 1, or {way}",
            )


def _check_waves(plan: Plan, name: str, replicas: int, schedule: Schedule) -> None:
    """Where replicas push what a wave changed: weights that change amid it, and no reductions of gradients."""
    if not schedule.updates_each_microbatch:
        refuse(
            f"with {name} a replica changes its own weights after every microbatch, and never flushes",
            f"schedule = {schedule.name!r}",
            f"schedule = 'hetpipe', or {_USUAL}",
        )
    _check_apart(plan, name, _USUAL)
    _check_no_reductions(plan, f"with {name} replicas add up no gradients", f"leave {{field}} out, or {_USUAL}")
    if plan.replica_layer_splits is not None and len(plan.replica_layer_splits) != replicas:
        refuse(
            "replica_layer_splits has the layers of each replica",
            f"{len(plan.replica_layer_splits)} of them and data_parallel = {replicas}",
            f"{replicas} of them, or layer_split for all",
        )
    if plan.replica_layer_splits is not None and plan.layer_split is not None:
        refuse(
            "layers are dealt out in one place",
            f"layer_split = {list(plan.layer_split)} and replica_layer_splits",
            "leave one of them out",
        )


def _check_drift(plan: Plan, name: str, replicas: int) -> None:
    """Of replicas that differ for some steps: who acts as one must add gradients in every step."""
    inside = plan.shard_size or 1
    if plan.zero_stage and (plan.shard_size is None or plan.shard_size == replicas):
        refuse(
            f"with {name} replicas differ, and ranks that share states do not",
            f"zero_stage = {plan.zero_stage} shards over all {replicas} of them",
            f"shard_size = ranks of one replica, zero_stage = 0, or {_USUAL}",
        )
    for field in ("context_parallel", "expert_parallel"):
        ranks = getattr(plan, field)
        if inside % ranks:
            refuse(
                f"with {name} replicas differ, and ranks that share sequences or experts do not",
                f"{field} = {ranks}, shard_size = {plan.shard_size or 'none'}",
                f"zero_stage = 1 and shard_size a multiple of {ranks}, or {_USUAL}",
            )
    if plan.shard_size is not None:
        return
    _check_no_reductions(
        plan,
        f"with {name} and no shard_size no step adds gradients",
        "leave {field} out, or zero_stage = 1 and shard_size",
    )


def _check_no_reductions(plan: Plan, rule: str, way: str) -> None:
    """Refuse choices of reductions where there are none; `way` names the `{field}`."""
    for field in _OF_REDUCTIONS:
        if getattr(plan, field) != type(plan).model_fields[field].default:
            refuse(rule, f"{field} = {getattr(plan, field)!r}", way.format(field=field))
