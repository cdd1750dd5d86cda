"""Programs for tests: a workload in a line, lowered and verified, and its links."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.lowering import ResolvedPlan, lower
from simulator.lowering.layers.expand import in_decoder
from simulator.plan.plan import Plan
from simulator.program.program import Link, Program
from simulator.program.spec import verify
from simulator.workload.families import FAMILIES
from simulator.workload.graph import LayerGraph
from simulator.workload.layer_case import LayerCase
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

__all__ = ["graph_of", "links", "lowered", "workload"]


def workload(name: str = "gpt3_175b", batch: int = 16, length: int = 2048, precision: str = "bf16") -> Workload:
    return Workload(model=load_model(name), sequence_length=length, global_batch_size=batch, precision=precision)


def lowered(work: Workload, world: int, **plan: Any) -> Program:
    program = lower(work, Plan(**plan), world)
    verify(program)
    return program


def graph_of(work: Workload, resolved: ResolvedPlan, kind: str, sequences: int) -> LayerGraph:
    """A kind of layer of a microbatch of so many sequences, as a plan lays it out."""
    length = work.decoder_length if in_decoder(kind) and work.decoder_length else work.sequence_length
    far = work.sequence_length if work.decoder_length else 0
    case = LayerCase(
        model=work.model,
        kind=kind,
        sequences=sequences,
        length=length,
        precision=work.numbers,
        style=resolved.style,
        vocabulary=resolved.vocabulary,
        source=far,
    )
    return FAMILIES.get(work.model.architecture).graph(case)


def links(program: Program, collective: str) -> list[tuple[Link, int]]:
    """Links of a kind with their number of rows."""
    counts = np.bincount(program.item, minlength=len(program.items))
    return [
        (item, int(n))
        for item, n in zip(program.items, counts, strict=True)
        if isinstance(item, Link) and item.collective == collective
    ]
