"""How much of the experts' exchanges a fused pair hides: two chains of compute and exchange on one GPU, side by side.

    forward    attention | dispatch  | experts  | combine      | ...
    backward   ...       | experts   | dispatch | attention    | ...        the other one's compute beside each exchange

The kernels of one microbatch run one after the other; an exchange runs beside whatever the other microbatch computes then.  So an
exchange that is longer than the part of a layer beside it stays exposed, however much compute there is elsewhere.

Source: Megatron-LM core/pipeline_parallel/combined_1f1b.py and core/models/common/model_chunk_schedule_plan.py: a layer is cut at
its exchanges, and the parts of a forward and of a backward alternate on two streams (gpt/fine_grained_callables.py: what the
dispatcher does in token_dispatch and token_combine is on the exchanges' stream, which is where HybridEP sorts).
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.costs.tables import Machine, price_table
from simulator.program.calls import EXCHANGED
from simulator.program.prices import RESOURCE_KINDS, account_of
from simulator.program.program import COLLECTIVE, IN_STEP_GRAPH, OperatorTable

__all__ = ["handed_over", "hidden_seconds"]

Pieces = tuple[tuple[OperatorTable, int], ...]
Node = tuple[bool, float]
"""Whether it is an exchange, and how long it takes alone [s]."""


def hidden_seconds(first: Pieces, second: Pieces, machine: Machine, axes: tuple[tuple[str, int], ...]) -> float:
    """Return how much sooner a pair ends than the layers of its two segments one after the other [s].

    Each activity is slowed while the other kind runs beside it.
    """
    one, two = (_chain(pieces, machine, axes) for pieces in (first, second))
    alone = sum(seconds for _, seconds in (*one, *two))
    beside = alone - _side_by_side(one, two)
    gemm, tp = RESOURCE_KINDS.index("gemm"), RESOURCE_KINDS.index("tp")
    slowed = max(float(machine.slowdown[gemm, tp]), float(machine.slowdown[tp, gemm])) - 1.0
    return max(0.0, beside * (1.0 - slowed))


def handed_over(first: Pieces, second: Pieces, machine: Machine, axes: tuple[tuple[str, int], ...]) -> int:
    """Return how many parts of a pair's layers the host starts one by one: on a stream of its own, with an event to wait for and one to
    set, its inputs cut from the graph of gradients, and backward by a run of the engine of its own (core/pipeline_parallel/utils.py,
    ScheduleNode).  None of what a graph of the whole step holds."""
    return sum(
        count * len(_nodes(table, machine, axes))
        for table, count in (*first, *second)
        if (table.captured != IN_STEP_GRAPH).any()
    )


def _chain(pieces: Pieces, machine: Machine, axes: tuple[tuple[str, int], ...]) -> list[Node]:
    """The parts of a segment, in order."""
    out: list[Node] = []
    for table, count in pieces:
        out += list(_nodes(table, machine, axes)) * count
    return out


@functools.lru_cache(maxsize=4096)
def _nodes(table: OperatorTable, machine: Machine, axes: tuple[tuple[str, int], ...]) -> tuple[Node, ...]:
    """The parts of a layer: cut at the exchanges of experts' rows, each with its weights and with kernels of its own that sort rows;
    all other collectives belong to the compute they interrupt."""
    seconds = price_table(table, machine, axes).rows
    out: list[Node] = []
    for i, value in enumerate(np.asarray(seconds).tolist()):
        rows = bool(table.kind[i] == COLLECTIVE) and table.work[i] == "all_to_all"
        exchange = table.call[i] == EXCHANGED or (rows and account_of(table.group[i]) == "ep")
        if out and exchange == out[-1][0]:
            out[-1] = (exchange, out[-1][1] + value)
        else:
            out.append((exchange, value))
    return tuple(out)


def _side_by_side(one: list[Node], two: list[Node]) -> float:
    """Return when two chains end that share one stream for compute and one for exchanges; who can start first goes first.

    >>> _side_by_side([(False, 1.0), (True, 2.0), (False, 1.0)], [(False, 2.0), (True, 1.0), (False, 1.0)])
    5.0
    """
    chains, place, ready, free = (one, two), [0, 0], [0.0, 0.0], [0.0, 0.0]
    while place[0] < len(one) or place[1] < len(two):
        best, start = -1, 0.0
        for k in (0, 1):
            if place[k] < len(chains[k]):
                at = max(ready[k], free[chains[k][place[k]][0]])
                if best < 0 or at < start:
                    best, start = k, at
        exchange, seconds = chains[best][place[best]]
        ready[best] = free[exchange] = start + seconds
        place[best] += 1
    return max(ready)
