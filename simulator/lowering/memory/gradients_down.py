"""Gradients that go to the host as they are made, where ZeRO-2's optimizer states live there (ZeRO-Offload, arXiv 2101.06840).

    compute      B, bucket 0 | B, bucket 1 | B, bucket 2 | ...
    copy back                | sum 0       | sum 1       |                     after the first microbatch
    copy                     |       gradients 0 | gradients 1 | ...

Between replicas a bucket is added first, and its shard goes.  Two buckets may be on their way where gradients overlap, else one; the
segment of the next one waits.  With several microbatches the sum so far comes up, the GPU adds to it, and it goes down again.

Source: microsoft/DeepSpeed runtime/zero/stage_1_and_2.py: async_accumulate_grad_in_cpu_via_gpu, two buffers with overlap_comm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.lowering.memory.offload import COPY_BACK_LANE, COPY_LANE, add_copies, copy_link
from simulator.lowering.steps.parameters import Held, words
from simulator.lowering.steps.state import State
from simulator.program.program import Tensor
from simulator.program.ragged import turns_before

__all__ = ["Bucket", "add_gradients_down"]


class Bucket(NamedTuple):
    """Gradients that a backward makes: of which layers and weights, in which segments of which action, and the rows that add them up
    between replicas."""

    kinds: tuple[str, ...]
    weights: Held
    action: int
    first: int
    last: int
    added: tuple[int, ...] = ()


class _Copied(NamedTuple):
    """Items of the copies of a bucket, and its effects: on its way down, and beside the sum that came up."""

    down: int
    up: int
    alone: int
    summed: int


def add_gradients_down(state: State, buckets: list[Bucket]) -> None:
    """Add the copies of all buckets, in the order in which they are made."""
    order = state.order
    known = {what: _copied(state, *what) for what in dict.fromkeys((b.kinds, b.weights) for b in buckets)}
    copied = np.array([known[b.kinds, b.weights] for b in buckets], np.int64)
    action, first, last = np.array([(b.action, b.first, b.last) for b in buckets], np.int64).T
    first, last = state.first_row[action] + first, state.first_row[action] + last
    rank = state.pattern.rank[action]
    before = _same_before(list(zip(order.chunk[action].tolist(), (bucket.first for bucket in buckets), strict=True)))
    again = before >= 0
    effects = np.where(again, copied[:, 3], copied[:, 2])
    up = add_copies(state, copied[again, 1], rank[again], COPY_BACK_LANE, last[again], issued=last[again])
    down = add_copies(state, copied[:, 0], rank, COPY_LANE, last, issued=last)
    state.wait(up, down[before[again]])
    state.wait(down[again], up)
    for row, bucket in zip(down.tolist(), buckets, strict=True):
        state.wait([row] * len(bucket.added), bucket.added)
    slow = turns_before(rank, 2 if state.resolved.overlap_gradients else 1)
    state.wait(first[slow >= 0], down[slow[slow >= 0]])
    state.touch("start", first, effects)
    state.touch("end", down, effects)
    state.down = np.array([down[rank == r][-1] for r in range(state.ranks)])


def _copied(state: State, kinds: tuple[str, ...], weights: Held) -> _Copied:
    resolved, name = state.resolved, f"gradients of {words(kinds)}"
    size = resolved.optimizer_offload * weights.sharded(resolved) * resolved.gradient_bytes
    down, up = (copy_link(state, what, name, size, resolved.gradient_dtype) for what in ("to_host", "to_device"))
    made = Tensor(name=f"{name}, on their way to the host", category="gradients", bytes=size)
    summed = Tensor(name=f"{name}, those of earlier microbatches", category="gradients", bytes=size)
    return _Copied(down, up, state.effect((made,)), state.effect((made, summed)))


def _same_before(keys: list[tuple[int, int]]) -> np.ndarray:
    """Per entry: the latest one before it with its key, -1 for the first."""
    latest: dict[tuple[int, int], int] = {}
    out = np.full(len(keys), -1, np.int64)
    for number, key in enumerate(keys):
        out[number] = latest.get(key, -1)
        latest[key] = number
    return out
