"""Pass 5: gathers of sharded weights.

ZeRO-3 (FSDP), design 5b F: unit u (one layer) is gathered before its segment runs; with prefetch depth d the gather waits for
the end of the segment d + 1 units earlier, whose buffer is free then.  Gradients of a unit are reduced after its backward
segment, in every microbatch.  Gathers and reductions share one lane, in the order the host issues them, unless the profile
says two communicators.

ZeRO-1 and ZeRO-2 with overlap_parameters: the weights updated in the last step are gathered bucket by bucket at the start of
this one; the layers of a bucket wait for it in their first forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.lowering.instances import UNITS
from simulator.lowering.parameters import group_held, words
from simulator.lowering.state import Batch, State
from simulator.program.program import COLLECTIVE, Link, Tensor

__all__ = ["add_gathers"]


def add_gathers(state: State) -> None:
    """Add the gather rows (and, for FSDP, the reduction rows) of the plan."""
    if state.settled.zero_stage == 3:
        _fsdp(state)
    elif state.settled.overlap_parameters:
        _gather_buckets(state)


def _link(state: State, collective: str, what: str, message: float, dtype: str, group: tuple[str, ...]) -> int:
    return state.add_item(
        Link(
            name=f"{collective} {what}",
            kind=COLLECTIVE,
            message=message,
            dtype=dtype,
            group=group,
            pipeline_ranks=(),
            account="dp",
            collective=collective,
        )
    )


def _gather_buckets(state: State) -> None:
    """One gather per bucket of a chunk's weights, before the first forward that needs them."""
    element = state.settled.precision.element
    first = np.flatnonzero(state.pattern.first_forward)
    counts = state.last_row[first] - state.first_row[first] + 1
    action = np.repeat(first, counts)
    place = np.arange(len(action)) - np.repeat(np.cumsum(counts) - counts, counts)
    items: dict[tuple[str, ...], list[int]] = {}
    found: list[list[int]] = []
    for a, j in zip(action.tolist(), place.tolist(), strict=True):
        chunk = state.chunks[int(state.order.chunk[a])]
        group = state.cuts[(chunk, "forward", int(state.variant[a]))][j]
        if group not in items:
            items[group] = [
                _link(state, "all_gather", f"weights of {words(group)}{what}", count * element, _dtype(state), axes)
                for what, count, axes in group_held(state, group).parts(state.settled)
            ]
        found.append(items[group])
    numbers = np.array([i for some in found for i in some], np.int64)
    of = np.repeat(np.arange(len(found)), [len(some) for some in found])
    action, place = action[of], place[of]
    ranks = state.pattern.rank[action]
    lane = state.lanes("dp")
    rows = state.add_rows(
        Batch(item=numbers, kind=COLLECTIVE, rank=ranks, streams=lane[ranks][:, None], chunk=state.order.chunk[action])
    )
    state.wait(state.first_row[action] + place, rows)


def _dtype(state: State) -> str:
    return state.settled.precision.compute


def _units(state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (action, row, number of its kind in `state.costs`) of every segment that is a unit of its own."""
    cut = np.flatnonzero(state.variant == UNITS)
    counts = state.last_row[cut] - state.first_row[cut] + 1
    action = np.repeat(cut, counts)
    place = np.arange(len(action)) - np.repeat(np.cumsum(counts) - counts, counts)
    names = list(state.costs)
    kinds = np.zeros(len(action), np.int64)
    direction = np.where(state.order.kind == 0, 0, 1)
    classes = list(dict.fromkeys(state.chunks))
    class_of = np.array([classes.index(c) for c in state.chunks])[state.order.chunk]
    for number, chunk in enumerate(classes):
        for d, word in enumerate(("forward", "backward")):
            groups = state.cuts.get((chunk, word, UNITS))
            if groups is None:
                continue
            mine = (class_of[action] == number) & (direction[action] == d)
            table = np.array([names.index(g[0]) for g in groups])
            kinds[mine] = table[place[mine]]
    return action, state.first_row[action] + place, kinds


def _fsdp(state: State) -> None:
    settled = state.settled
    action, row, unit = _units(state)
    kind = state.order.kind[action]
    head = list(state.costs).index("head")
    # the head's weights stay from its forward to the backward that follows at once
    gathers = (kind == 0) | (unit != head) if settled.reshard_after_forward else kind == 0
    gathers &= np.isin(kind, (0, 1, 2))
    completes = (kind == 1) | (kind == 3)
    rank = state.pattern.rank[action]
    gate = _gates(row[gathers], rank[gathers], settled.fsdp_prefetch)

    parts = _parts(state)
    g_of, g_part = _every_part(unit[gathers], parts)
    if _fetched_twice(state):
        times = np.where((kind[gathers][g_of] != 0) & (unit[gathers][g_of] != head), 2, 1)
        g_of, g_part = np.repeat(g_of, times), np.repeat(g_part, times)
    r_of, r_part = _every_part(unit[completes], parts)
    gate, g_action, g_row, g_rank = gate[g_of], action[gathers][g_of], row[gathers][g_of], rank[gathers][g_of]
    r_row, r_rank = row[completes][r_of], rank[completes][r_of]
    # one table of both, in the order the host issues them
    item = np.concatenate([np.array([p.gather for p in parts])[g_part], np.array([p.reduce for p in parts])[r_part]])
    ranks = np.concatenate([g_rank, r_rank])
    issued = np.concatenate([2 * gate + 1, 2 * r_row])
    is_reduce = np.concatenate([np.zeros(len(g_row), bool), np.ones(len(r_row), bool)])
    segment = np.concatenate([g_row, r_row])
    order = np.lexsort((segment, issued, ranks))
    lanes = state.lanes("dp")
    other = state.lanes("dp reduce") if settled.framework.separate_communicators else lanes
    stream = np.where(is_reduce, other[ranks], lanes[ranks])
    numbers = np.empty(len(item), np.int64)
    numbers[order] = state.add_rows(
        Batch(item=item[order], kind=COLLECTIVE, rank=ranks[order], streams=stream[order][:, None])
    )
    gather_rows, reduce_rows = numbers[: len(g_row)], numbers[len(g_row) :]
    state.wait(g_row, gather_rows)
    has_gate = gate >= 0
    state.wait(gather_rows[has_gate], gate[has_gate])
    state.wait(reduce_rows, r_row)
    is_head = np.array([p.unit == head for p in parts])[g_part]
    weights = np.array([p.weights for p in parts])[g_part]
    gradients = np.array([p.gradients for p in parts])[r_part]
    place = np.array([p.place for p in parts])
    again = _second_fetch(state, g_of, g_part)
    for nth in range(int(place.max(initial=0)) + 1):  # later parts of a unit touch the same rows as the first
        g, r = (place[g_part] == nth) & ~again, place[r_part] == nth
        _remember_gathered(state, gather_rows[g], g_action[g], g_row[g], is_head[g], weights[g])
        state.touch("start", r_row[r], gradients[r])
        state.touch("end", reduce_rows[r], gradients[r])


@dataclass(frozen=True, slots=True)
class _Part:
    """Weights of a unit that are gathered together: its links, and the effects of standing gathered; `place` = its number."""

    unit: int
    place: int
    gather: int
    reduce: int
    weights: int
    gradients: int


def _parts(state: State) -> list[_Part]:
    """What each unit is gathered and reduced as: one part, two where experts are sharded over other ranks than the rest.

    A framework that gathers by tensor has one part per weight tensor (those of routed experts stay together).
    """
    settled = state.settled
    found = []
    for unit, kind in enumerate(state.costs):
        for place, (what, count, group) in enumerate(_pieces(state, kind)):
            name = f"{kind}{what}"
            weights, gradients = count * settled.precision.element, count * settled.gradient_bytes
            found.append(
                _Part(
                    unit,
                    place,
                    _link(state, "all_gather", f"weights of {name}", weights, _dtype(state), group),
                    _link(state, "reduce_scatter", f"gradients of {name}", gradients, settled.gradient_dtype, group),
                    state.effect((Tensor(name=f"gathered weights of {name}", category="gathered", bytes=weights),)),
                    state.effect(
                        (Tensor(name=f"unsharded gradients of {name}", category="gradients", bytes=gradients),)
                    ),
                )
            )
    return found


def _pieces(state: State, kind: str) -> list[tuple[str, float, tuple[str, ...]]]:
    """(what it is, weights, mesh axes of the ranks that hold the same) of everything in a unit that is gathered together."""
    parts = group_held(state, (kind,)).parts(state.settled)
    tensors = state.costs[kind].tensors
    if not state.settled.framework.gathers_by_tensor or len(tensors) < 2 or not parts:
        return parts
    group = state.settled.replica_axes
    apart = [part for part in parts if part[2] != group]
    return [*((f", tensor {i}", size, group) for i, size in enumerate(tensors, 1)), *apart]


def _fetched_twice(state: State) -> bool:
    """Whether backward gathers weights twice: for the recomputed forward, whose hooks drop them, and for the backward itself."""
    return state.settled.framework.gathers_by_tensor and state.settled.recompute == "full"


def _second_fetch(state: State, of: np.ndarray, part: np.ndarray) -> np.ndarray:
    """[gathers] whether it fetches what the same segment has fetched already."""
    if not _fetched_twice(state):
        return np.zeros(len(of), bool)
    key = of * (int(part.max(initial=0)) + 1) + part
    again = np.ones(len(of), bool)
    again[np.unique(key, return_index=True)[1]] = False
    return again


def _every_part(unit: np.ndarray, parts: list[_Part]) -> tuple[np.ndarray, np.ndarray]:
    """Return (index into `unit`, number of the part) of every part of every unit, in order."""
    of_unit = [
        [i for i, p in enumerate(parts) if p.unit == u] for u in range(max((p.unit for p in parts), default=-1) + 1)
    ]
    counts = np.array([len(some) for some in of_unit], np.int64)
    first = np.array([some[0] for some in of_unit], np.int64)
    of = np.repeat(np.arange(len(unit)), counts[unit])
    inside = np.arange(len(of)) - np.repeat(np.cumsum(counts[unit]) - counts[unit], counts[unit])
    return of, first[unit[of]] + inside


def _gates(rows: np.ndarray, rank: np.ndarray, depth: int) -> np.ndarray:
    """Per gathered unit in running order: the row whose end frees its buffer (depth + 1 units earlier), -1 for the first."""
    gate = np.full(len(rows), -1, np.int64)
    back = depth + 1
    if len(rows) > back:
        same = rank[back:] == rank[:-back]
        gate[back:][same] = rows[:-back][same]
    return gate


def _remember_gathered(
    state: State, gathers: np.ndarray, action: np.ndarray, segment: np.ndarray, head: np.ndarray, effects: np.ndarray
) -> None:
    """Gathered weights stand from the START of their gather to the END of the segment that drops them."""
    state.touch("start", gathers, effects)
    keeps = head if state.settled.reshard_after_forward else np.ones(len(head), bool)
    keeps = keeps & (state.order.kind[action] == 0)
    state.touch("end", segment[~keeps], effects[~keeps])
    if keeps.any():
        dropped = _backward_of(state, action[keeps], segment[keeps])
        state.touch("end", dropped, effects[keeps])


def _backward_of(state: State, forward: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """Per gathered forward unit: the row after which its weights are dropped (its chunk's backward, the last if kept)."""
    kind, chunk, microbatch = (
        state.order.kind,
        state.order.chunk.astype(np.int64),
        state.order.microbatch.astype(np.int64),
    )
    lanes, chunks = state.placement.rank_of.shape
    where = np.flatnonzero((kind == 1) | (kind == 3))
    if state.settled.reshard_after_forward:
        key = chunk * state.settled.microbatches + microbatch
        table = np.full(chunks * state.settled.microbatches, -1, np.int64)
    else:
        key = state.pattern.lane * chunks + chunk
        table = np.full(lanes * chunks, -1, np.int64)
    table[key[where]] = where
    back = table[key[forward]]
    units = state.last_row[forward] - state.first_row[forward]
    mirrored = state.last_row[back] - (segment - state.first_row[forward])
    cut = state.last_row[back] - state.first_row[back] == units
    return np.where(cut, mirrored, state.last_row[back])
