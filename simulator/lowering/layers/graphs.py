"""CUDA graphs: which operators the host starts one by one, which by a graph of a part of a layer, which by one of the whole step.

A graph replays kernels that were recorded once, so the host dispatches and launches none of them; shapes, addresses and order
are fixed.  Megatron-Core's values (--cuda-graph-impl, --cuda-graph-scope):

    full_iteration      forward and backward of a step, one graph; the optimizer is outside
    attn                a layer up to its attention's residual
    mlp                 the rest of a dense layer
    moe_router          of a layer with experts: norm, router and choice; shared experts too
    moe_preprocess      the counts of rows per expert; the host still waits for them
    moe                 the rest of a layer with experts, where all sizes are fixed

Sources: NVIDIA/Megatron-LM pull request 1917 (what each scope captures); NVIDIA-NeMo/Megatron-Bridge,
skills/nemo-mbridge-perf-cuda-graphs/card.yaml (constraints).
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.errors import PlanError, refuse
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.plan.values import WHOLE_STEP
from simulator.program.program import EAGER, IN_LAYER_GRAPH, IN_STEP_GRAPH, Tensor
from simulator.workload.graph import Op
from simulator.workload.layer_kind import layer_kind
from simulator.workload.workload import Workload

__all__ = ["STASH", "graph_inputs", "graphs_of", "started_by"]

_OF_EXPERTS = ("moe", "moe_router", "moe_preprocess")
"""Parts of a layer with experts."""
STASH = 1.2
"""Room for the rows of experts that a whole step's graph keeps for backward, over their mean: the number of rows is not known when
it is recorded (NVIDIA-NeMo/Megatron-Bridge, set_full_iter_cg_configs: moe_paged_stash_buffer_size_factor_cuda = 1.2)."""


def graphs_of(workload: Workload, plan: Plan, framework: Framework, recompute: str) -> tuple[str, ...]:
    """Return the scopes of CUDA graphs: the plan's, or the framework's habit where the plan allows it.

    Args:
        recompute: what is recomputed: none, selective, operators or full.

    Raises:
        PlanError: the plan's graphs cannot be, or capture nothing.
    """
    if plan.cuda_graphs is not None:
        wanted = _scopes(plan.cuda_graphs)
        _check(wanted, workload, plan, framework, recompute)
        return wanted
    habit = _scopes(framework.cuda_graphs)
    try:
        _check(habit, workload, plan, framework, recompute)
    except PlanError:
        return ()
    return habit


def started_by(op: Op, scopes: tuple[str, ...], in_layer: bool) -> int:
    """Return what starts an operation: the host (EAGER), a graph of its part of the layer, or one of the whole step.

    Args:
        in_layer: whether it is a layer's, not one of the embedding's or the head's.
    """
    if WHOLE_STEP in scopes or not scopes or not in_layer:
        return IN_STEP_GRAPH if WHOLE_STEP in scopes else EAGER
    inside = op.captured in scopes or ("moe" in scopes and op.captured in _OF_EXPERTS)
    return IN_LAYER_GRAPH if inside else EAGER


def graph_inputs(rows: float, starts: Iterable[int], input_bytes: float) -> tuple[Tensor, ...]:
    """Return what graphs keep per microbatch and layer beside the tensors kept for backward.

    A graph of a part of a layer reads a copy of its input at a fixed address; one of the whole step keeps room for more rows of
    experts than come on average.

    Args:
        rows: bytes kept of the rows of experts.
        starts: what starts the layer's operators.
    """
    kinds = set(starts)
    if IN_LAYER_GRAPH in kinds:
        return (Tensor(name="inputs of CUDA graphs", category="activations", bytes=input_bytes),)
    if IN_STEP_GRAPH in kinds and rows:
        return (Tensor(name="room for rows of experts", category="activations", bytes=(STASH - 1.0) * rows),)
    return ()


def _scopes(value: str | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(value, str):
        return () if value == "none" else (value,)
    return tuple(dict.fromkeys(value))


def _check(scopes: tuple[str, ...], workload: Workload, plan: Plan, framework: Framework, recompute: str) -> None:
    if not scopes:
        return

    said = f"cuda_graphs = {list(scopes)}"
    for name in ("optimizer_offload", "activation_offload", "parameter_offload"):
        if getattr(plan, name):
            refuse(
                "a CUDA graph replays kernels at fixed addresses, and what lives on the host has none",
                f"{said} and {name} = {getattr(plan, name)}",
                f"leave {name} out, or cuda_graphs = 'none'",
            )
    if WHOLE_STEP not in scopes:
        _check_parts(scopes, workload, plan, recompute, said)
    elif workload.model.experts and not _fixed_sizes(workload, plan, framework):
        refuse(
            "a graph of the whole step needs kernels that take the number of rows of each expert from the GPU: a capacity_factor, or "
            "HybridEP and grouped products that do",
            f"{said}, capacity_factor = 0 and framework {framework.name!r} tells the host",
            "cuda_graphs = ['attn', 'moe_router', 'moe_preprocess'], or framework = 'megatron_bridge_26_06' with "
            "expert_exchange = 'once_per_node'",
        )


def _fixed_sizes(workload: Workload, plan: Plan, framework: Framework) -> bool:
    """Whether no kernel's size depends on what the router chose, or kernels learn it on the GPU."""
    exchange = plan.expert_exchange or framework.expert_exchange
    on_gpu = framework.fuses_experts and (plan.expert_parallel == 1 or exchange == "once_per_node")
    return bool(workload.model.capacity_factor) or on_gpu


def _check_parts(scopes: tuple[str, ...], workload: Workload, plan: Plan, recompute: str, said: str) -> None:
    """Rules of graphs of parts of a layer."""
    model = workload.model
    sparse = bool(model.experts)
    dense = not sparse or any(layer_kind(kind).mlp != "moe" for kind in model.layer_kinds)
    if not sparse and (inside := [s for s in scopes if s in _OF_EXPERTS]):
        refuse(f"{inside[0]!r} is a part of layers with experts", f"model {model.name!r} is dense", "['attn', 'mlp']")
    if "mlp" in scopes and not dense:
        refuse("'mlp' is a part of dense layers", f"all layers of model {model.name!r} have experts", "leave it out")
    if "moe" in scopes and "moe_router" in scopes:
        refuse("'moe' holds what 'moe_router' captures", said, "one of the two")
    if "moe_preprocess" in scopes and "moe_router" not in scopes:
        refuse("'moe_preprocess' follows 'moe_router' in one graph", said, "name both")
    if "moe" in scopes and not model.capacity_factor:
        refuse(
            "experts in a graph need rows of fixed number",
            f"{said} and model.capacity_factor = 0: all rows sent to an expert are taken",
            "['moe_router', 'moe_preprocess'], or a model.capacity_factor",
        )
    if recompute in ("full", "policy"):
        refuse(
            "graphs of parts of layers cannot run again under full recompute",
            f"{said} and recompute = {recompute!r}",
            "recompute = 'selective', or cuda_graphs = 'full_iteration'",
        )
    if "moe_router" in scopes and "moe" in (plan.recompute_modules or ()):
        refuse(
            "a module that runs again lies whole inside a graph or whole outside",
            f"{said} and recompute_modules = {list(plan.recompute_modules or ())}",
            "leave 'moe' out of recompute_modules",
        )
    if workload.document_length is not None:
        refuse(
            "graphs of parts of layers take tensors alone, not the limits of packed documents",
            f"{said} and document_length = {workload.document_length}",
            "cuda_graphs = 'full_iteration', or leave document_length out",
        )
