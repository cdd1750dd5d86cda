"""Pass 3: the compute rows: every action of the order runs the block of its chunk.

A block is one segment, unless links are anchored inside it; then it is cut there, in those actions only:

    variant 0   unbroken
    variant 1   a segment per FSDP unit (one layer)
    variant 2   a segment per gradient bucket
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.assign import Chunk
from simulator.lowering.state import Batch, State
from simulator.program.program import COMPUTE, Block, Segment

__all__ = ["BUCKETS", "UNBROKEN", "UNITS", "add_instances", "layers_of"]

UNBROKEN, UNITS, BUCKETS = 0, 1, 2
_DIRECTION = ("forward", "backward", "backward", "backward")


def layers_of(chunk: Chunk, direction: str) -> list[str]:
    """Kinds of layers of a chunk in the order they run."""
    kinds = ["embedding"] * chunk.embedding + ["layer"] * chunk.layers + ["head"] * chunk.head
    return kinds if direction == "forward" else kinds[::-1]


def _cut(state: State, chunk: Chunk, direction: str, variant: int) -> tuple[tuple[str, ...], ...]:
    kinds = layers_of(chunk, direction)
    if variant == UNBROKEN or len(kinds) <= 1:
        return (tuple(kinds),)
    if variant == UNITS:
        return tuple((k,) for k in kinds)
    groups: list[tuple[str, ...]] = []
    current: list[str] = []
    held = 0.0
    for kind in kinds:
        current.append(kind)
        held += state.costs[kind].parameters * state.settled.gradient_bytes
        if held >= state.settled.bucket_size:
            groups.append(tuple(current))
            current, held = [], 0.0
    return (*groups, tuple(current)) if current else tuple(groups)


def _variants(state: State) -> np.ndarray:
    """Which actions are cut, and how."""
    settled, kind = state.settled, state.order.kind
    out = np.zeros(len(kind), np.int64)
    if settled.zero_stage == 3:
        if settled.reshard_after_forward:
            out[(kind == 0) | (kind == 1) | (kind == 2)] = UNITS
        else:
            out[state.pattern.first_forward] = UNITS
        out[(kind == 1) | (kind == 3)] = UNITS
    elif settled.overlap_gradients and settled.data_parallel > 1:
        every = settled.zero_stage == 2
        out[((kind == 1) | (kind == 3)) if every else state.pattern.last_backward] = BUCKETS
    return out


def _segments(state: State, chunk: Chunk, kind: int, variant: int) -> tuple[Segment, ...]:
    direction = _DIRECTION[kind]
    groups = _cut(state, chunk, direction, variant)
    state.cuts[(chunk, direction, variant)] = groups
    name = f"{'FBIW'[kind]} of {chunk.layers} layers" + (" + embedding" if chunk.embedding else "")
    name += " + head" if chunk.head else ""
    out = []
    for number, group in enumerate(groups):
        pieces: list[tuple[object, int]] = []
        for layer in group:
            table = getattr(state.costs[layer], direction)
            if pieces and pieces[-1][0] is table:
                pieces[-1] = (table, pieces[-1][1] + 1)
            else:
                pieces.append((table, 1))
        label = name if len(groups) == 1 else f"{name}, part {number}"
        out.append(Segment(name=label, pieces=tuple(pieces), phase=direction))  # type: ignore[arg-type]
    return tuple(out)


def add_instances(state: State) -> None:
    """Make blocks for the (chunk, action kind, variant) that occur, and one row per segment of every action."""
    order, ranks = state.order, state.pattern.rank
    state.variant = _variants(state)

    classes = {chunk: number for number, chunk in enumerate(dict.fromkeys(state.chunks))}
    class_of = np.array([classes[c] for c in state.chunks], np.int64)
    key = (class_of[order.chunk] * 4 + order.kind) * 3 + state.variant
    base = np.zeros(len(classes) * 12, np.int64)
    count = np.zeros(len(classes) * 12, np.int64)
    names = list(classes)
    for code in np.flatnonzero(np.bincount(key, minlength=len(base))):
        rest, variant = divmod(int(code), 3)
        number, kind = divmod(rest, 4)
        segments = _segments(state, names[number], kind, variant)
        base[code], count[code] = len(state.items), len(segments)
        state.items.extend(segments)
        state.blocks.append(Block(name=segments[0].name, segments=segments))
    per_action = count[key]
    ends = np.cumsum(per_action)
    state.first_row, state.last_row = ends - per_action, ends - 1
    total = int(ends[-1]) if len(ends) else 0
    action = np.repeat(np.arange(len(key)), per_action) if total != len(key) else np.arange(len(key))
    part = np.arange(total) - state.first_row[action]
    compute = state.lanes("compute")
    state.add_rows(
        Batch(
            item=base[key][action] + part,
            kind=COMPUTE,
            rank=ranks[action],
            streams=compute[ranks[action]][:, None],
            action=order.kind[action].astype(np.int64),
            chunk=order.chunk[action].astype(np.int64),
            microbatch=order.microbatch[action].astype(np.int64),
            part=part,
        )
    )
