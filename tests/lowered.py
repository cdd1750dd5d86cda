"""Programs for tests: a workload in a line, lowered and verified, and its links."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import Link, Program
from simulator.program.spec import verify
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

__all__ = ["links", "lowered", "workload"]


def workload(name: str = "gpt3_175b", batch: int = 16, length: int = 2048, precision: str = "bf16") -> Workload:
    return Workload(model=load_model(name), sequence_length=length, global_batch_size=batch, precision=precision)


def lowered(work: Workload, world: int, **plan: Any) -> Program:
    program = lower(work, Plan(**plan), world)
    verify(program)
    return program


def links(program: Program, collective: str) -> list[tuple[Link, int]]:
    """Links of a kind with their number of rows."""
    counts = np.bincount(program.item, minlength=len(program.items))
    return [
        (item, int(n))
        for item, n in zip(program.items, counts, strict=True)
        if isinstance(item, Link) and item.collective == collective
    ]
