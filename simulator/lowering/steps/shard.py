"""Pass 5: gathers of sharded weights.

ZeRO-3 (FSDP), design 5b F: unit u (a layer, several, or a whole chunk) is gathered before its segment runs; with prefetch depth d
the gather waits for the end of the segment d + 1 units earlier, whose buffer is free then.  Gradients of a unit are reduced after
its backward segment.  Which actions gather and reduce, and how long what they gathered stands, is in `windows`.  Gathers and
reductions share one lane, in the order the host issues them, unless the profile says two communicators.

What FSDP's root holds is gathered once for all its segments of an action, before the first, and reduced once, when the backward has
ended; the gradients of each segment stand since it ran.

What ZeRO-1 and ZeRO-2 gather with overlap_parameters is in `gather_buckets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.errors import PlanError
from simulator.lowering.memory.parameter_offload import add_shard_copies
from simulator.lowering.steps.assign import classes_of
from simulator.lowering.steps.cut import UNITS, Groups, unit_groups
from simulator.lowering.steps.gather_buckets import gather_buckets
from simulator.lowering.steps.hops import Hops, add_second_hops
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.lowering.steps.unit_parts import UnitPart, root_gradients, unit_parts
from simulator.lowering.steps.update import gradients_await_update, kept_gradient
from simulator.lowering.steps.windows import Windowing, find_windows, windowing
from simulator.program.ragged import ranges, turns_before

__all__ = ["add_gathers"]

Ints = np.ndarray


def add_gathers(state: State) -> None:
    """Add the gather rows (and, for FSDP, the reduction rows) of the plan.

    Raises:
        PlanError: gathering once per visit where every visit is one action.
    """
    plan = windowing(state.resolved)
    if plan is not None:
        _fsdp(state, plan)
    elif state.resolved.overlap_parameters:
        gather_buckets(state)


class _Unit(NamedTuple):
    """What a segment has of a unit: whether it stays gathered between a forward and a backward that follows at once, whether layers are
    in it, whether it is part of FSDP's root, whose weights and gradients stand until the pass ends, and the number of the whole unit."""

    root: bool
    layers: bool
    together: bool
    whole: int


class _Part(NamedTuple):
    """What rows need to know of a `UnitPart`."""

    unit: int
    gather: int
    gather_again: int
    twice: bool
    reduce: tuple[int, ...]
    weights: int
    gradients: int
    reducing: int
    shards: int
    idle: int


Cuts = tuple[tuple[tuple[int, ...] | None, tuple[int, ...] | None], ...]
"""Per kind of chunk: the unit of every segment of its forward and of its backward; None where it is not cut."""


def _fsdp(state: State, plan: Windowing) -> None:
    resolved = state.resolved
    classes, class_of = classes_of(state.chunks)
    units: dict[tuple[str, ...], int] = {}
    # the head stays from its forward to a backward that follows at once; with it, in one unit, the embedding
    ends = {"head", "embedding"} if resolved.framework.fsdp_root_unit else {"head"}
    whole: dict[tuple[str, ...], int] = {}
    cuts: list[tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = []
    for number in range(len(classes)):
        forward, backward = (state.cuts.get((number, word, UNITS)) for word in ("forward", "backward"))
        cuts.append(
            (
                None if forward is None else _numbered(units, forward.groups, 1),
                None if backward is None else _numbered(units, backward.groups, -1),
            )
        )
        groups = unit_groups(classes[number].kinds, resolved.fsdp_unit)
        alone = {group for group in dict.fromkeys(groups) if ends.issuperset(group)}
        root = [group for group in groups if group in alone]
        if len(root) > 1 and cuts[-1] != (None, None):
            joint = tuple(kind for group in root for kind in group)
            whole |= {group: units.setdefault(joint, len(units)) for group in root}
    wholes = tuple(units.setdefault(state.chunks[c].kinds, len(units)) for c in state.build(_paired_chunks))
    gathered = {number: kinds for kinds, number in units.items() if kinds not in whole}
    parts = unit_parts(state, gathered, frozenset(whole.values()), kept_gradient(state))
    stays = resolved.reshard_after_forward and resolved.fsdp_gather == "microbatch"
    _check_visits(state, *state.build(_once, plan))
    added = state.build(
        _shard,
        plan,
        (class_of, tuple(cuts), wholes),
        tuple(
            _Unit(
                stays and bool(ends & set(kinds)),
                bool(set(kinds) - {"head", "embedding"}),
                "embedding" in ends and set(kinds) <= ends,
                whole.get(kinds, number),
            )
            for kinds, number in units.items()
        ),
        tuple(_Part(*(getattr(part, name) for name in _Part._fields)) for part in parts),
        resolved.fsdp_prefetch,
    )
    if any(len(part.reduce) > 1 for part in parts):
        second = [part.reduce[1] if len(part.reduce) > 1 else -1 for part in parts]
        add_second_hops(state, added.hops, tuple(second[part] for part in added.r_part.tolist()))
    if resolved.parameter_offload:
        fetched = (state.order.kind[added.g_action] == 0) | (not resolved.secondary_shard_size)
        some = added.g_part[fetched]
        named, shards = [parts[n].name for n in some], np.array([p.shard for p in parts])[some]
        rank = state.pattern.rank[added.g_action[fetched]]
        add_shard_copies(state, added.gathers[fetched], added.gate[fetched], rank, named, shards)
    stay = gradients_await_update(resolved)
    state.stand(
        _stand,
        added,
        resolved.framework.copies_gathered,
        tuple(part.weights for part in parts),
        tuple(_gradients(part, stay) for part in parts),
        tuple(root_gradients(state, kinds) if kinds in whole else -1 for kinds in units),
    )


def _numbered(units: dict[tuple[str, ...], int], groups: Groups, way: int) -> tuple[int, ...]:
    """The number of each of these units, which are there backward where `way` is -1; a new one gets the next."""
    numbers = {group: units.setdefault(group[::way], len(units)) for group in dict.fromkeys(groups)}
    return tuple(map(numbers.__getitem__, groups))


def _paired_chunks(rows: Structure) -> tuple[int, ...]:
    """Return the chunks of fused pairs, which are not cut, and make no row."""
    return tuple(dict.fromkeys(rows.order.chunk[_pairs(rows)].tolist()))


def _pairs(rows: Structure) -> Ints:
    """Actions that need their chunk whole: each of a fused pair, but one of a pair of one chunk, which is gathered once."""
    pair = rows.order.pair
    fused = np.flatnonzero(pair >= 0)
    alike = rows.order.chunk[fused] == rows.order.chunk[pair[fused]]
    alone: Ints = fused[~(alike & (pair[fused] < fused))]
    return alone


def _once(rows: Structure, plan: Windowing) -> tuple[bool, bool]:
    """Return whether every action gathers for itself alone, and reduces for itself alone; makes no row."""
    windows = find_windows(rows, plan)
    own = np.arange(len(windows.until))
    return bool((windows.until == own)[windows.gathers].all()), bool((windows.since == own)[windows.reduces].all())


def _check_visits(state: State, gathers: bool, reduces: bool) -> None:
    resolved = state.resolved
    if (resolved.fsdp_gather == "visit" and gathers) or (resolved.fsdp_reduce == "visit" and reduces):
        raise PlanError(
            "a visit is a run of microbatches through one chunk, but schedule "
            f"{resolved.schedule.name!r} with {resolved.microbatches} microbatches never runs two of a chunk in a row. Way out: "
            "fsdp_gather = 'microbatch', or schedule = 'breadth_first' with more microbatches."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Added:
    """Gathers and reductions: their rows, and of each its part, its action and the row at whose end what it gathered is dropped
    (since whose start its gradients stand, and `made` at whose end they are there).  `gate`: the row that a gather waits for, -1 = none;
    `issued`: at whose start the host issues it, the gather's own where it waits for none; `fresh`: whether it was not fetched a moment
    ago; `following`: the backward of the next unit that is reduced on the rank, -1 = none.  `t_unit`: segments of a root of several
    whose gradients are reduced, since `t_stands`, and until `t_made` as they are made."""

    gathers: Ints
    g_part: Ints
    g_action: Ints
    gate: Ints
    issued: Ints
    dropped: Ints
    fresh: np.ndarray
    hops: Hops
    r_part: Ints
    stands: Ints
    made: Ints
    following: Ints
    t_unit: Ints
    t_stands: Ints
    t_made: Ints


def _shard(
    rows: Structure,
    plan: Windowing,
    cut: tuple[tuple[int, ...], Cuts, tuple[int, ...]],
    units: tuple[_Unit, ...],
    parts: tuple[_Part, ...],
    prefetch: int,
) -> _Added:
    """Add the rows of gathers and reductions.

    Args:
        cut: per chunk its kind, per kind its units, and per chunk of a fused pair its unit.
        prefetch: units that may be gathered ahead.
    """
    windows = find_windows(rows, plan)
    action, row, unit = _units(rows, *cut)
    forward, backward = _turns(rows)
    root = np.array([u.root for u in units])[unit]
    together = np.array([u.together for u in units])[unit]
    whole = np.array([u.whole for u in units])[unit]
    stays = root & forward[action]
    first, last = _ends(action, whole, together)
    gathers, completes = windows.gathers[action] & ~(root & backward[action]) & first, windows.reduces[action] & last
    rank = rows.pattern.rank[action]
    layers = np.array([u.layers for u in units])[unit]
    frees = np.where(stays & layers, _same_unit(rows, action, row, action + stays, at_end=True), row)
    # what stayed takes its turn, too, but for the root's in the backward: what is prefetched beside it is no more than beside others
    turns = windows.gathers[action] & ~(root & backward[action] & together)
    fetched = gathers[turns]
    gate = _gates(frees[turns], rank[turns], prefetch)[fetched]
    ahead = row[turns][np.maximum(np.flatnonzero(fetched) - prefetch, 0)]
    g_of, g_part = _every_part(whole[gathers], parts, len(units))
    twice, stays_there = np.array([(p.twice, p.gather < 0) for p in parts], bool).reshape(-1, 2).T
    times = 1 + (twice[g_part] & (rows.order.kind[action[gathers]] > 0)[g_of]).astype(np.int64)
    times[stays_there[g_part]] = 0
    g_of, g_part = np.repeat(g_of, times), np.repeat(g_part, times)
    r_of, r_part = _every_part(whole[completes], parts, len(units))
    reduced = np.array([bool(p.reduce) for p in parts], np.bool_)[r_part]
    r_of, r_part = r_of[reduced], r_part[reduced]  # nothing is reduced of what is frozen
    rows.check_size(len(g_of) + len(r_of))
    gate, g_action, g_row = gate[g_of], action[gathers][g_of], row[gathers][g_of]
    r_action, r_row = action[completes][r_of], row[completes][r_of]
    following = np.append(row[completes][1:], -1)
    following[np.append(np.diff(rank[completes]) != 0, True) | together[completes]] = -1
    made = np.where(together[completes], rows.last_row[action[completes]], row[completes])[r_of]
    turned = windows.reduces[action] & (whole != unit)
    t_action, t_row = action[turned], row[turned]
    gather_rows, reduce_rows = _add(rows, parts, (g_part, g_row, g_action, gate), (r_part, made, r_action))
    _hold_two(rows, following, r_of, reduce_rows)
    drop = np.where(stays[gathers][g_of], g_action + 1, windows.until[g_action])
    return _Added(
        gathers=gather_rows,
        g_part=g_part,
        g_action=g_action,
        gate=gate,
        issued=np.where(gate >= 0, ahead[g_of], gather_rows),
        dropped=np.where(
            together[gathers][g_of], rows.last_row[drop], _same_unit(rows, g_action, g_row, drop, at_end=True)
        ),
        fresh=(np.diff(g_of, prepend=-1) != 0) | (np.diff(g_part, prepend=-1) != 0),
        hops=Hops(reduce_rows, rows.pattern.rank[r_action]),
        r_part=r_part,
        stands=_same_unit(rows, r_action, r_row, windows.since[r_action], at_end=False),
        made=made,
        following=following[r_of],
        t_unit=unit[turned],
        t_stands=_same_unit(rows, t_action, t_row, windows.since[t_action], at_end=False),
        t_made=rows.last_row[t_action],
    )


def _ends(action: Ints, whole: Ints, together: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return masks: the first and the last segment of every unit in its action, in running order; all but the root's are both."""
    first, last = ~together, ~together
    where = np.flatnonzero(together)
    fresh = np.diff(action[where] * (whole.max(initial=0) + 1) + whole[where]) != 0
    first[where], last[where] = np.append(True, fresh)[: len(where)], np.append(fresh, True)[: len(where)]
    return first, last


def _gradients(part: UnitPart, dropped: bool) -> tuple[int, int, int, int]:
    """Effects of a part's gradients: as they are made, as they are reduced, what is left of them, and where that will be.

    Args:
        dropped: whether they stand from their reduction to the update; else their buffers stand all the time.
    """
    return part.gradients, part.reducing, part.shards if dropped else -1, part.idle if dropped else -1


def _stand(
    rows: Structure,
    added: _Added,
    buffers: bool,
    weights: tuple[int, ...],
    gradients: tuple[tuple[int, int, int, int], ...],
    turned: tuple[int, ...],
) -> None:
    """Let what is gathered, and gradients before, while and after they are reduced, stand: their effects by part, and by unit those of
    a root's segments.

    Gradients that are copied into another format for it stand until they are all there, the copy while it is reduced.  FSDP2's
    `buffers` stand as its host makes and drops them: those of a gather from where it is issued, those of a reduction until the next
    unit's gradients are copied (torch.distributed.fsdp: FSDPParamGroup.unshard, post_backward).
    """
    fresh = added.fresh
    held = np.array(weights, np.int64)[added.g_part][fresh]
    rows.touch_each("start", (added.issued if buffers else added.gathers)[fresh], held)
    rows.touch_each("end", added.dropped[fresh], held)
    of_root = np.array(turned, np.int64)[added.t_unit]
    rows.touch_each("start", added.t_stands, of_root)
    rows.touch_each("end", added.t_made, of_root)
    made, reducing, shards, idle = np.array(gradients, np.int64).reshape(-1, 4)[added.r_part].T
    copied = reducing >= 0
    rows.touch_each("start", added.stands, made)
    rows.touch_each("end", added.made[copied], made[copied])
    rows.touch("end", added.hops.rows[~copied], made[~copied])
    longer = copied & buffers & (added.following >= 0)
    rows.touch("mark", added.hops.rows[~longer], reducing[~longer])
    rows.touch_each("mark", added.following[longer], reducing[longer])
    rows.touch("start", added.hops.rows, shards)
    if (idle >= 0).any():
        rows.touch_each("start", rows.first_row[rows.order.rank_offsets[added.hops.rank]], idle)
        rows.touch("end", added.hops.rows, idle)
    if len(rows.updated):
        rows.touch_each("end", rows.updated[added.hops.rank], shards)


def _units(rows: Structure, class_of: tuple[int, ...], cuts: Cuts, wholes: tuple[int, ...]) -> tuple[Ints, Ints, Ints]:
    """Return (action, row, unit) of every segment that is a unit of its own and of fused pairs, in running order."""
    cut = np.flatnonzero(rows.variant == UNITS)
    counts = rows.last_row[cut] - rows.first_row[cut] + 1
    action = np.repeat(cut, counts)
    place = ranges(0, counts)
    unit = np.zeros(len(action), np.int64)
    kind = np.array(class_of, np.int64)[rows.order.chunk[action]]
    backward = rows.order.kind[action] != 0
    for number, both in enumerate(cuts):
        for turned, some in zip((False, True), both, strict=True):
            if some is not None:
                mine = (kind == number) & (backward == turned)
                unit[mine] = np.array(some)[place[mine]]
    row = rows.first_row[action] + place
    if not wholes:
        return action, row, unit
    fused = _pairs(rows)
    chunks = dict(zip(dict.fromkeys(rows.order.chunk[fused].tolist()), wholes, strict=True))
    numbers = np.array([chunks[c] for c in rows.order.chunk[fused].tolist()], np.int64)
    row = np.concatenate([row, rows.first_row[fused]])
    turn = np.argsort(row, kind="stable")
    return np.concatenate([action, fused])[turn], row[turn], np.concatenate([unit, numbers])[turn]


def _add(
    rows: Structure, parts: tuple[_Part, ...], gathers: tuple[Ints, ...], reduces: tuple[Ints, ...]
) -> tuple[Ints, Ints]:
    """Add the rows of gathers (part, row, action, gate) and reductions (part, row, action), in the order the host issues them."""
    g_part, g_row, g_action, gate = gathers
    r_part, r_row, r_action = reduces
    backward = rows.order.kind[g_action] > 0
    first, again = (np.array([getattr(p, name) for p in parts])[g_part] for name in ("gather", "gather_again"))
    item = np.concatenate(
        [np.where(backward, again, first), np.array([p.reduce[0] if p.reduce else -1 for p in parts])[r_part]]
    )
    ranks = np.concatenate([rows.pattern.rank[g_action], rows.pattern.rank[r_action]])
    issued = np.concatenate([2 * gate + 1, 2 * r_row])
    order = np.lexsort((np.concatenate([g_row, r_row]), issued, ranks))
    numbers = np.empty(len(item), np.int64)
    numbers[order] = rows.on_lane("dp", item[order], ranks[order])
    gather_rows, reduce_rows = numbers[: len(g_row)], numbers[len(g_row) :]
    rows.wait(g_row, gather_rows)
    has_gate = gate >= 0
    rows.wait(gather_rows[has_gate], gate[has_gate])
    rows.wait(reduce_rows, r_row)
    return gather_rows, reduce_rows


def _hold_two(rows: Structure, following: Ints, of: Ints, reduce_rows: Ints) -> None:
    """Let the backward of the second unit behind one wait until that one's gradients are reduced: whole gradients of two stand at most.

    FSDP2's compute stream waits for the reduction before when it starts one (torch.distributed.fsdp, FSDPParamGroup.post_backward:
    reduce_scatter_state); DeepSpeed lets two reductions be under way (zero/stage3.py, max_param_reduce_events).

    Args:
        following: of every unit that is reduced, the backward of the next on its rank, -1 = none.
        of: of each reduction, its unit's place there.
    """
    second = np.where(following >= 0, np.append(following[1:], -1), -1)[of]
    rows.wait(second[second >= 0], reduce_rows[second >= 0])


def _every_part(unit: Ints, parts: tuple[_Part, ...], count: int) -> tuple[Ints, Ints]:
    """Return (index into `unit`, number of the part) of every part of every unit, in order."""
    of_unit = [[i for i, p in enumerate(parts) if p.unit == u] for u in range(count)]
    counts = np.array([len(some) for some in of_unit], np.int64)
    first = np.array([some[0] if some else 0 for some in of_unit], np.int64)
    of = np.repeat(np.arange(len(unit)), counts[unit])
    return of, ranges(first[unit], counts[unit])


def _gates(rows: Ints, rank: Ints, depth: int) -> Ints:
    """Per gathered unit in running order: the row whose end frees its buffer (depth + 1 units earlier), -1 for the first."""
    before = turns_before(rank, depth + 1)
    gate = np.where(before >= 0, rows[before], -1)
    for own in np.flatnonzero(gate == rows).tolist():  # the second half of a fused pair
        gate[own] = gate[own - 1]
    return gate


def _same_unit(rows: Structure, action: Ints, row: Ints, other: Ints, at_end: bool) -> Ints:
    """The row of the same unit in another action of the chunk; its last (first) row where that action is not cut in units."""
    place = row - rows.first_row[action]
    turned = (rows.order.kind[action] == 0) != (rows.order.kind[other] == 0)
    first, last = rows.first_row[other], rows.last_row[other]
    cut = last - first == rows.last_row[action] - rows.first_row[action]
    found = np.where(turned, last - place, first + place)
    where: Ints = np.where(cut, found, last if at_end else first)
    return where


def _turns(rows: Structure) -> tuple[np.ndarray, np.ndarray]:
    """Return masks: forwards whose backward follows at once on the rank, and those backwards."""
    order, rank = rows.order, rows.pattern.rank
    forward = np.zeros(len(order.kind), bool)
    same = (order.kind[:-1] == 0) & ((order.kind[1:] == 1) | (order.kind[1:] == 2)) & (rank[1:] == rank[:-1])
    for column in (order.chunk, order.microbatch, order.part, order.count):
        same &= column[1:] == column[:-1]
    forward[:-1] = same
    return forward, np.roll(forward, 1)
