"""A row of measured runs -> a simulation: model, plan and cluster, with every rule that was used said in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from simulator.errors import SimulatorError
from simulator.hardware.cluster import Cluster
from simulator.hardware.run_residuals import run_kind
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.studies.validation.names import load_names
from simulator.studies.validation.place_cluster import place_cluster
from simulator.studies.validation.place_framework import place_precision
from simulator.studies.validation.place_habits import place_dropout, place_loss, place_optimizer
from simulator.studies.validation.place_model import place_model
from simulator.studies.validation.place_plan import place_plan
from simulator.studies.validation.rows import CannotPlace, Row, count, text
from simulator.workload.model import Model
from simulator.workload.workload import Workload

__all__ = ["Placed", "group_of", "may_fit", "place", "predict", "sweep_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row ready to be simulated.

    Args:
        fields: of the plan, without recompute.
        recompute: none, selective or full, "policy" (a field names it); None = not known, the least that may fit is taken.
        assumed: the rules used, in words.
        offloads: whether the run may move activations to the host, unseen here.
    """

    workload: Workload
    fields: Mapping[str, Any]
    recompute: str | None
    cluster: Cluster
    assumed: tuple[str, ...]
    offloads: bool = False

    @property
    def kind(self) -> str:
        """The kind of run, as in the residuals of whole runs."""
        axes = {"tp": self.fields["tensor_parallel"], "pp": self.fields["pipeline_parallel"]}
        return run_kind(axes, self.fields["zero_stage"] == 3, self.workload.model.experts > 0)


def place(row: Row) -> Placed:
    """Return the simulation that a row describes.

    Raises:
        CannotPlace: why not.
    """
    model, length, from_model = place_model(row)
    model, repeated = _heads_for_all(model, count(row, "tp") or 1)
    precision, from_precision = place_precision(row)
    fields, batch, recompute, from_plan = place_plan(row, model)
    fields |= place_loss(row, model, fields["microbatch_size"] * length // fields["context_parallel"])
    dropout, from_dropout = place_dropout(row)
    fields |= dropout
    optimizer, from_optimizer = place_optimizer(row)
    cluster, from_cluster = place_cluster(row)
    habit = load_names().recompute_of(text(row, "source"))
    workload = Workload(
        model=model, sequence_length=length, global_batch_size=batch, precision=precision, optimizer=optimizer
    )
    return Placed(
        workload=workload,
        fields=fields,
        recompute=recompute,
        cluster=cluster,
        assumed=(*from_model, *repeated, *from_precision, *from_plan, *from_dropout, *from_optimizer, *from_cluster),
        offloads=(habit is not None and habit.offloads and text(row, "recompute").lower() in ("", "unknown"))
        or "offload" in f"{text(row, 'recompute')} {text(row, 'recompute_detail')}".lower(),
    )


def _heads_for_all(model: Model, tensor: int) -> tuple[Model, tuple[str, ...]]:
    """Return the model with a key/value head for every tensor-parallel rank: fewer are copied (Megatron-LM's attention.py)."""
    if model.attention == "latent" or model.kv_heads >= tensor or tensor % model.kv_heads or model.heads % tensor:
        return model, ()
    why = f"{model.kv_heads} key/value heads are copied to {tensor} tensor-parallel ranks"
    return model.model_copy(update={"kv_heads": tensor}), (why,)


def predict(placed: Placed) -> tuple[Prediction, tuple[str, ...]]:
    """Return (prediction, all that was assumed); of an unknown recompute the least that may fit.

    Raises:
        CannotPlace: the simulator refuses the plan; the reason is its message.
    """
    by_operator = load_framework(placed.fields["framework"]).recompute == "operators"
    middle = "operators" if by_operator else "selective"
    choices = (placed.recompute,) if placed.recompute else ("none", middle, "full")
    prediction, assumed = None, placed.assumed
    for choice in choices:
        try:
            plan = Plan(**{**placed.fields, "recompute": None if choice == "policy" else choice})
            prediction = simulate(placed.workload, plan, placed.cluster)
        except SimulatorError as error:
            raise CannotPlace(str(error)) from None
        except ValidationError as error:
            raise CannotPlace(str(error.errors()[0]["msg"])) from None
        if may_fit(prediction):
            break
    if placed.recompute is None:
        assumed += (f"recompute = {choice} (the least that may fit)",)
    if prediction is None:
        raise CannotPlace("nothing was simulated")
    return prediction, assumed


def may_fit(prediction: Prediction) -> bool:
    """Whether the memory may suffice: the run did run, so the low end of the band decides, not its middle."""
    low = prediction.memory_band(prediction.fullest)[0]
    return low <= prediction.capacities[prediction.fullest] and prediction.host_memory <= prediction.host_capacity


def group_of(row: Row) -> str:
    """Return the group of a row: its source, else the letters that its case_id begins with."""
    return text(row, "source") or text(row, "case_id").split("-")[0] or "all rows"


def sweep_of(row: Row) -> str:
    """Return what rows of one sweep share: source, GPU, model, number of GPUs and sequence length."""
    return " | ".join((group_of(row), *(text(row, c) for c in ("gpu", "model", "n_gpus", "seq_len"))))
