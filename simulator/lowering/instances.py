"""Pass 3: the compute rows: every action of the order runs the block of its chunk.

A block is one segment, unless links are anchored inside it; then it is cut there, in those actions only:

    variant 0   unbroken
    variant 1   a segment per FSDP unit (a layer, several, or all)
    variant 2   a segment per gradient bucket
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.assign import Chunk
from simulator.lowering.boundary import received
from simulator.lowering.carried_units import carried
from simulator.lowering.casts import maxima_table
from simulator.lowering.expand import LayerCost
from simulator.lowering.state import Batch, State
from simulator.lowering.unit_parts import quantising
from simulator.lowering.windows import find_windows
from simulator.program.program import COMPUTE, Block, FusedSegment, OperatorTable, Segment
from simulator.workload.layer_kind import is_layer

__all__ = ["BUCKETS", "UNBROKEN", "UNITS", "add_instances", "layers_of", "offloaded", "table_of", "unit_groups"]

UNBROKEN, UNITS, BUCKETS = 0, 1, 2
_DIRECTION = ("forward", "backward", "backward", "backward")
_WEIGHT_GRADIENT = 3
"""Number of the action that does the weight gradients of a split backward."""


def layers_of(chunk: Chunk, direction: str) -> list[str]:
    """Kinds of layers of a chunk in the order they run."""
    return chunk.kinds if direction == "forward" else chunk.kinds[::-1]


def _cut(state: State, chunk: Chunk, direction: str, variant: int) -> tuple[tuple[str, ...], ...]:
    kinds = layers_of(chunk, direction)
    if variant == UNBROKEN or len(kinds) <= 1:
        return (tuple(kinds),)
    if variant == UNITS:
        units = unit_groups(chunk.kinds, state.settled.fsdp_unit)
        return units if direction == "forward" else tuple(unit[::-1] for unit in reversed(units))
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


def _apart(
    state: State, chunk: Chunk, direction: str, groups: tuple[tuple[str, ...], ...]
) -> list[list[tuple[str, ...]]]:
    """Cut groups of layers further: a segment for each layer whose activations go to the host."""
    apart = offloaded(chunk, state.settled.activation_offload)
    if not any(apart):
        return [[group] for group in groups]
    flags = iter(apart if direction == "forward" else apart[::-1])
    out: list[list[tuple[str, ...]]] = []
    for group in groups:
        pieces: list[tuple[str, ...]] = []
        joins = False
        for kind in group:
            alone = next(flags)
            if joins and not alone:
                pieces[-1] = (*pieces[-1], kind)
            else:
                pieces.append((kind,))
            joins = not alone
        out.append(pieces)
    return out


def offloaded(chunk: Chunk, layers: int) -> list[bool]:
    """Return of each layer, forward, whether its activations go to the host: so many from the chunk's first one.

    >>> offloaded(Chunk(layers=3, embedding=True), 2)
    [False, True, True, False]
    """
    out, left = [], layers
    for kind in chunk.kinds:
        takes = is_layer(kind) and left > 0
        left -= takes
        out.append(takes)
    return out


def unit_groups(kinds: list[str], layers: int) -> tuple[tuple[str, ...], ...]:
    """Return the FSDP units of a chunk, forward: so many layers each, embedding and head apart; 0 = all in one.

    >>> unit_groups(["embedding", "layer", "layer", "layer", "head"], 2)
    (('embedding',), ('layer', 'layer'), ('layer',), ('head',))
    >>> unit_groups(["layer", "layer", "head"], 0)
    (('layer', 'layer', 'head'),)
    """
    if not layers:
        return (tuple(kinds),)
    units: list[tuple[str, ...]] = []
    held = 0
    for kind in kinds:
        if not is_layer(kind):  # an end is a unit of its own
            units.append((kind,))
            held = 0
        elif held and held < layers:
            units[-1] = (*units[-1], kind)
            held += 1
        else:
            units.append((kind,))
            held = 1
    return tuple(units)


def _variants(state: State) -> np.ndarray:
    """Which actions are cut, and how; fused pairs never are."""
    settled, kind = state.settled, state.order.kind
    out = np.zeros(len(kind), np.int64)
    if settled.zero_stage == 3:
        out[find_windows(state).cut] = UNITS
    elif settled.overlap_gradients and settled.reduces:
        every = settled.zero_stage == 2
        out[((kind == 1) | (kind == 3)) if every else state.pattern.last_backward] = BUCKETS
    if settled.overlap_parameters:
        out[state.pattern.first_forward] = BUCKETS
    out[state.order.pair >= 0] = UNBROKEN
    return out


def _find_scales(state: State) -> None:
    """Group actions by how much of a microbatch they run, and get the costs of each size."""
    order = state.order
    if (order.count == 1).all() and (order.parts == 1).all() and (order.weight == 1.0).all():
        state.scale, state.scales = np.zeros(len(order.kind), np.int64), [state.costs]
        return
    columns = np.stack([order.count, order.part, order.parts, order.weight], axis=1).astype(np.float64)
    sizes, state.scale = np.unique(columns, axis=0, return_inverse=True)
    state.scale = state.scale.reshape(-1)
    state.scales = [state.scaled_costs(int(c), int(j), int(n), float(w)) for c, j, n, w in sizes]


def _segments(state: State, chunk: Chunk, kind: int, variant: int, scale: int) -> tuple[Segment, ...]:
    direction = _DIRECTION[kind]
    groups = _cut(state, chunk, direction, variant)
    pieces_of = tuple(piece for group in _apart(state, chunk, direction, groups) for piece in group)
    state.cuts[(chunk, direction, variant)], state.pieces[(chunk, direction, variant)] = groups, pieces_of
    name = f"{'FBIW'[kind]} of {chunk.layers} layer{'s' * (chunk.layers != 1)}" + (
        " + embedding" if chunk.embedding else ""
    )
    name += " + head" if chunk.head else ""
    out = []
    for number, group in enumerate(pieces_of):
        pieces = received(state, chunk, kind, scale) if number == 0 else []
        for layer in group:
            table = table_of(state.scales[scale][layer], kind)
            if pieces and pieces[-1][0] is table:
                pieces[-1] = (table, pieces[-1][1] + 1)
            else:
                pieces.append((table, 1))
        if variant == UNITS:
            for before, after in (quantising(state, group, kind), carried(state, group, kind)):
                pieces = [(t, 1) for t in (before,) if t] + pieces + [(t, 1) for t in (after,) if t]
        if number == len(pieces_of) - 1:
            pieces += _maxima(state, chunk, kind)
        label = name if len(pieces_of) == 1 else f"{name}, part {number}"
        out.append(Segment(name=label, pieces=tuple(pieces), phase=direction))
    return tuple(out)


def _maxima(state: State, chunk: Chunk, kind: int) -> list[tuple[OperatorTable, int]]:
    """What ends a pass over a chunk under delayed scaling; the weight gradients of a split backward find no maxima."""
    settled = state.settled
    sizes = dict(settled.axes)
    axes = dict.fromkeys((*settled.replica_axes, *settled.groups.context, *settled.groups.tensor))
    group = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
    if not settled.precision.shares_maxima or not group or not chunk.layers or kind == _WEIGHT_GRADIENT:
        return []
    return [(maxima_table(chunk.layers, group, _DIRECTION[kind]), 1)]


def table_of(cost: LayerCost, kind: int) -> OperatorTable:
    """Return the operators that an action of this kind runs in a layer."""
    return (cost.forward, cost.backward, cost.input_gradient, cost.weight_gradient)[kind]


def add_instances(state: State) -> None:
    """Make blocks for the (chunk, action kind, variant, size) that occur, and one row per segment of every action."""
    order, ranks = state.order, state.pattern.rank
    state.variant = _variants(state)
    _find_scales(state)
    base, per_action = _blocks(state)
    pair = order.pair.astype(np.int64)
    second = (pair >= 0) & (pair < np.arange(len(pair)))
    per_action[second] = 0
    kept = per_action + state.updates if len(state.updates) else per_action
    ends = np.cumsum(kept)
    state.first_row, state.last_row = ends - kept, ends - kept + per_action - 1
    state.first_row[second], state.last_row[second] = state.first_row[pair[second]], state.last_row[pair[second]]
    total = int(ends[-1]) if len(ends) else 0
    action = np.repeat(np.arange(len(pair)), kept)
    part = np.arange(total) - state.first_row[action]
    fused = pair[action] >= 0
    compute = state.lanes("compute")
    partner = np.where(fused, pair[action], 0)
    batch = Batch(
        item=base[action] + part,
        kind=COMPUTE,
        rank=ranks[action],
        streams=compute[ranks[action]][:, None],
        action=np.where(fused, 5, order.kind[action]).astype(np.int64),
        chunk=order.chunk[action],
        microbatch=order.microbatch[action],
        part=part,
        count=order.count[action],
        slice=order.part[action],
        slices=order.parts[action],
        second_chunk=np.where(fused, order.chunk[partner], -1),
        second_microbatch=np.where(fused, order.microbatch[partner], -1),
        step=state.step_of(order.microbatch[action]),
    )
    if len(state.updates):
        _keep_updates(batch, part == per_action[action])
    state.add_rows(batch)


def _keep_updates(batch: Batch, update: np.ndarray) -> None:
    """Make these rows updates; what they run is filled in by the pass `asynchronous`."""
    for column, value in (("item", -1), ("action", 4), ("chunk", -1), ("microbatch", -1), ("part", 0)):
        getattr(batch, column)[update] = value
    for column, value in (("count", 1), ("slice", 0), ("slices", 1)):
        getattr(batch, column)[update] = value


def _blocks(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Make the blocks that occur: (first item, number of segments) of every action."""
    order = state.order
    classes = {chunk: number for number, chunk in enumerate(dict.fromkeys(state.chunks))}
    class_of = np.array([classes[c] for c in state.chunks], np.int64)
    scales = len(state.scales)
    key = ((class_of[order.chunk] * 4 + order.kind) * 3 + state.variant) * scales + state.scale
    size = len(classes) * 12 * scales
    base, count = np.zeros(size, np.int64), np.zeros(size, np.int64)
    names, made = list(classes), {}
    for code in np.flatnonzero(np.bincount(key, minlength=size)).tolist():
        rest, scale = divmod(code, scales)
        rest, variant = divmod(rest, 3)
        number, kind = divmod(rest, 4)
        segments = made[code] = _segments(state, names[number], kind, variant, scale)
        base[code], count[code] = len(state.items), len(segments)
        state.items.extend(segments)
        state.blocks.append(Block(name=segments[0].name, segments=segments))
    first, per_action = base[key], count[key]
    leads = np.flatnonzero(order.pair > np.arange(len(key)))
    if len(leads):
        both = key[leads] * size + key[order.pair[leads]]
        for code in np.unique(both).tolist():
            one, two = (made[c][0] for c in divmod(code, size))
            item = state.add_item(FusedSegment(name=f"({one.name}; {two.name})", first=one, second=two))
            first[leads[both == code]] = item
    return first, per_action
