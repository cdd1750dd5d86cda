"""What a step trains, as its program says it: of a step that no workload stands behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from simulator.program.program import Link, Program

__all__ = ["Trained", "trained_by"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a step does of a workload.

    Args:
        tokens: trained on; 0 where nobody told.
        model_flops: of one step on all ranks, without what is computed again.
        gemm: number format of its products.
        sparse: whether the model has experts.
        unit: what a token is called.
    """

    tokens: int
    model_flops: float
    gemm: str
    sparse: bool
    unit: str = "token"


def trained_by(program: Program) -> Trained:
    """Return what a program says of the work that it does, where no workload stands behind it."""
    flops: Counter[tuple[str, bool]] = Counter()
    weight = program.rank_weight[program.rank]
    runs = np.bincount(program.item, weight, len(program.items))
    for item, times in zip(program.items, runs.tolist(), strict=True):
        if isinstance(item, Link):
            continue
        for table, count in item.pieces:
            for work, dtype, phase, value in zip(
                table.work, table.dtype, table.phase, table.flops.tolist(), strict=True
            ):
                if phase != "recompute":
                    flops[(dtype, work == "gemm")] += times * count * value
    products = {dtype: value for (dtype, gemm), value in flops.items() if gemm and value}
    return Trained(
        tokens=program.tokens,
        model_flops=float(sum(flops.values())),
        gemm=max(products, key=lambda dtype: products[dtype], default="bf16"),
        sparse=dict(program.axes).get("ep", 1) > 1,
    )
