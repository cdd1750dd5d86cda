"""What a plan may say about the host: refused where it could have no effect."""

from __future__ import annotations

from simulator.errors import PlanError, refuse
from simulator.lowering.exchanges.base import GradientExchange
from simulator.plan.plan import Plan
from simulator.schedules.base import Schedule
from simulator.units import SCALED_PER_BLOCK
from simulator.workload.workload import Workload

__all__ = ["check_adapters", "check_offload", "gradients_leave"]


def gradients_leave(plan: Plan, schedule: Schedule) -> bool:
    """Return whether gradients of a rank without replicas go to the host bucket by bucket."""
    return plan.zero_stage == 2 and bool(plan.optimizer_offload) and schedule.replicas == 1


def check_adapters(workload: Workload, plan: Plan, exchange: GradientExchange) -> None:
    """Refuse frozen weights where codes are not known to keep them: on the host, on GPU 0 alone, or in 8 bits that nothing reads.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    model = workload.model
    if model.lora_rank and plan.parameter_offload:
        refuse(
            "frozen weights stay on the GPU",
            f"parameter_offload = {plan.parameter_offload!r} and lora_rank = {model.lora_rank}",
            "parameter_offload = 0, or a frozen_format of fewer bits",
        )
    if model.lora_rank and exchange.one_process:
        refuse(
            f"gradient_exchange = {exchange.name!r} sends whole models, of which adapters are not told apart",
            f"lora_rank = {model.lora_rank}",
            "gradient_exchange = 'all_reduce' of another framework",
        )
    if model.frozen_format == "fp8" and SCALED_PER_BLOCK.get(workload.numbers.gemm, workload.numbers.gemm) != "fp8":
        refuse(
            "frozen_format = 'fp8' is what products in 8 bits read",
            f"precision = {workload.precision!r}",
            "precision = 'fp8', or leave frozen_format out",
        )
    if model.frozen_format == "fp8" and plan.zero_stage == 3:
        refuse(
            "frozen_format = 'fp8' is Transformer Engine's, whose weights are whole on each rank",
            "zero_stage = 3",
            "zero_stage = 1, or frozen_format = 'nf4'",
        )


def check_offload(plan: Plan) -> None:
    """Refuse settings of the host that could have no effect or cannot be.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    plan.check_needs("optimizer_offload", "optimizer_offload_overlap", "optimizer_in_backward")
    plan.check_needs("zero_stage", "parameter_offload", "optimizer_offload")
    if plan.optimizer_offload == "nvme" and plan.optimizer_offload_overlap:
        refuse(
            "states on drives are read, updated and written layer by layer, each beside the others",
            "optimizer_offload = 'nvme' and optimizer_offload_overlap = true",
            "leave optimizer_offload_overlap out",
        )
    if plan.activation_offload and plan.zero_stage == 3 and plan.fsdp_unit not in (None, 1):
        raise PlanError(
            "activations go to the host layer by layer, so FSDP units must be layers too, but fsdp_unit = "
            f"{plan.fsdp_unit!r} and activation_offload = {plan.activation_offload}. Way out: fsdp_unit = 1."
        )
