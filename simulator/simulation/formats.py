"""Number formats of a program on a GPU that lacks them."""

from __future__ import annotations

import functools
from dataclasses import replace

from simulator.hardware.gpu import Gpu
from simulator.program.program import FusedSegment, Link, OperatorTable, Program, Segment

__all__ = ["as_multiplied"]


def as_multiplied(program: Program, gpu: Gpu) -> tuple[Program, list[str]]:
    """Return the program as a GPU computes it, and what is to be known of that.

    tf32 is a leave to multiply fp32 numbers on tensor cores (cuBLAS, CUBLAS_COMPUTE_32F_FAST_TF32): without such cores it is fp32.
    """
    if "tf32" in gpu.peak_flops or not any("tf32" in table.dtype for item in program.items for table in _tables(item)):
        return program, []

    @functools.cache
    def plain(number: int) -> OperatorTable:
        table = tables[number]
        return replace(table, dtype=tuple("fp32" if dtype == "tf32" else dtype for dtype in table.dtype))

    tables = {id(table): table for item in program.items for table in _tables(item)}

    def segment(one: Segment) -> Segment:
        return replace(one, pieces=tuple((plain(id(table)), count) for table, count in one.pieces))

    def changed(item: Segment | FusedSegment | Link) -> Segment | FusedSegment | Link:
        if isinstance(item, FusedSegment):
            return replace(item, first=segment(item.first), second=segment(item.second))
        return segment(item) if isinstance(item, Segment) else item

    items = tuple(changed(item) for item in program.items)
    return replace(program, items=items), [f"products in tf32 run in fp32, for {gpu.name} has no tf32"]


def _tables(item: Segment | FusedSegment | Link) -> list[OperatorTable]:
    return [] if isinstance(item, Link) else [table for table, _ in item.pieces]
