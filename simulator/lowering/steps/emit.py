"""Pass 9: join the batches into the columns of a `Program`, once per structure, by array arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.program.program import Effect, Program, Tensor
from simulator.program.ragged import frozen
from simulator.remembered import Remembered

__all__ = ["KEPT_BYTES", "emit"]

KEPT_BYTES = 256 * 2**20
"""Bytes of columns kept for programs to come."""

Pairs = tuple[tuple[int, int], ...]


Arrays = dict[str, Any]
"""Columns by the names that a `Program` gives them."""

_KEPT: Remembered[Arrays] = Remembered(KEPT_BYTES, lambda arrays: sum(array.nbytes for array in arrays.values()))
_JOINED: Remembered[tuple[Arrays, Pairs, Structure]] = Remembered(
    KEPT_BYTES, lambda found: sum(array.nbytes for array in found[0].values()) + found[2].held
)
"""With the structure, which as a key stays as long."""


def emit(state: State, name: str) -> Program:
    """Return the finished program; the state is used up."""
    structure = state.structure
    columns = _KEPT.get((structure,), lambda: _columns(structure)) if structure.shared else _columns(structure)
    for step, facts in state.stands:
        state.build(step, *facts)
    resolved = state.resolved
    members = resolved.tensor_parallel * resolved.replicas
    return Program(
        name=name,
        axes=resolved.axes,
        items=tuple(state.items),
        blocks=tuple(state.blocks),
        **columns,
        **_effects(state),
        stream_lane=tuple([lane for _, lane in structure.streams]),
        rank_weight=frozen(np.full(state.ranks, float(members))),
        effects=state.effect_list(),
        resident=_standing(state.resident),
        host_resident=_standing(state.host) if any(state.host) else (),
        nvme_resident=_standing(state.drives) if any(state.drives) else (),
        framework=resolved.framework.name,
    )


def _standing(ranks: list[list[Tensor]]) -> tuple[Effect, ...]:
    """What stands on each rank; one effect for ranks that share a list."""
    made = {id(tensors): Effect(tensors=tuple(tensors)) for tensors in ranks}
    return tuple([made[id(tensors)] for tensors in ranks])


def _effects(state: State) -> Arrays:
    """The columns of effects; makes the effects that stand together at one edge of a row."""
    structure, count = state.structure, len(state.effects)
    arrays, joined, _ = (
        _JOINED.get((structure, count), lambda: (*_edges(structure, count), structure))
        if structure.shared
        else (*_edges(structure, count), structure)
    )
    known, numbers = list(state.effects), list(range(count))
    for one, two in joined:
        known.append(_together(known[one], known[two]))
        numbers.append(state.effect(known[-1]))
    if numbers == list(range(len(numbers))):
        return arrays
    table = np.array([*numbers, -1], np.int32)  # one of them was there already
    return {name: frozen(table[column]) for name, column in arrays.items()}


def _together(one: tuple[Tensor, ...], two: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors of two effects, those of one name as one: what all layers let go at one edge is no list as long as the model."""
    held: dict[tuple[str, str], float] = {}
    for name, category, size in one + two:
        held[name, category] = held.get((name, category), 0.0) + size
    return tuple([Tensor(name, category, size) for (name, category), size in held.items()])


def _columns(structure: Structure) -> Arrays:
    """Join the batches of a structure."""
    batches = structure.batches

    def column(key: str, dtype: DTypeLike) -> NDArray[Any]:
        out = np.empty(structure.rows, dtype)
        start = 0
        for batch in batches:
            stop = start + len(batch.item)
            out[start:stop] = getattr(batch, key)
            start = stop
        return frozen(out)

    held = [b.streams >= 0 for b in batches]
    width = np.concatenate([some.sum(axis=1) for some in held])
    streams = np.concatenate(
        [b.streams[some] for b, some in zip(batches, held, strict=True)], dtype=np.int32, casting="unsafe"
    )
    after_offsets, after = _waits(structure)
    order = structure.order
    arrays = {
        "item": column("item", np.int32),
        "kind": column("kind", np.int8),
        "action": column("action", np.int8),
        "rank": column("rank", np.int32),
        "lane": _lane(structure),
        "chunk": column("chunk", np.int32),
        "microbatch": column("microbatch", np.int32),
        "step": column("step", np.int32),
        "part": column("part", np.int16),
        "stream_offsets": frozen(np.concatenate([[0], np.cumsum(width)]).astype(np.int64)),
        "streams": frozen(streams),
        "after_offsets": after_offsets,
        "after": after,
        "stream_rank": frozen(np.array([r for r, _ in structure.streams], np.int32)),
    }
    if (order.count != 1).any():
        arrays["count"] = column("count", np.int8)
    if (order.parts != 1).any():
        arrays |= {"slice": column("slice", np.int16), "slices": column("slices", np.int16)}
    if (order.pair >= 0).any():
        arrays |= {name: column(name, np.int32) for name in ("second_chunk", "second_microbatch")}
    return arrays


def _lane(structure: Structure) -> NDArray[np.int8]:
    """Lane of each row: that of its microbatch; 0 where it has none."""
    out = np.zeros(structure.rows, np.int8)
    start = 0
    for batch in structure.batches:
        n = len(batch.item)
        if isinstance(batch.microbatch, np.ndarray):
            out[start : start + n] = structure.placement.lane_of[batch.microbatch]
        start += n
    return frozen(out)


def _waits(structure: Structure) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Join the waits into a ragged column, each row's in the order in which they were added."""
    from simulator.lowering.steps import emit_kernel

    none = np.zeros(0, np.int64)
    rows, on = (
        np.concatenate([none, *(pair[i] for pair in structure.waits)]).astype(np.int64, copy=False) for i in (0, 1)
    )
    join: Any = emit_kernel.join_waits
    offsets, after = join(rows, on, structure.rows)
    return frozen(offsets), frozen(after)


def _edges(structure: Structure, effects: int) -> tuple[Arrays, Pairs]:
    """Effect numbers per row and edge, and the pairs of effects that became one because they stand at one edge; the first pair is the
    effect that is numbered next after those that the passes made."""
    columns = {edge: np.full(structure.rows, -1, np.int32) for edge in ("start", "end", "mark")}
    numbers: dict[tuple[int, int], int] = {}
    for edge, rows, touched in structure.touched:
        column = columns[edge]
        held = column[rows]
        fresh = held < 0
        if fresh.all():
            column[rows] = touched
            continue
        column[rows[fresh]] = touched[fresh]
        size = effects + len(numbers)
        unique, index = np.unique(held[~fresh].astype(np.int64) * size + touched[~fresh], return_inverse=True)
        pairs = [divmod(code, size) for code in unique.tolist()]
        joined = [numbers.setdefault(pair, effects + len(numbers)) for pair in pairs]
        column[rows[~fresh]] = np.array(joined)[index]
    return {f"{edge}_effect": frozen(column) for edge, column in columns.items()}, tuple(numbers)
