"""A row of measured runs -> a simulation: model, plan and cluster, with every rule that was used said in words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.hardware.cluster import Cluster
from simulator.hardware.run_residuals import Unknown, run_kind
from simulator.importers.table.row_cluster import knows_machine, row_cluster
from simulator.importers.table.row_framework import row_precision, stands_in
from simulator.importers.table.row_host import row_documents, row_graphs, row_host
from simulator.importers.table.row_model import row_model
from simulator.importers.table.row_notes import row_accumulation, row_dropout, row_gates, row_loss, row_optimizer
from simulator.importers.table.row_plan import open_choices, row_plan
from simulator.importers.table.rows import CannotPlace, Row, text
from simulator.importers.vocabulary.names import load_names
from simulator.plan.framework import load_framework
from simulator.workload.model import Model
from simulator.workload.workload import Workload

__all__ = ["RowSimulation", "row_simulation", "row_simulations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSimulation:
    """A row ready to be simulated.

    Args:
        fields: of the plan, without recompute.
        recompute: none, selective or full, "policy" (a field names it); None = not known, the least that may fit is taken.
        assumed: the rules used, in words.
        offloads: whether the run may move activations to the host, unseen here.
        unknown: what of code, plan and machine the row does not tell.
    """

    workload: Workload
    fields: Mapping[str, Any]
    recompute: str | None
    cluster: Cluster
    assumed: tuple[str, ...]
    offloads: bool = False
    unknown: frozenset[Unknown] = frozenset()

    @property
    def kind(self) -> str:
        """The kind of run, as in the residuals of whole runs."""
        axes = {"tp": self.fields["tensor_parallel"], "pp": self.fields["pipeline_parallel"]}
        return run_kind(axes, self.fields["zero_stage"] == 3, self.workload.model.experts > 0)


def row_simulations(row: Row) -> tuple[RowSimulation, ...]:
    """Return the simulations that a row may describe, the usual one first: several where it leaves sizes of the plan open.

    Raises:
        CannotPlace: why not the usual one.
    """
    first = row_simulation(row)
    sizes = open_choices(row, first.workload.model)
    if not sizes:
        return (first,)
    found = []
    for values in itertools.product(*sizes.values()):
        chosen = dict(zip(sizes, map(str, values), strict=True))
        try:
            one = row_simulation({**row, **chosen})
        except CannotPlace:  # what the usual sizes may be, others need not
            continue
        said = [
            f"{_FIELD[column]} = {value} (none is printed: about the quickest that may fit)"
            for column, value in chosen.items()
        ]
        found.append(replace(one, assumed=(*said, *one.assumed), unknown=first.unknown))
    return tuple(found) or (first,)


_FIELD = {"mbs": "microbatch_size", "vp": "chunks_per_rank"}
"""The field of a plan that a column of sizes is."""


def row_simulation(row: Row) -> RowSimulation:
    """Return the simulation that a row describes; the microbatch is 1 where nothing tells it.

    Raises:
        CannotPlace: why not.
    """
    model, length, from_model = row_model(row)
    precision, from_precision = row_precision(row)
    fields, batch, recompute, from_plan = row_plan(row, model)
    loss = row_loss(row, model, fields["microbatch_size"] * length // fields["context_parallel"])
    fields |= loss
    fields |= row_accumulation(row) | row_gates(row)
    dropout, from_dropout = row_dropout(row, model, fields["framework"])
    fields |= dropout
    on_host, from_host = row_host(row, _layers_per_chunk(model, fields), fields["zero_stage"])
    fields |= on_host
    graphs = row_graphs(
        row, bool(model.experts), recompute == "full", load_framework(fields["framework"]).fuses_experts
    )
    if graphs == {"cuda_graphs": "none"} and "cuda_graphs" in fields:
        graphs = {}  # what a published recipe sets is no oversight
    fields |= graphs
    from_words = {**({} if text(row, "loss_kernel") else loss), **({} if text(row, "cuda_graphs") else graphs)}
    optimizer, from_optimizer = row_optimizer(row)
    cluster, from_cluster = row_cluster(row)
    fact = load_names().fact(text(row, "source"), "recompute")
    workload = Workload(
        model=model,
        sequence_length=length,
        global_batch_size=batch,
        precision=precision,
        optimizer=optimizer,
        document_length=row_documents(row),
    )
    return RowSimulation(
        workload=workload,
        fields=fields,
        recompute=recompute,
        cluster=cluster,
        assumed=(
            *from_model,
            *from_precision,
            *from_plan,
            *from_dropout,
            *from_host,
            *(f"{name} = {value} (the row's own words)".lower() for name, value in from_words.items()),
            *from_optimizer,
            *from_cluster,
        ),
        offloads=(fact is not None and fact.offloads and text(row, "recompute").lower() in ("", "unknown"))
        or "offload" in f"{text(row, 'recompute')} {text(row, 'recompute_detail')}".lower(),
        unknown=_unknown(row, fields, recompute),
    )


def _unknown(row: Row, fields: Mapping[str, Any], recompute: str | None) -> frozenset[Unknown]:
    """What a row does not tell of its code (another's profile stands for it), its plan, and the machine."""
    found: set[Unknown] = set()
    if stands_in(row):
        found.add("code")
    blank_depth = fields.get("schedule") == "interleaved_1f1b" and not text(row, "vp")
    if recompute is None or not text(row, "mbs") or blank_depth:
        found.add("plan")
    if not knows_machine(row):
        found.add("machine")
    return frozenset(found)


def _layers_per_chunk(model: Model, fields: Mapping[str, Any]) -> int:
    """Layers of the smallest chunk of a rank."""
    chunks: int = fields["pipeline_parallel"] * fields.get("chunks_per_rank", 1)
    return max(1, model.layers // chunks)
