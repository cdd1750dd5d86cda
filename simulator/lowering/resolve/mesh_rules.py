"""Layouts on meshes of several axes: what they need of model and plan, and the axes of the program that the tensor-parallel ranks become.

    tensor_parallel 16, tensor_mesh [4, 4]        tp 16 becomes cols 4 (consecutive ranks), rows 4
    tensor_parallel 8, tensor_mesh [2, 2, 2]      cols 2, rows 2, depth 2

Time on all of them is counted under tp.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.errors import PlanError, refuse
from simulator.lowering.resolve.degrees import nearest_divisor
from simulator.lowering.resolve.expert_rules import Groups
from simulator.partition.compose import compose
from simulator.partition.layout import Layout
from simulator.partition.strategies.meshes import COLS, DEPTH, ROWS
from simulator.plan.plan import Plan
from simulator.program.program import Axes
from simulator.workload.graph import Dim
from simulator.workload.workload import Workload

__all__ = ["MESH_AXES", "check_mesh", "with_tensor_mesh"]

MESH_AXES = (COLS, ROWS, DEPTH)
"""Axes of the program into which that of tensor parallelism may be cut."""


def check_mesh(workload: Workload, plan: Plan) -> None:
    """Refuse a shape that the layout does not have, sizes that it does not divide, and layers that it does not lay out.

    Raises:
        PlanError: with the rule, the values and the nearest that works.
    """
    layout = compose(plan.layout, plan.tensor_parallel, plan.sequence_parallel, shape=plan.tensor_mesh)
    if len(layout.tensor) == 1 or plan.tensor_parallel == 1:
        return
    model, sizes = workload.model, dict(layout.mesh)
    has = {
        "experts": model.experts > 0,
        f"{model.attention} attention": model.attention != "standard",
        "mixers that carry a state": any(mixer in ("mamba2", "delta") for mixer in model.mixers)
        or model.architecture == "mamba",
        "multi-token prediction": model.mtp_layers > 0,
    }
    for what in (name for name, there in has.items() if there):
        refuse(
            f"layout {plan.layout!r} lays out embedding, attention, MLP, norms and output, but no {what}",
            f"model {model.name!r} has {what}",
            "layout = 'megatron'",
        )
    if plan.context_parallel > 1:
        refuse(
            f"layout {plan.layout!r} keeps whole sequences on each rank of its mesh",
            f"context_parallel = {plan.context_parallel}",
            "context_parallel = 1, or layout = 'megatron'",
        )
    wide = (("heads", model.heads), ("kv_heads", model.kv_heads), ("ffn", model.ffn), ("hidden", model.hidden))
    for name, size in wide:
        dim = Dim(name, size, "heads" if name == "kv_heads" else "")
        ranks = max([sizes[axis] for axis, d in layout.axes((dim,)).items() if d == dim], default=1)
        if size % ranks:
            axis = next(iter(layout.axes((dim,))))
            raise PlanError(
                f"layout {plan.layout!r} lays {name} on the {ranks} ranks of mesh axis {axis!r}, but {size} / {ranks} is no whole number "
                f"(model {model.name!r}). Nearest: {nearest_divisor(size, ranks)} ranks."
            )
    tokens = Dim("batch", plan.microbatch_size), Dim("sequence", 1)
    ways = max(
        int(layout.ways((*tokens, dim))) // int(layout.ways((dim,))) for dim in (Dim("hidden", 1), Dim("heads", 1))
    )
    if plan.microbatch_size % ways:
        near = max(1, round(plan.microbatch_size / ways)) * ways
        raise PlanError(
            f"layout {plan.layout!r} lays the sequences of a microbatch on {ways} ranks, which must have whole ones, but "
            f"{plan.microbatch_size} / {ways} is no whole number. Nearest: microbatch_size = {near}."
        )


def with_tensor_mesh(axes: Axes, groups: Groups, layout: Layout) -> tuple[Axes, Groups]:
    """Return the mesh axes and groups, "tp" cut into the axes of the layout where it has several.

    >>> layout = compose("summa_2d", 16)
    >>> with_tensor_mesh((("tp", 16), ("dp", 2)), Groups(), layout)[0]
    (('cols', 4), ('rows', 4), ('dp', 2))
    """
    if len(layout.tensor) == 1 or layout.tensor_ranks == 1:
        return axes, groups
    inner = tuple((axis, layout.ranks(axis)) for axis in layout.tensor)
    out = [each for axis, n in axes for each in (inner if axis == "tp" else ((axis, n),))]
    return tuple(out), replace(groups, tensor=layout.tensor)
