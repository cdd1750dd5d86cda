"""One direction of the host link does one copy at a time: those issued first, whatever they are copies of.

Passes add the copies of activations, weights and gradients one after the other, and a stream runs its rows in the order of their
numbers.  Here the rows of a stream change places until they stand in the order in which they are issued.  A copy waits for no row
after the one that issues it, so that none is held up by one that cannot start yet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.lowering.steps.state import State
from simulator.program.program import COPY

__all__ = ["order_copies"]


def order_copies(state: State) -> None:
    """Let the copies of every stream stand in the order in which they are issued."""
    if not state.issued:
        return
    rows, after = (np.concatenate([pair[i] for pair in state.issued]) for i in (0, 1))
    structure = state.mine()
    stream = np.full(structure.rows, -1, np.int64)
    start = 0
    for batch in structure.batches:
        if batch.kind == COPY:
            stream[start : start + len(batch.item)] = batch.streams[:, 0]
        start += len(batch.item)
    old, place = rows[np.lexsort((rows, after, stream[rows]))], rows[np.lexsort((rows, stream[rows]))]
    if (old == place).all():
        return
    new = np.arange(structure.rows)
    new[old] = place
    structure.waits = [(new[some], new[on]) for some, on in structure.waits]
    structure.touched = [(edge, new[some], effects) for edge, some, effects in structure.touched]
    was = np.arange(structure.rows)
    was[place] = old
    items = np.concatenate([batch.item for batch in structure.batches])[was]
    start = 0
    for number, batch in enumerate(structure.batches):
        end = start + len(batch.item)
        if batch.kind == COPY:
            structure.batches[number] = replace(batch, item=items[start:end])
        start = end
