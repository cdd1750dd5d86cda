"""Pass 5: gathers of sharded weights.

ZeRO-3 (FSDP), design 5b F: unit u (one layer) is gathered before its segment runs; with prefetch depth d the gather waits for
the end of the segment d + 1 units earlier, whose buffer is free then.  Gradients of a unit are reduced after its backward
segment, in every microbatch.  Gathers and reductions share one lane, in the order the host issues them, unless the profile
says two communicators.

ZeRO-1 and ZeRO-2 with overlap_parameters: the weights updated in the last step are gathered bucket by bucket at the start of
this one; the layers of a bucket wait for it in their first forward.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.instances import UNITS
from simulator.lowering.parameters import words
from simulator.lowering.state import Batch, State
from simulator.program.program import COLLECTIVE, Link, Tensor

__all__ = ["add_gathers"]


def add_gathers(state: State) -> None:
    """Add the gather rows (and, for FSDP, the reduction rows) of the plan."""
    if state.settled.zero_stage == 3:
        _fsdp(state)
    elif state.settled.overlap_parameters:
        _gather_buckets(state)


def _link(state: State, collective: str, what: str, message: float, dtype: str) -> int:
    return state.add_item(
        Link(
            name=f"{collective} {what}",
            kind=COLLECTIVE,
            message=message,
            dtype=dtype,
            group=state.settled.replica_axes,
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
    items: dict[tuple[str, ...], int] = {}
    numbers = np.zeros(len(action), np.int64)
    for i, (a, j) in enumerate(zip(action.tolist(), place.tolist(), strict=True)):
        chunk = state.chunks[int(state.order.chunk[a])]
        group = state.cuts[(chunk, "forward", int(state.variant[a]))][j]
        if group not in items:
            size = sum(state.costs[k].parameters for k in group) * element
            items[group] = _link(state, "all_gather", f"weights of {words(group)}", size, _dtype(state))
        numbers[i] = items[group]
    ranks = state.pattern.rank[action]
    lane = state.lanes("dp")
    rows = state.add_rows(
        Batch(item=numbers, kind=COLLECTIVE, rank=ranks, streams=lane[ranks][:, None], chunk=state.order.chunk[action])
    )
    state.wait(state.first_row[action] + place, rows)


def _dtype(state: State) -> str:
    return state.settled.precision.compute


def _units(state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (action, row, kind of unit 0..2) of every segment that is a unit of its own."""
    cut = np.flatnonzero(state.variant == UNITS)
    counts = state.last_row[cut] - state.first_row[cut] + 1
    action = np.repeat(cut, counts)
    place = np.arange(len(action)) - np.repeat(np.cumsum(counts) - counts, counts)
    names = ("embedding", "layer", "head")
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
    names = ("embedding", "layer", "head")
    gathered = [state.costs[n].parameters * settled.precision.element for n in names]
    # the head's weights stay from its forward to the backward that follows at once
    gathers = (kind == 0) | (unit != 2) if settled.reshard_after_forward else kind == 0
    gathers &= np.isin(kind, (0, 1, 2))
    completes = (kind == 1) | (kind == 3)

    g_row, g_unit, g_rank = row[gathers], unit[gathers], state.pattern.rank[action[gathers]]
    gate = _gates(g_row, g_rank, settled.fsdp_prefetch)
    r_row, r_unit, r_rank = row[completes], unit[completes], state.pattern.rank[action[completes]]
    gather_items = [
        _link(state, "all_gather", f"weights of {n}", b, _dtype(state)) for n, b in zip(names, gathered, strict=True)
    ]
    reduce_items = [
        _link(
            state,
            "reduce_scatter",
            f"gradients of {n}",
            state.costs[n].parameters * settled.gradient_bytes,
            settled.gradient_dtype,
        )
        for n in names
    ]
    # one table of both, in the order the host issues them
    item = np.concatenate([np.array(gather_items)[g_unit], np.array(reduce_items)[r_unit]])
    rank = np.concatenate([g_rank, r_rank])
    issued = np.concatenate([2 * gate + 1, 2 * r_row])
    is_reduce = np.concatenate([np.zeros(len(g_row), bool), np.ones(len(r_row), bool)])
    segment = np.concatenate([g_row, r_row])
    order = np.lexsort((segment, issued, rank))
    lanes = state.lanes("dp")
    other = state.lanes("dp reduce") if settled.framework.separate_communicators else lanes
    stream = np.where(is_reduce, other[rank], lanes[rank])
    numbers = np.empty(len(item), np.int64)
    numbers[order] = state.add_rows(
        Batch(item=item[order], kind=COLLECTIVE, rank=rank[order], streams=stream[order][:, None])
    )
    gather_rows, reduce_rows = numbers[: len(g_row)], numbers[len(g_row) :]
    state.wait(g_row, gather_rows)
    has_gate = gate >= 0
    state.wait(gather_rows[has_gate], gate[has_gate])
    state.wait(reduce_rows, r_row)
    _remember_gathered(state, gather_rows, action[gathers], g_row, g_unit, gathered)
    gradients = [
        state.effect(
            (
                Tensor(
                    name=f"unsharded gradients of {n}",
                    category="gradients",
                    bytes=state.costs[n].parameters * settled.gradient_bytes,
                ),
            )
        )
        for n in names
    ]
    state.touch("start", r_row, np.array(gradients)[r_unit])
    state.touch("end", reduce_rows, np.array(gradients)[r_unit])


def _gates(rows: np.ndarray, rank: np.ndarray, depth: int) -> np.ndarray:
    """Per gathered unit in running order: the row whose end frees its buffer (depth + 1 units earlier), -1 for the first."""
    gate = np.full(len(rows), -1, np.int64)
    back = depth + 1
    if len(rows) > back:
        same = rank[back:] == rank[:-back]
        gate[back:][same] = rows[:-back][same]
    return gate


def _remember_gathered(
    state: State, gathers: np.ndarray, action: np.ndarray, segment: np.ndarray, unit: np.ndarray, sizes: list[float]
) -> None:
    """Gathered weights stand from the START of their gather to the END of the segment that drops them."""
    names = ("embedding", "layer", "head")
    effects = np.array(
        [
            state.effect((Tensor(name=f"gathered weights of {n}", category="gathered", bytes=b),))
            for n, b in zip(names, sizes, strict=True)
        ]
    )
    state.touch("start", gathers, effects[unit])
    keeps = (unit == 2) if state.settled.reshard_after_forward else np.ones(len(unit), bool)
    keeps &= state.order.kind[action] == 0
    state.touch("end", segment[~keeps], effects[unit[~keeps]])
    if keeps.any():
        dropped = _backward_of(state, action[keeps], segment[keeps])
        state.touch("end", dropped, effects[unit[keeps]])


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
