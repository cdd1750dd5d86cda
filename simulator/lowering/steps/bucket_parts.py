"""Layers larger than a bucket of gradients: their backward is cut behind the kernels that make the weights' gradients.

    a layer's backward        recompute, dX dW of the last product | dX dW of the one before | ...
    buckets of a third                                     bucket 0 goes             bucket 1 goes

A bucket holds whole weights, in the order in which their gradients are made, and is closed when it has as many as it should (torch's
Reducer, arXiv 2006.15704; Megatron-Core's buckets of parameters).  A layer that fits one bucket is not cut, and neither is one with
experts of other ranks, whose gradients go apart, or one that a CUDA graph starts as a whole.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.layers.holdings import Frozen
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.program.program import COLLECTIVE, COMPUTE, EAGER, OperatorTable

__all__ = ["is_cut", "parts_of"]


def is_cut(cost: LayerCost, most: float, resolved: ResolvedPlan) -> bool:
    """Return whether a layer is cut for buckets of so many weights.

    Activations leave for the host layer by layer, and codes of FSDP reduce unit by unit, under ZeRO-2 too.
    """
    by_unit = resolved.framework.fsdp_root_unit and resolved.zero_stage == 2
    return not (resolved.activation_offload or by_unit) and len(parts_of(cost, most)) > 1


@functools.lru_cache(maxsize=256)
def parts_of(cost: LayerCost, most: float) -> tuple[LayerCost, ...]:
    """Return the parts of a layer in the order in which its backward runs them; the layer alone where it is not cut.

    Args:
        most: weights whose gradients fill a bucket [count].
    """
    if cost.expert_parameters or cost.trained <= most:
        return (cost,)
    tables = cost.backward, cost.weight_gradient
    ends = [_ends(table, most, cost.trained) for table in tables]
    weights = [count for _, count in ends[0]]
    if len(weights) < 2 or weights != [count for _, count in ends[1]]:
        return (cost,)
    weights[-1] = cost.trained - sum(weights[:-1])
    cuts = [tuple([end for end, _ in found[:-1]]) for found in ends]
    return tuple(
        [
            replace(
                cost,
                tables=_given(cost, tables, cuts, number),
                parameters=count,
                frozen=Frozen(),  # a part is what a bucket has: weights that are trained
                saved=(),
                weights=(),
                rows={},
            )
            for number, count in enumerate(weights)
        ]
    )


def _given(
    cost: LayerCost, tables: tuple[OperatorTable, OperatorTable], cuts: list[tuple[int, ...]], number: int
) -> Mapping[str, Callable[[], OperatorTable]]:
    """The tables of a layer with a part of its backward, whole and of its weight gradients; cut when one of them is wanted."""
    whole, split = (functools.partial(_piece_of, table, rows, number) for table, rows in zip(tables, cuts, strict=True))
    return {**cost.tables, "backward": whole, "weight_gradient": split}


def _piece_of(table: OperatorTable, cuts: tuple[int, ...], number: int) -> OperatorTable:
    """One piece of a table that is cut behind these rows."""
    return _pieces(table, cuts)[number]


def _ends(table: OperatorTable, most: float, parameters: float) -> list[tuple[int, float]]:
    """Return (row behind which a bucket is full, weights in it), the rest of the table as the last.

    Of a gradient that a product makes whole and ranks scatter each keeps its part, and it stands behind the collective that scatters it.
    """
    if (table.captured != EAGER).any():
        return []
    alone = np.ones(len(table) + 1, np.bool_)
    for row in np.flatnonzero(table.beside >= 0).tolist():  # two rows that run beside each other stay together
        alone[min(row, table.beside[row]) + 1 : max(row, table.beside[row]) + 1] = False
    alone[:-1] &= ~((table.kind == COLLECTIVE) & np.array([part == "weight" for part in table.part], np.bool_))
    made = (table.kind == COMPUTE) & np.array(
        [p == "weight" and w == "gemm" for p, w in zip(table.part, table.work, strict=True)], np.bool_
    )
    products = np.where(made, table.shape[:, :3].prod(axis=1), 0)
    sizes = (products * (parameters / products.sum()) if products.sum() > parameters else products).tolist()
    found, held, left = [], 0.0, sum(sizes)
    for row, size in enumerate(sizes, 1):
        held, left = held + size, left - size
        if held >= most and left and alone[row]:
            found.append((row, held))
            held = 0.0
    return [*found, (len(table), held)]


@functools.lru_cache(maxsize=256)
def _pieces(table: OperatorTable, cuts: tuple[int, ...]) -> tuple[OperatorTable, ...]:
    """Cut a table behind these rows."""
    edges = (0, *cuts, len(table))
    return tuple(_piece(table, start, end) for start, end in itertools.pairwise(edges))


def _piece(table: OperatorTable, start: int, end: int) -> OperatorTable:
    columns: dict[str, Any] = {
        field.name: getattr(table, field.name)[start:end] for field in fields(table) if field.name != "name"
    }
    columns["beside"] = np.where(columns["beside"] >= 0, columns["beside"] - start, -1).astype(np.int32)
    return OperatorTable(name=f"{table.name}, rows {start} to {end - 1}", **columns)
