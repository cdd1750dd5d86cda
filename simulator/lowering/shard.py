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
from simulator.lowering.pattern import atoms_of
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


@dataclass(frozen=True, slots=True)
class _Uses:
    """Where units are gathered, or their gradients reduced: columns of equal length.

    action: who needs it; row: the segment; unit: an index into the list of units.
    """

    action: np.ndarray
    row: np.ndarray
    unit: np.ndarray

    def where(self, mask: np.ndarray) -> _Uses:
        """Return some of them."""
        return _Uses(self.action[mask], self.row[mask], self.unit[mask])

    def merged(self, other: _Uses) -> _Uses:
        """Return both, in running order."""
        if not len(other.action):
            return self
        action, row, unit = (
            np.concatenate(pair)
            for pair in ((self.action, other.action), (self.row, other.row), (self.unit, other.unit))
        )
        return _Uses(action, row, unit).where(np.argsort(row, kind="stable"))


def _units(state: State) -> _Uses:
    """Return every segment that is a unit of its own: a kind of layers, numbered as in `state.costs`."""
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
    return _Uses(action, state.first_row[action] + place, kinds)


def _fsdp(state: State) -> None:
    settled, kind = state.settled, state.order.kind
    units = [(name, (name,)) for name in state.costs]
    cut = _units(state)
    back, forward = _partners(state)
    of_kind, head = kind[cut.action], cut.unit == list(state.costs).index("head")
    if settled.reshard_after_forward:
        # the head's weights stay from its forward, if that is cut, to the backward that follows at once
        kept = head & (of_kind == 0)
        held = head & (of_kind != 0) & (state.variant[forward[cut.action]] == UNITS)
        gathers = np.isin(of_kind, (0, 1, 2)) & ~held
    else:
        kept = gathers = of_kind == 0
    pair_gathers, pair_reduces = _pairs(state, units)
    stays = np.zeros(len(state.batches[0].item), bool)
    stays[cut.row[kept]] = True
    if not settled.reshard_after_forward:
        stays[pair_gathers.row] = True
    g = cut.where(gathers).merged(pair_gathers)
    r = cut.where((of_kind == 1) | (of_kind == 3)).merged(pair_reduces)
    _add_links(state, g, r, units, stays, back)


def _pairs(state: State, units: list[tuple[str, tuple[str, ...]]]) -> tuple[_Uses, _Uses]:
    """Return what fused pairs gather and reduce: whole chunks at once, as pairs are not cut; appends those units."""
    order = state.order
    lead = np.flatnonzero(order.pair > np.arange(order.size))
    known: dict[tuple[int, ...], int] = {}

    def unit(chunks: tuple[int, ...]) -> int:
        if chunks not in known:
            kinds = tuple(kind for c in chunks for kind in state.chunks[c].kinds)
            known[chunks] = len(units)
            units.append((words(kinds), kinds))
        return known[chunks]

    if state.settled.reshard_after_forward:
        both = zip(order.chunk[lead].tolist(), order.chunk[lead + 1].tolist(), strict=True)
        wanted = [tuple(dict.fromkeys(pair)) for pair in both]
        gathered = lead
    else:  # gathered once: where the forward of the pair is its chunk's first
        gathered = lead[state.pattern.first_forward[lead]]
        wanted = [(c,) for c in order.chunk[gathered].tolist()]
    back = lead[order.kind[lead + 1] == 1] + 1
    gathers = np.array([unit(chunks) for chunks in wanted], np.int64)
    reduces = np.array([unit((c,)) for c in order.chunk[back].tolist()], np.int64)
    return _Uses(gathered, state.first_row[gathered], gathers), _Uses(back, state.first_row[back], reduces)


def _add_links(
    state: State,
    g: _Uses,
    r: _Uses,
    units: list[tuple[str, tuple[str, ...]]],
    stays: np.ndarray,
    back: np.ndarray,
) -> None:
    """Add gathers and reductions as one table in the order the host issues them, and what they hold."""
    settled, rank = state.settled, state.pattern.rank
    gate = _gates(g.row, rank[g.action], settled.fsdp_prefetch)
    parts = _parts(state, units)
    g_of, g_part = _every_part(g.unit, parts)
    r_of, r_part = _every_part(r.unit, parts)
    gate, g, r = gate[g_of], g.where(g_of), r.where(r_of)
    item = np.concatenate([np.array([p.gather for p in parts])[g_part], np.array([p.reduce for p in parts])[r_part]])
    ranks = np.concatenate([rank[g.action], rank[r.action]])
    issued = np.concatenate([2 * gate + 1, 2 * r.row])
    is_reduce = np.concatenate([np.zeros(len(g.row), bool), np.ones(len(r.row), bool)])
    segment = np.concatenate([g.row, r.row])
    order = np.lexsort((segment, issued, ranks))
    lanes = state.lanes("dp")
    other = state.lanes("dp.reduce") if settled.framework.separate_communicators else lanes
    stream = np.where(is_reduce, other[ranks], lanes[ranks])
    numbers = np.empty(len(item), np.int64)
    numbers[order] = state.add_rows(
        Batch(item=item[order], kind=COLLECTIVE, rank=ranks[order], streams=stream[order][:, None])
    )
    gather_rows, reduce_rows = numbers[: len(g.row)], numbers[len(g.row) :]
    state.wait(g.row, gather_rows)
    has_gate = gate >= 0
    state.wait(gather_rows[has_gate], gate[has_gate])
    state.wait(reduce_rows, r.row)
    weights = np.array([p.weights for p in parts])[g_part]
    gradients = np.array([p.gradients for p in parts])[r_part]
    for again in (False, True):  # the second part of a unit touches the same rows as the first
        first, second = (np.diff(of, prepend=-1) == 0 if again else np.diff(of, prepend=-1) != 0 for of in (g_of, r_of))
        _remember_gathered(state, gather_rows[first], g.where(first), weights[first], stays, back)
        state.touch("start", r.row[second], gradients[second])
        state.touch("end", reduce_rows[second], gradients[second])


@dataclass(frozen=True, slots=True)
class _Part:
    """Weights of a unit that one set of ranks shards: its links, and the effects of standing gathered."""

    unit: int
    gather: int
    reduce: int
    weights: int
    gradients: int


def _parts(state: State, units: list[tuple[str, tuple[str, ...]]]) -> list[_Part]:
    """What each unit is gathered and reduced as: one part, two where experts are sharded over other ranks than the rest."""
    settled = state.settled
    found = []
    for unit, (word, kinds) in enumerate(units):
        for what, count, group in group_held(state, kinds).parts(settled):
            name = f"{word}{what}"
            weights, gradients = count * settled.precision.element, count * settled.gradient_bytes
            found.append(
                _Part(
                    unit,
                    _link(state, "all_gather", f"weights of {name}", weights, _dtype(state), group),
                    _link(state, "reduce_scatter", f"gradients of {name}", gradients, settled.gradient_dtype, group),
                    state.effect((Tensor(name=f"gathered weights of {name}", category="gathered", bytes=weights),)),
                    state.effect(
                        (Tensor(name=f"unsharded gradients of {name}", category="gradients", bytes=gradients),)
                    ),
                )
            )
    return found


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
    state: State, gathers: np.ndarray, uses: _Uses, effects: np.ndarray, stays: np.ndarray, back: np.ndarray
) -> None:
    """Gathered weights stand from the START of their gather to the END of the segment that drops them."""
    state.touch("start", gathers, effects)
    keeps = stays[uses.row]
    state.touch("end", uses.row[~keeps], effects[~keeps])
    if not keeps.any():
        return
    forward, segment = uses.action[keeps], uses.row[keeps]
    last = back[forward]
    units = state.last_row[forward] - state.first_row[forward]
    mirrored = state.last_row[last] - (segment - state.first_row[forward])
    cut = state.last_row[last] - state.first_row[last] == units
    state.touch("end", np.where(cut, mirrored, state.last_row[last]), effects[keeps])


def _partners(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return, per action, the backward after which its gathered weights may go, and the forward it belongs to (-1: none).

    That backward is the last that covers any of the forward's work; the last of its chunk and lane if weights stay.
    """
    order = state.order
    action, atom, atoms, _ = atoms_of(order)
    kind, chunk = order.kind[action], order.chunk[action].astype(np.int64)
    key = chunk * atoms + atom
    size = state.placement.chunks * atoms
    forward_of, back_of = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    goes, comes = kind == 0, (kind == 1) | (kind == 3)
    forward_of[key[goes]] = action[goes]
    back_of[key[comes]] = action[comes]
    forward, back = np.full(order.size, -1, np.int64), np.full(order.size, -1, np.int64)
    forward[action] = forward_of[key]
    np.maximum.at(back, action[goes], back_of[key[goes]])
    if not state.settled.reshard_after_forward:
        place = state.pattern.lane * state.placement.chunks + order.chunk
        last = np.full(state.placement.lanes * state.placement.chunks, -1, np.int64)
        ends = state.pattern.last_backward
        last[place[ends]] = np.flatnonzero(ends)
        back = last[place]
    return back, forward
