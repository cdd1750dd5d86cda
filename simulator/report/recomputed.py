"""What a program computes twice: the floating-point operations of recompute."""

from __future__ import annotations

import functools

import numpy as np

from simulator.program.program import Link, OperatorTable, Program

__all__ = ["recomputed_flops"]


def recomputed_flops(program: Program) -> float:
    """Return the FLOP that are run a second time, over all real ranks."""
    per_item = np.zeros(len(program.items))
    for i, item in enumerate(program.items):
        if not isinstance(item, Link):
            for operators, count in item.pieces:
                per_item[i] += count * _again(operators)
    weight = program.rank_weight[program.rank]
    return float((per_item[program.item] * weight).sum())


@functools.lru_cache(maxsize=4096)
def _again(operators: OperatorTable) -> float:
    """FLOP of the rows of a table that are run a second time."""
    again = np.array([phase == "recompute" for phase in operators.phase], bool)
    return float(operators.flops[again].sum())
