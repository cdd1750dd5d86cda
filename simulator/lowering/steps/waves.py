"""What replicas in waves push to servers and pull: once a step, behind the update after its last backward.

    rank 0   ... B7 | F10 B8 F11            waves of 4, 4 under way, D = 0
    dp             [wave 1: push, pull]     F11 is the first forward that must see it

All stages of a minibatch see the same waves, so on a later rank the same minibatch waits for what that rank pulled.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.steps.parameters import rank_held
from simulator.lowering.steps.state import State
from simulator.program.program import Link, Served

__all__ = ["add_waves"]

_ADDED = 3.0
"""Times its bytes that a server moves in its memory to add a push to its weights: both are read, one is written."""


def add_waves(state: State) -> None:
    """Add a push and a pull of every rank and step, and let the first minibatch wait that must see it on every rank."""
    rows, resolved = state.mine(), state.resolved
    order, rank_of = rows.order, rows.pattern.rank
    links = [_links(state, rank) for rank in range(state.ranks)]
    last = np.flatnonzero(rows.of_each_step((1, 3), last=True))
    pushed = np.repeat(last, [len(links[rank]) for rank in rank_of[last].tolist()])
    rank = rank_of[pushed]
    step = np.asarray(rows.step_of(order.microbatch[pushed]), np.int64)
    items = np.array([item for r in rank_of[last].tolist() for item in links[r]], np.int64)
    numbers = rows.on_lane(
        "dp",
        items,
        rank,
        chunk=order.chunk[pushed],
        step=step,
    )
    rows.wait(numbers, rows.last_row[pushed] + 1)
    forward = np.flatnonzero(order.kind == 0)
    table = np.full((state.ranks, rows.microbatches * rows.steps), -1, np.int64)
    table[rank_of[forward], order.microbatch[forward]] = forward
    ahead = int(resolved.schedule.weight_versions(resolved.shape).max())
    sees = (step + 1 + int(resolved.exchange_terms.staleness)) * rows.microbatches + ahead - 1
    there = sees < table.shape[1]
    rows.wait(rows.first_row[table[rank[there], sees[there]]], numbers[there])


def _links(state: State, rank: int) -> tuple[int, ...]:
    """The item of a rank's push and pull: as wide as the weights that its optimizer changes."""
    resolved = state.resolved
    terms = resolved.exchange_terms
    served = Served(resolved.exchange.algorithm, terms.servers, _ADDED, each=True)
    return tuple(
        state.add_item(
            Link(
                name=f"changes of rank {rank} in a wave",
                message=terms.updated * part.weights,
                dtype=terms.updated_dtype,
                group=part.group,
                collective="all_reduce",
                served=served,
            )
        )
        for part in rank_held(state, rank).exchanged(resolved)
    )
