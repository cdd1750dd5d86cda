"""Pass 5: gathers of sharded weights.

ZeRO-3 (FSDP), design 5b F: unit u (a layer, several, or a whole chunk) is gathered before its segment runs; with prefetch depth d
the gather waits for the end of the segment d + 1 units earlier, whose buffer is free then.  Gradients of a unit are reduced after
its backward segment.  Which actions gather and reduce, and how long what they gathered stands, is in `windows`.  Gathers and
reductions share one lane, in the order the host issues them, unless the profile says two communicators.

ZeRO-1 and ZeRO-2 with overlap_parameters: the weights updated in the last step are gathered bucket by bucket at the start of
this one; the layers of a bucket wait for it in their first forward.
"""

from __future__ import annotations

import numpy as np

from simulator.errors import PlanError
from simulator.lowering.hops import add_second_hops
from simulator.lowering.instances import UNITS
from simulator.lowering.parameter_offload import add_shard_copies
from simulator.lowering.parameters import group_held, words
from simulator.lowering.state import Batch, State
from simulator.lowering.unit_parts import UnitPart, gather_link, unit_parts
from simulator.lowering.windows import Windows, find_windows
from simulator.program.program import COLLECTIVE

__all__ = ["add_gathers"]

Ints = np.ndarray


def add_gathers(state: State) -> None:
    """Add the gather rows (and, for FSDP, the reduction rows) of the plan.

    Raises:
        PlanError: gathering once per visit where every visit is one action.
    """
    if state.settled.zero_stage == 3:
        _fsdp(state)
    elif state.settled.overlap_parameters:
        _gather_buckets(state)


def _gather_buckets(state: State) -> None:
    """One gather per bucket of a chunk's weights, before the first forward that needs them."""
    element = state.settled.precision.element
    items: dict[tuple[str, ...], list[int]] = {}
    found: list[tuple[int, int, int]] = []
    for a in np.flatnonzero(state.pattern.first_forward).tolist():
        chunk = state.chunks[int(state.order.chunk[a])]
        for group, first, _ in state.spans(chunk, "forward", int(state.variant[a])):
            if group not in items:
                items[group] = [
                    gather_link(state, f"weights of {words(group)}{what}", count * element, axes)
                    for what, count, axes in group_held(state, group).parts(state.settled)
                ]
            found += [(item, a, first) for item in items[group]]
    numbers, action, place = np.array(found, np.int64).reshape(-1, 3).T
    ranks = state.pattern.rank[action]
    lane = state.lanes("dp")
    rows = state.add_rows(
        Batch(item=numbers, kind=COLLECTIVE, rank=ranks, streams=lane[ranks][:, None], chunk=state.order.chunk[action])
    )
    state.wait(state.first_row[action] + place, rows)


def _units(state: State) -> tuple[Ints, Ints, Ints, list[tuple[str, ...]]]:
    """Return (action, row, unit) of every segment that is a unit of its own, and the units' layers in forward order."""
    cut = np.flatnonzero(state.variant == UNITS)
    counts = state.last_row[cut] - state.first_row[cut] + 1
    action = np.repeat(cut, counts)
    place = np.arange(len(action)) - np.repeat(np.cumsum(counts) - counts, counts)
    units: dict[tuple[str, ...], int] = {}
    number = np.zeros(len(action), np.int64)
    direction = np.where(state.order.kind == 0, 0, 1)
    classes = list(dict.fromkeys(state.chunks))
    class_of = np.array([classes.index(c) for c in state.chunks])[state.order.chunk]
    for k, chunk in enumerate(classes):
        for d, word in enumerate(("forward", "backward")):
            groups = state.cuts.get((chunk, word, UNITS))
            if groups is None:
                continue
            mine = (class_of[action] == k) & (direction[action] == d)
            table = [units.setdefault(g if d == 0 else g[::-1], len(units)) for g in groups]
            number[mine] = np.array(table)[place[mine]]
    return action, state.first_row[action] + place, number, list(units)


def _fsdp(state: State) -> None:
    settled = state.settled
    windows = find_windows(state)
    _check_visits(state, windows)
    action, row, unit, units = _with_pairs(state, *_units(state))
    parts = unit_parts(state, units)
    # the head stays from its forward to a backward that follows at once; with it, in one unit, the embedding
    forward, backward = _turns(state)
    ends = {"head", "embedding"} if settled.framework.fsdp_root_unit else {"head"}
    root = np.array([bool(ends & set(kinds)) for kinds in units])[unit] & settled.reshard_after_forward
    root &= settled.fsdp_gather == "microbatch"
    stays = root & forward[action]
    gathers, completes = windows.gathers[action] & ~(root & backward[action]), windows.reduces[action]
    rank = state.pattern.rank[action]
    layers = np.array([bool(set(kinds) - {"head", "embedding"}) for kinds in units])[unit]
    frees = np.where(stays & layers, _same_unit(state, action, row, action + stays, at_end=True), row)
    gate = _gates(frees[gathers], rank[gathers], settled.fsdp_prefetch)
    g_of, g_part = _every_part(unit[gathers], parts, len(units))
    twice, stays_there = np.array([(p.twice, p.gather < 0) for p in parts], bool).reshape(-1, 2).T
    times = 1 + (twice[g_part] & (state.order.kind[action[gathers]] > 0)[g_of]).astype(np.int64)
    times[stays_there[g_part]] = 0
    g_of, g_part = np.repeat(g_of, times), np.repeat(g_part, times)
    r_of, r_part = _every_part(unit[completes], parts, len(units))
    gate, g_action, g_row = gate[g_of], action[gathers][g_of], row[gathers][g_of]
    r_action, r_row = action[completes][r_of], row[completes][r_of]
    gather_rows, reduce_rows = _add(state, parts, (g_part, g_row, g_action, gate), (r_part, r_row, r_action))
    if settled.parameter_offload:
        fetched = (state.order.kind[g_action] == 0) | (not settled.secondary_shard_size)
        named, shards = [parts[n].name for n in g_part[fetched]], np.array([p.shard for p in parts])[g_part[fetched]]
        add_shard_copies(
            state, gather_rows[fetched], gate[fetched], state.pattern.rank[g_action[fetched]], named, shards
        )
    drop = np.where(stays[gathers][g_of], g_action + 1, windows.until[g_action])
    dropped = _same_unit(state, g_action, g_row, drop, at_end=True)
    stands = _same_unit(state, r_action, r_row, windows.since[r_action], at_end=False)
    weights = np.array([p.weights for p in parts])[g_part]
    gradients = np.array([p.gradients for p in parts])[r_part]
    fresh = (np.diff(g_of, prepend=-1) != 0) | (np.diff(g_part, prepend=-1) != 0)  # not fetched a moment ago
    state.touch("start", gather_rows[fresh], weights[fresh])
    _touch_each(state, "end", dropped[fresh], weights[fresh])
    if not settled.reduces_once:  # else whole gradients stand all the time
        _touch_each(state, "start", stands, gradients)
        state.touch("end", reduce_rows, gradients)


def _touch_each(state: State, edge: str, rows: Ints, effects: Ints) -> None:
    """Give rows effects at an edge; one that comes several times (parts of a unit, both halves of a pair) gets them all."""
    turn = np.argsort(rows, kind="stable")
    fresh = np.ones(len(rows), bool)
    fresh[1:] = np.diff(rows[turn]) != 0
    first = np.flatnonzero(fresh)
    again = np.empty(len(rows), np.int64)
    again[turn] = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    for number in range(int(again.max(initial=-1)) + 1):
        state.touch(edge, rows[again == number], effects[again == number])


def _with_pairs(
    state: State, action: Ints, row: Ints, unit: Ints, units: list[tuple[str, ...]]
) -> tuple[Ints, Ints, Ints, list[tuple[str, ...]]]:
    """Add the fused pairs, which are not cut: each of the two needs its chunk whole; all in running order."""
    pair = state.order.pair
    fused = np.flatnonzero(pair >= 0)
    if not len(fused):
        return action, row, unit, units
    alike = state.order.chunk[fused] == state.order.chunk[pair[fused]]
    fused = fused[~(alike & (pair[fused] < fused))]  # of one chunk: gathered once
    known = {kinds: n for n, kinds in enumerate(units)}
    chunks = [tuple(state.chunks[c].kinds) for c in state.order.chunk[fused].tolist()]
    numbers = np.array([known.setdefault(kinds, len(known)) for kinds in chunks], np.int64)
    rows = np.concatenate([row, state.first_row[fused]])
    turn = np.argsort(rows, kind="stable")
    return np.concatenate([action, fused])[turn], rows[turn], np.concatenate([unit, numbers])[turn], list(known)


def _check_visits(state: State, windows: Windows) -> None:
    settled = state.settled
    own = np.arange(len(windows.until))
    once = settled.fsdp_gather == "visit" and (windows.until == own)[windows.gathers].all()
    if once or (settled.fsdp_reduce == "visit" and (windows.since == own)[windows.reduces].all()):
        raise PlanError(
            "a visit is a run of microbatches through one chunk, but schedule "
            f"{settled.schedule.name!r} with {settled.microbatches} microbatches never runs two of a chunk in a row. Way out: "
            "fsdp_gather = 'microbatch', or schedule = 'breadth_first' with more microbatches."
        )


def _add(
    state: State, parts: list[UnitPart], gathers: tuple[Ints, ...], reduces: tuple[Ints, ...]
) -> tuple[Ints, Ints]:
    """Add the rows of gathers (part, row, action, gate) and reductions (part, row, action), in the order the host issues them."""
    g_part, g_row, g_action, gate = gathers
    r_part, r_row, r_action = reduces
    backward = state.order.kind[g_action] > 0
    first, again = (np.array([getattr(p, name) for p in parts])[g_part] for name in ("gather", "gather_again"))
    item = np.concatenate([np.where(backward, again, first), np.array([p.reduce[0] for p in parts])[r_part]])
    ranks = np.concatenate([state.pattern.rank[g_action], state.pattern.rank[r_action]])
    issued = np.concatenate([2 * gate + 1, 2 * r_row])
    is_reduce = np.concatenate([np.zeros(len(g_row), bool), np.ones(len(r_row), bool)])
    order = np.lexsort((np.concatenate([g_row, r_row]), issued, ranks))
    lanes = state.lanes("dp")
    other = state.lanes("dp-reduce") if state.settled.framework.separate_communicators else lanes
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
    second = [p.reduce[1] if len(p.reduce) > 1 else -1 for p in parts]
    add_second_hops(state, reduce_rows, np.array(second)[r_part].tolist(), state.pattern.rank[r_action])
    return gather_rows, reduce_rows


def _every_part(unit: Ints, parts: list[UnitPart], count: int) -> tuple[Ints, Ints]:
    """Return (index into `unit`, number of the part) of every part of every unit, in order."""
    of_unit = [[i for i, p in enumerate(parts) if p.unit == u] for u in range(count)]
    counts = np.array([len(some) for some in of_unit], np.int64)
    first = np.array([some[0] if some else 0 for some in of_unit], np.int64)
    of = np.repeat(np.arange(len(unit)), counts[unit])
    inside = np.arange(len(of)) - np.repeat(np.cumsum(counts[unit]) - counts[unit], counts[unit])
    return of, first[unit[of]] + inside


def _gates(rows: Ints, rank: Ints, depth: int) -> Ints:
    """Per gathered unit in running order: the row whose end frees its buffer (depth + 1 units earlier), -1 for the first."""
    gate = np.full(len(rows), -1, np.int64)
    back = depth + 1
    if len(rows) > back:
        same = rank[back:] == rank[:-back]
        gate[back:][same] = rows[:-back][same]
    for own in np.flatnonzero(gate == rows).tolist():  # the second half of a fused pair
        gate[own] = gate[own - 1]
    return gate


def _same_unit(state: State, action: Ints, row: Ints, other: Ints, at_end: bool) -> Ints:
    """The row of the same unit in another action of the chunk; its last (first) row where that action is not cut in units."""
    place = row - state.first_row[action]
    turned = (state.order.kind[action] == 0) != (state.order.kind[other] == 0)
    first, last = state.first_row[other], state.last_row[other]
    cut = last - first == state.last_row[action] - state.first_row[action]
    found = np.where(turned, last - place, first + place)
    return np.where(cut, found, last if at_end else first)


def _turns(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return masks: forwards whose backward follows at once on the rank, and those backwards."""
    order, rank = state.order, state.pattern.rank
    forward = np.zeros(len(order.kind), bool)
    same = (order.kind[:-1] == 0) & ((order.kind[1:] == 1) | (order.kind[1:] == 2)) & (rank[1:] == rank[:-1])
    for column in (order.chunk, order.microbatch, order.part, order.count):
        same &= column[1:] == column[:-1]
    forward[:-1] = same
    return forward, np.roll(forward, 1)
