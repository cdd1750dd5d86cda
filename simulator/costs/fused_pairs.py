"""How much of the experts' exchanges a fused pair hides: two chains of compute and exchange on one GPU, side by side.

    forward    attention | dispatch  | experts  | combine      | ...
    backward   ...       | experts   | dispatch | attention    | ...        the other one's compute beside each exchange

The kernels of one microbatch run one after the other; an exchange runs beside whatever the other microbatch computes then.  So an
exchange that is longer than the part of a layer beside it stays exposed, however much compute there is elsewhere.  Both streams take
turns, the backward first: exchanges combine' dispatch dispatch' combine, compute attention experts' experts attention' (backward: ').
What multiprocessors the exchange's kernels hold, the compute beside them does without.

Source: Megatron-LM core/pipeline_parallel/combined_1f1b.py and core/models/common/model_chunk_schedule_plan.py: a layer is cut at
its exchanges, and the parts of a forward and of a backward alternate on two streams (gpt/fine_grained_callables.py: what the
dispatcher does in token_dispatch and token_combine is on the exchanges' stream, which is where HybridEP sorts).
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.costs.tables import Machine, price_table, slowed_in_a_layer
from simulator.program.calls import EXCHANGED, NodeExchange
from simulator.program.prices import account_of
from simulator.program.program import COLLECTIVE, IN_STEP_GRAPH, Axes, OperatorTable, Pieces

__all__ = ["handed_over", "hidden_seconds"]

Node = tuple[bool, float]
"""Whether it is an exchange, and how long it takes alone [s]."""


def hidden_seconds(first: Pieces, second: Pieces, machine: Machine, axes: Axes) -> float:
    """Return how much sooner a pair ends than the layers of its two segments one after the other [s].

    Args:
        first, second: layers of a forward and of a backward.
    """
    one, two = (_chain(pieces, machine, axes) for pieces in (first, second))
    alone = sum(seconds for _, seconds in (*one, *two))
    beside = alone - _side_by_side(one, two)
    return max(0.0, beside * (1.0 - _held_back((*first, *second), machine)))


def _held_back(pieces: Pieces, machine: Machine) -> float:
    """Share of what runs beside an exchange that it takes from it: of the GPU's multiprocessors, or what was measured of collectives."""
    calls = [call for table, _ in pieces for call in table.call if isinstance(call, NodeExchange)]
    working = max((call.multiprocessors for call in calls), default=0)
    if working:
        return working / machine.gpu.streaming_multiprocessors
    return max(slowed_in_a_layer(machine)) - 1.0


def handed_over(first: Pieces, second: Pieces, machine: Machine, axes: Axes) -> int:
    """Return how many parts of a pair's layers the host starts one by one: on a stream of its own, with an event to wait for and one to
    set, its inputs cut from the graph of gradients, and backward by a run of the engine of its own (core/pipeline_parallel/utils.py,
    ScheduleNode).  None of what a graph of the whole step holds."""
    return sum(
        count * len(_nodes(table, machine, axes))
        for table, count in (*first, *second)
        if (table.captured != IN_STEP_GRAPH).any()
    )


def _chain(pieces: Pieces, machine: Machine, axes: Axes) -> list[Node]:
    """The parts of a segment, in order."""
    out: list[Node] = []
    for table, count in pieces:
        out += list(_nodes(table, machine, axes)) * count
    return out


@functools.lru_cache(maxsize=4096)
def _nodes(table: OperatorTable, machine: Machine, axes: Axes) -> tuple[Node, ...]:
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
    """Return when two chains end that share one stream for compute and one for exchanges, on each of which their parts take turns, the
    second chain's first.

    >>> _side_by_side([(False, 1.0), (True, 2.0), (False, 1.0)], [(False, 2.0), (True, 1.0), (False, 1.0)])
    6.0
    """
    free, ready = [0.0, 0.0], [0.0, 0.0]
    cut = (_turns(one), _turns(two))
    for turn in range(max(len(turns) for turns in cut)):
        for wanted in (False, True):
            for k in (1, 0):
                for exchange, seconds in cut[k][turn] if turn < len(cut[k]) else ():
                    if exchange == wanted:
                        ready[k] = free[exchange] = max(ready[k], free[exchange]) + seconds
    return max(ready)


def _turns(chain: list[Node]) -> list[list[Node]]:
    """The parts of a chain, cut behind each exchange."""
    turns: list[list[Node]] = [[]]
    for node in chain:
        turns[-1].append(node)
        if node[0]:
            turns.append([])
    return turns
