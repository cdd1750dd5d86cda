"""Pass 4: transfers between chunks on different pipeline ranks (design 5b D).

A message holds one stream per neighbour and direction on both sides, so a send never queues behind a receive.  With p2p =
"blocking" it also holds the compute: it waits for what its receiver does before, and its sender goes on only after it; with
several chunks per rank receives are posted ahead and only the sender waits.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.state import Batch, State
from simulator.program.program import TRANSFER, Link

__all__ = ["add_transfers"]


def add_transfers(state: State) -> None:
    """Add a transfer row wherever a chunk's neighbour lies on another rank, and the waits that follow from data flow."""
    order, placement = state.order, state.placement
    chunks, microbatches = len(state.chunks), state.settled.microbatches
    kind, chunk, microbatch = order.kind, order.chunk.astype(np.int64), order.microbatch.astype(np.int64)
    position = np.full((2, chunks, microbatches), -1, np.int64)
    forward, backward = kind == 0, (kind == 1) | (kind == 2)
    position[0, chunk[forward], microbatch[forward]] = np.flatnonzero(forward)
    position[1, chunk[backward], microbatch[backward]] = np.flatnonzero(backward)

    senders, receivers = [], []
    for direction, mask, step in ((0, forward, 1), (1, backward, -1)):
        inside = mask & (chunk + step >= 0) & (chunk + step < chunks)
        source = np.flatnonzero(inside)
        senders.append(source)
        receivers.append(position[direction, chunk[source] + step, microbatch[source]])
    source, target = np.concatenate(senders), np.concatenate(receivers)
    known = target >= 0
    source, target = source[known], target[known]
    order_of_sending = np.argsort(source, kind="stable")
    source, target = source[order_of_sending], target[order_of_sending]
    here, there = state.action_rank[source], state.action_rank[target]
    local = here == there
    state.wait(state.first_row[target[local]], state.last_row[source[local]])
    source, target, here, there = source[~local], target[~local], here[~local], there[~local]
    if not len(source):
        return

    pair = here * state.ranks + there
    pairs, index = np.unique(pair, return_inverse=True)
    message = max(c.input_bytes for k, c in state.costs.items() if k != "embedding")
    items, streams = [], []
    for a, b in (divmod(int(code), state.ranks) for code in pairs):
        items.append(
            state.add_item(
                Link(
                    name=f"activations {a} to {b}" if a < b else f"gradients {a} to {b}",
                    kind=TRANSFER,
                    message=_message(state, message),
                    dtype=state.settled.precision.compute,
                    group=("pp",),
                    pipeline_ranks=(a, b),
                    account="pp",
                )
            )
        )
        streams.append((state.stream(a, f"pp>{b}"), state.stream(b, f"pp<{a}")))
    rows = state.add_rows(
        Batch(
            item=np.array(items)[index],
            kind=TRANSFER,
            rank=here,
            streams=np.array(streams)[index],
            chunk=chunk[source],
            microbatch=microbatch[source],
        )
    )
    state.wait(rows, state.last_row[source])
    state.wait(state.first_row[target], rows)
    if state.settled.p2p == "blocking":
        _block(state, rows, source, target)


def _message(state: State, activation: float) -> float:
    """Bytes per GPU: tensor-parallel ranks share the sending when activations are split, or the framework scatters them."""
    settled = state.settled
    if not settled.sequence_parallel and settled.framework.scatters_p2p:
        return activation / settled.tensor_parallel
    return activation


def _block(state: State, rows: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
    """A blocking message holds its sender and, with one chunk per rank and lane, waits for its receiver."""
    offsets = state.order.rank_offsets
    after = source + 1
    inside = after < offsets[state.action_rank[source] + 1]
    state.wait(state.first_row[after[inside]], rows[inside])
    if state.settled.chunks_per_rank == 1:
        before = target - 1
        inside = before >= offsets[state.action_rank[target]]
        state.wait(rows[inside], state.last_row[before[inside]])
