"""Pass 9: join the batches into the columns of a `Program`, once, by array arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.lowering.state import State
from simulator.program.program import Effect, Program

__all__ = ["emit"]


def emit(state: State, name: str) -> Program:
    """Return the finished program; the state is used up."""
    batches = state.batches

    def column(key: str, dtype: Any) -> Any:
        parts = [np.broadcast_to(np.asarray(getattr(b, key)), (len(b.item),)) for b in batches]
        return _frozen(np.concatenate(parts, dtype=dtype, casting="unsafe"))

    width = np.concatenate([(b.streams >= 0).sum(axis=1) for b in batches])
    streams = np.concatenate([b.streams[b.streams >= 0] for b in batches], dtype=np.int32, casting="unsafe")
    after_offsets, after = _waits(state)
    start, end, mark = _edges(state)
    order = state.order
    special: dict[str, Any] = {}
    if (order.count != 1).any():
        special["count"] = column("count", np.int8)
    if (order.parts != 1).any():
        special |= {"slice": column("slice", np.int16), "slices": column("slices", np.int16)}
    if (order.pair >= 0).any():
        special |= {name: column(name, np.int32) for name in ("second_chunk", "second_microbatch")}
    settled = state.settled
    members = settled.tensor_parallel * settled.replicas
    return Program(
        name=name,
        axes=settled.axes,
        items=tuple(state.items),
        blocks=tuple(state.blocks),
        item=column("item", np.int32),
        kind=column("kind", np.int8),
        action=column("action", np.int8),
        rank=column("rank", np.int32),
        lane=_lane(state),
        chunk=column("chunk", np.int32),
        microbatch=column("microbatch", np.int32),
        step=column("step", np.int32),
        part=column("part", np.int16),
        stream_offsets=_frozen(np.concatenate([[0], np.cumsum(width)]).astype(np.int64)),
        streams=_frozen(streams),
        after_offsets=after_offsets,
        after=after,
        stream_rank=_frozen(np.array([r for r, _ in state.streams], np.int32)),
        stream_lane=tuple(lane for _, lane in state.streams),
        rank_weight=_frozen(np.full(state.ranks, float(members))),
        effects=state.effect_list(),
        start_effect=start,
        end_effect=end,
        mark_effect=mark,
        resident=tuple(Effect(tensors=tuple(t)) for t in state.resident),
        host_resident=tuple(Effect(tensors=tuple(t)) for t in state.host) if any(state.host) else (),
        framework=settled.framework.name,
        **special,
    )


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _lane(state: State) -> Any:
    """Lane of each row: that of its microbatch; 0 where it has none."""
    out = np.zeros(state.rows, np.int8)
    start = 0
    for batch in state.batches:
        n = len(batch.item)
        if isinstance(batch.microbatch, np.ndarray):
            out[start : start + n] = state.placement.lane_of[batch.microbatch]
        start += n
    return _frozen(out)


def _waits(state: State) -> tuple[Any, Any]:
    """Join the waits into a ragged column, each row's in the order in which they were added."""
    from simulator.lowering import emit_kernel

    none = np.zeros(0, np.int64)
    rows, on = (np.concatenate([none, *(pair[i] for pair in state.waits)]).astype(np.int64, copy=False) for i in (0, 1))
    join: Any = emit_kernel.join_waits
    offsets, after = join(rows, on, state.rows)
    return _frozen(offsets), _frozen(after)


def _edges(state: State) -> tuple[Any, Any, Any]:
    """Effect numbers per row and edge; several effects at one edge become one combined effect."""
    columns = {edge: np.full(state.rows, -1, np.int64) for edge in ("start", "end", "mark")}
    for edge, rows, numbers in state.touched:
        column = columns[edge]
        held = column[rows]
        fresh = held < 0
        column[rows[fresh]] = numbers[fresh]
        if not fresh.all():
            known = list(state.effects)
            pairs = np.stack([held[~fresh], numbers[~fresh]], axis=1)
            unique, index = np.unique(pairs, axis=0, return_inverse=True)
            joined = np.array([state.effect(known[a] + known[b]) for a, b in unique])
            column[rows[~fresh]] = joined[index]
    return tuple(_frozen(columns[e].astype(np.int32)) for e in ("start", "end", "mark"))
