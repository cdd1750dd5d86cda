"""A step's work by kind, on a GPU: seconds of products, attention, memory-bound kernels and collectives, and bytes brought into these.

Both are means over ranks, of one step: seconds in which such kernels run, hidden or not, so kinds overlap and do not add up to the step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.program.prices import HOST_CLASS, Prices
from simulator.program.program import COLLECTIVE, TRANSFER, Item, Link, Program

__all__ = ["kernel_seconds", "message_bytes"]


def kernel_seconds(program: Program, prices: Prices) -> dict[str, float]:
    """Return seconds per step by kind of kernel, mean over ranks, largest first; what waits for the host is no kernel.

    >>> import simulator
    >>> step = simulator.simulate_job(simulator.load_job("gpt2_124m_2gpu"))
    >>> set(kernel_seconds(step.program, step.prices)) >= {"gemm", "attention", "memory_bound", "all_reduce"}
    True
    """
    seconds = _uses(program) @ prices.class_share
    out: dict[str, float] = {}
    for which, value in zip(prices.classes, seconds.tolist(), strict=True):
        if which != HOST_CLASS and value > 0:
            out[which.kind] = out.get(which.kind, 0.0) + value
    return dict(sorted(out.items(), key=lambda pair: -pair[1]))


def message_bytes(program: Program) -> dict[str, float]:
    """Return bytes per step that a GPU brings into collectives and messages, by kind, mean over ranks.

    Of an all_gather its own piece, of others its whole buffer, as Chakra's traces and PyTorch's profiler count; a message counts at
    both of its ends.

    >>> import simulator
    >>> found = message_bytes(simulator.simulate_job(simulator.load_job("gpt2_124m_2gpu")).program)
    >>> list(found), found["all_reduce"] > 2e8
    (['all_reduce'], True)
    """
    out: dict[str, float] = {}
    for number, (item, uses) in enumerate(zip(program.items, _uses(program).tolist(), strict=True)):
        sizes = dict(program.mesh_of(int(program.item_rank[number])))
        for kind, message, group, members in _messages(item):
            brought = (
                message / (members or int(np.prod([sizes[axis] for axis in group])))
                if kind == "all_gather"
                else message
            )
            if uses and brought:
                out[kind] = out.get(kind, 0.0) + uses * brought
    return dict(sorted(out.items(), key=lambda pair: -pair[1]))


def _uses(program: Program) -> np.ndarray:
    """How often each item runs in a step on a GPU, mean over ranks."""
    rank = program.stream_rank[program.streams]
    item = program.item[program.row_of_stream_entry]
    weight = program.rank_weight[rank] / program.rank_weight.sum()
    uses = np.bincount(item, weights=weight, minlength=len(program.items))
    return uses / (int(program.step.max(initial=0)) + 1)


def _messages(item: Item) -> Iterator[tuple[str, float, tuple[str, ...], int]]:
    """Yield kind, bytes, mesh axes, and how many take part where it is not all on these axes, of what an item sends."""
    if isinstance(item, Link):
        if item.kind == TRANSFER:
            yield "send_recv", item.message, (), 0
        elif item.kind == COLLECTIVE:
            yield item.collective, item.message, item.group, len(item.pipeline_ranks) if "pp" in item.group else 0
        return
    for table, count in item.pieces:
        for i in np.flatnonzero(table.kind == COLLECTIVE).tolist():
            ends = 2 if table.work[i] == "send_recv" else 1
            yield table.work[i], float(table.message[i]) * count * ends, table.group[i], 0
