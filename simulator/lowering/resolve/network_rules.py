"""What networks of layers do not have: refused where it could have no effect, or has no kernels here."""

from __future__ import annotations

from simulator.errors import refuse
from simulator.plan.plan import Plan
from simulator.plan.values import WHOLE_STEP
from simulator.schedules.base import Schedule
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.network import Measured
from simulator.workload.workload import Workload

__all__ = ["check_network"]


def check_network(workload: Workload, plan: Plan, schedule: Schedule) -> None:
    """Refuse what a network of layers, such as a convolutional one, does not allow.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    model = workload.model
    if not model.network:
        return
    which = f"model {model.name!r} is a network of layers of images"
    for name in ("tensor_parallel", "context_parallel"):
        if getattr(plan, name) > 1:
            refuse(
                f"{name} divides the heads, widths or tokens of a transformer's layers",
                f"{name} = {getattr(plan, name)} and {which}",
                f"{name} = 1, with data_parallel and pipeline_parallel in its place; `dtsim layout` splits single layers",
            )
    if workload.sequence_length != model.sequence_length:
        refuse(
            "positions of an image that have a class each stand in the model's layers",
            f"sequence_length = {workload.sequence_length} and {which} with {model.sequence_length}",
            "leave sequence_length out",
        )
    if plan.attention is not None:
        refuse(
            "attention is a kernel of layers of tokens", f"attention = {plan.attention!r} and {which}", "leave it out"
        )
    if plan.recompute == "selective":
        refuse(
            "selective recompute makes parts of a transformer's layers again",
            f"recompute = 'selective' and {which}",
            "recompute = 'full', 'operators' or 'none'",
        )
    if plan.cuda_graphs not in (None, "none", WHOLE_STEP):
        refuse(
            "CUDA graphs of parts of layers are those of transformers",
            f"cuda_graphs = {list(plan.cuda_graphs or ())} and {which}",
            f"cuda_graphs = {WHOLE_STEP!r}",
        )
    if schedule.splits_backward and any(
        isinstance(p.step, Measured) for layer in model.network.placed for p in layer.steps
    ):
        refuse(
            "a backward in two halves needs the time of each",
            f"schedule = {schedule.name!r} and model {model.name!r} has times of whole backwards",
            "schedule = 'one_f_one_b'",
        )
    if BYTES_PER_ELEMENT[workload.numbers.gemm] < 2:
        refuse(
            "convolutions run in 16 or 32 bits",
            f"precision = {workload.precision!r} and {which}",
            "precision = 'bf16', 'fp16', 'tf32' or 'fp32'",
        )
