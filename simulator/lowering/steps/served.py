"""Weights that servers keep: gradients of a layer are pushed as they are made, and its next forward waits for its weights.

    compute    ... B2 of layer 3, 2, 1 | F0 of layer 1, 2, 3        the last backward of a step, and the first forward of the next
    dp             [3] [2]   [1]                                    push, sum, update and pull of a layer, in pieces that follow each other

Layers go in the order in which their gradients are made, or, of those that are ready, the one first that is needed first
(`exchange_priority`: the turns were seen in a step without it; what is on its way is not stopped).  No step ends with a flush: forwards
of the next one run beside what of this one is still on its way.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.steps.assign import classes_of
from simulator.lowering.steps.hops import links_of
from simulator.lowering.steps.parameters import bucket_held, words
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure

__all__ = ["add_served"]

Ints = np.ndarray


def add_served(state: State) -> None:
    """Add what goes to servers and comes back behind each layer's last backward of a step, before its first forward of the next."""
    rows, (chunks, class_of) = state.mine(), classes_of(state.chunks)
    backward = np.flatnonzero(rows.of_each_step((1, 3), last=True))
    forward = np.flatnonzero(rows.of_each_step((0,), last=False))
    step = np.asarray(rows.step_of(rows.order.microbatch), np.int64)
    home = rows.pattern.home
    follows = {(int(home[a]), int(step[a])): int(a) for a in forward.tolist()}
    links: dict[tuple[int, int], list[tuple[int, int]]] = {}
    found: list[tuple[Ints, Ints, Ints]] = []
    sources: list[int] = []
    for action in backward.tolist():
        kind = class_of[int(rows.order.chunk[action])], int(rows.variant[action])
        if kind not in links:
            spans = state.cuts[(kind[0], "backward", kind[1])].spans
            links[kind] = [
                (chain[0], last)
                for group, _, last in spans
                for chain in links_of(state, f"gradients of {words(group)}", bucket_held(state, chunks[kind[0]], group))
            ]
        after = int(rows.first_row[action]) + np.array([segment for _, segment in links[kind]])
        following = follows.get((int(home[action]), int(step[action]) + 1), -1)
        found.append((np.array([item for item, _ in links[kind]]), after, _needed(rows, action, following, after)))
        sources += [action] * len(after)
    item, after, before = (np.concatenate(column) for column in zip(*found, strict=True))
    source = np.array(sources, np.int64)
    rank = rows.pattern.rank[source]
    turn = _in_turn(rank, step[source], state.resolved.served_turns)
    numbers = np.empty(len(turn), np.int64)
    there = source[turn]
    numbers[turn] = rows.on_lane("dp", item[turn], rank[turn], chunk=rows.order.chunk[there], step=step[there])
    state.wait(numbers, after)
    waits = before >= 0
    state.wait(before[waits], numbers[waits])


def _needed(rows: Structure, backward: int, forward: int, after: Ints) -> Ints:
    """Return the segments of the next forward that wait for what these segments of a backward made: the same layers, the first one where
    one of the two is not cut; -1 without a next forward."""
    if forward < 0:
        return np.full(len(after), -1)
    first, last = int(rows.first_row[forward]), int(rows.last_row[forward])
    alike = last - first == rows.last_row[backward] - rows.first_row[backward]
    needed: Ints = last - (after - rows.first_row[backward]) if alike else np.full(len(after), first)
    return needed


def _in_turn(rank: Ints, step: Ints, turns: tuple[tuple[int, ...], ...]) -> Ints:
    """Return the order in which rows are added: as gradients are made, or in these turns of a step of each rank.

    >>> _in_turn(np.array([0, 0, 1]), np.array([0, 0, 0]), ((1, 0), (0,))).tolist()
    [1, 0, 2]
    """
    out = np.arange(len(rank))
    for number, order in enumerate(turns):
        for which in np.unique(step):
            mine = np.flatnonzero((rank == number) & (step == which))
            out[mine] = mine[list(order)]
    return out
