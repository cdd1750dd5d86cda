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
    pattern = state.pattern
    state.wait(state.first_row[pattern.local_target], state.last_row[pattern.local_source])
    source, target = pattern.source, pattern.target
    if not len(source):
        return
    message = max((c.input_bytes for k, c in state.costs.items() if k != "embedding"), default=0.0)
    items, streams = [], []
    for a, b, fraction in pattern.links:
        items.append(
            state.add_item(
                Link(
                    name=f"activations {a} to {b}" if a < b else f"gradients {a} to {b}",
                    kind=TRANSFER,
                    message=_message(state, message) * fraction,
                    dtype=state.settled.precision.compute,
                    group=("pp",),
                    pipeline_ranks=(a, b),
                    account="pp",
                    blocks=state.settled.p2p == "blocking",
                )
            )
        )
        streams.append((state.stream(a, f"pp>{b}"), state.stream(b, f"pp<{a}")))
    rows = state.add_rows(
        Batch(
            item=np.array(items)[pattern.link],
            kind=TRANSFER,
            rank=pattern.rank[source],
            streams=np.array(streams)[pattern.link],
            chunk=state.order.chunk[source],
            microbatch=state.order.microbatch[source],
            step=state.step_of(state.order.microbatch[source]),
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
    inside = after < offsets[state.pattern.rank[source] + 1]
    state.wait(state.first_row[after[inside]], rows[inside])
    if state.placement.chunks == state.ranks:
        before = target - 1
        inside = before >= offsets[state.pattern.rank[target]]
        state.wait(rows[inside], state.last_row[before[inside]])
