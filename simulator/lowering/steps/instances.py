"""Pass 3: the compute rows: every action of the order runs the block of its chunk.

A block is one segment, unless links are anchored inside it; then it is cut there, in those actions only:

    variant 0   unbroken
    variant 1   a segment per FSDP unit (a layer, several, or all)
    variant 2   a segment per gradient bucket, inside of layers too (`bucket_parts`)
"""

from __future__ import annotations

import functools

import numpy as np

from simulator.lowering.layers.boundary import received
from simulator.lowering.layers.casts import maxima_table
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.steps.assign import Chunk, classes_of
from simulator.lowering.steps.bucket_parts import is_cut, parts_of
from simulator.lowering.steps.carried_units import carried
from simulator.lowering.steps.cut import BUCKETS, UNBROKEN, UNITS, Cut, Sizes, cut_chunk
from simulator.lowering.steps.parameters import weights_elsewhere
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Batch, Structure
from simulator.lowering.steps.unit_parts import quantising
from simulator.lowering.steps.windows import Windowing, find_windows, windowing
from simulator.program.program import COMPUTE, Block, FusedSegment, OperatorTable, Pieces, Segment
from simulator.workload.layer_kind import is_layer

__all__ = ["add_instances", "table_of"]

_DIRECTION = ("forward", "backward", "backward", "backward")
_TABLE = ("forward", "backward", "input_gradient", "weight_gradient")
_WEIGHT_GRADIENT = 3
"""Number of the action that does the weight gradients of a split backward."""


def _cut(state: State, chunk: Chunk, direction: str, variant: int) -> Cut:
    """Return how a pass over a chunk is cut."""
    resolved = state.resolved
    sizes: tuple[Sizes, ...] = ()
    if resolved.on_servers:
        sizes = tuple([((kind, 1.0),) for kind in chunk.different])
    elif variant == BUCKETS:
        parts = state.parts if direction == "backward" else {}
        sizes = tuple(
            [
                tuple(
                    (
                        part,
                        (state.costs[part].trained - weights_elsewhere(state, chunk, (part,)))
                        * resolved.gradient_bytes,
                    )
                    for part in parts.get(kind, (kind,))
                )
                for kind in chunk.different
            ]
        )
    unit = resolved.fsdp_unit if variant == UNITS else 0
    each = resolved.bucket_sizes if direction == "backward" else ()
    buckets = (each or (resolved.bucket_size,)) if variant == BUCKETS else ()
    buckets = (1.0,) if resolved.on_servers else buckets
    return cut_chunk(chunk, direction, variant, unit, sizes, buckets, resolved.activation_offload)


def _occurring(
    rows: Structure, class_of: tuple[int, ...], cuts: Windowing | None, buckets: str, gathers: bool
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Say how each action is cut (fused pairs never are); returns the codes of the blocks that occur, and those of fused pairs.

    Args:
        class_of: per chunk: its number among the different ones.
        cuts: how ZeRO-3 gathers and reduces, unit by unit.
        buckets: which backwards are cut in buckets of gradients: "all", "last" of a chunk, that of each "step", whose first forward is
            cut in the same layers, or none.
        gathers: whether the first forward of a chunk is cut in buckets of weights.
    """
    order = rows.order
    out = np.zeros(len(order.kind), np.int64)
    if cuts is not None:
        out[find_windows(rows, cuts).cut] = UNITS
    elif buckets == "step":
        out[rows.of_each_step((1, 3), last=True) | rows.of_each_step((0,), last=False)] = BUCKETS
    elif buckets:
        out[order.completes if buckets == "all" else rows.pattern.last_backward] = BUCKETS
    if gathers:
        out[rows.pattern.first_forward] = BUCKETS
    out[order.pair >= 0] = UNBROKEN
    rows.variant = out
    key = _codes(rows, class_of)
    leads = np.flatnonzero(order.pair > np.arange(len(key)))
    size = (max(class_of) + 1) * 12 * max(1, len(rows.sizes))
    pairs = np.unique(key[leads] * size + key[order.pair[leads]]).tolist() if len(leads) else []
    return tuple(np.flatnonzero(np.bincount(key)).tolist()), tuple(divmod(code, size) for code in pairs)


def _codes(rows: Structure, class_of: tuple[int, ...]) -> np.ndarray:
    """Per action: a number for what chunk it runs, in which direction, how it is cut and how much of a microbatch it is."""
    order = rows.order
    key: np.ndarray = (np.array(class_of, np.int64)[order.chunk] * 4 + order.kind) * 3 + rows.variant
    return key * max(1, len(rows.sizes)) + rows.scale


def _block(state: State, number: int, chunk: Chunk, kind: int, variant: int, scale: int) -> Block:
    direction, costs = _DIRECTION[kind], state.scales[scale]
    cut = state.cuts[(number, direction, variant)] = _cut(state, chunk, direction, variant)
    around: tuple[Around, ...] = ()
    if variant == UNITS:
        around = tuple([(quantising(state, group, kind), carried(state, group, kind)) for group in cut.different])
    tables = tuple([table_of(costs[layer], kind) for layer in cut.kinds])
    arrived, maxima = received(state, chunk, kind, scale), _maxima(state, chunk, kind)
    return _made(chunk, kind, cut, tables, around, tuple(arrived), tuple(maxima))


Around = tuple[tuple[OperatorTable | None, OperatorTable | None], ...]
"""What is done to the weights of a unit before its layers run, and behind them, from the inside out."""


@functools.lru_cache(maxsize=2048)
def _made(
    chunk: Chunk,
    kind: int,
    cut: Cut,
    tables: tuple[OperatorTable, ...],
    around: tuple[Around, ...],
    arrived: Pieces,
    maxima: Pieces,
) -> Block:
    """The block of an action on a chunk.

    Args:
        tables: of each kind of layer of the cut what it runs.
        around: of each different piece of the cut, where these are units.
        arrived: what is done to what arrived for the first of its layers; `maxima`: what ends the pass.
    """
    of_kind = dict(zip(cut.kinds, tables, strict=True))
    runs = [_pieces(of_kind, (), run, around[number] if around else ()) for number, run in enumerate(cut.runs)]
    which = cut.which
    if arrived:
        first = which[0]
        runs.append(_pieces(of_kind, arrived, cut.runs[first], around[first] if around else ()))
        which = (len(runs) - 1, *which[1:])
    if maxima:
        runs.append(runs[which[-1]] + maxima)
        which = (*which[:-1], len(runs) - 1)
    ends = " + embedding" * chunk.embedding + " + head" * chunk.head
    name = f"{'FBIW'[kind]} of {chunk.layers} layer{'s' * (chunk.layers != 1)}{ends}"
    titles = [name] if len(which) == 1 else [f"{name}, part {number}" for number in range(len(which))]
    segments = [Segment(name=n, pieces=runs[w], phase=_DIRECTION[kind]) for n, w in zip(titles, which, strict=True)]
    return Block(name=titles[0], segments=tuple(segments))


def _pieces(
    of_kind: dict[str, OperatorTable], arrived: Pieces, run: tuple[tuple[str, int], ...], around: Around
) -> Pieces:
    """The operators of layers that run without a break, (kind, how many), after what is done to what arrived for them, and between what
    is done to their weights."""
    pieces = list(arrived)
    for layer, count in run:
        table = of_kind[layer]
        if pieces and pieces[-1][0] is table:
            pieces[-1] = (table, pieces[-1][1] + count)
        else:
            pieces.append((table, count))
    for before, after in around:
        pieces = [(t, 1) for t in (before,) if t] + pieces + [(t, 1) for t in (after,) if t]
    return tuple(pieces)


def _maxima(state: State, chunk: Chunk, kind: int) -> list[tuple[OperatorTable, int]]:
    """What ends a pass over a chunk under delayed scaling; the weight gradients of a split backward find no maxima."""
    resolved = state.resolved
    if not resolved.precision.shares_maxima or not chunk.layers or kind == _WEIGHT_GRADIENT:
        return []
    sizes = dict(resolved.axes)
    axes = dict.fromkeys((*resolved.replica_axes, *resolved.groups.context, *resolved.groups.tensor))
    group = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
    if not group:
        return []
    return [(maxima_table(chunk.layers, group, _DIRECTION[kind]), 1)]


def table_of(cost: LayerCost, kind: int) -> OperatorTable:
    """Return the operators that an action of this kind runs in a layer."""
    table: OperatorTable = getattr(cost, _TABLE[kind])
    return table


def add_instances(state: State) -> None:
    """Make blocks for the (chunk, action kind, variant, size) that occur, and one row per segment of every action."""
    resolved = state.resolved
    names, class_of = classes_of(state.chunks)
    reduces = resolved.zero_stage < 3 and resolved.overlap_gradients and resolved.reduces
    when = "step" if resolved.on_servers else "all" if resolved.reduces_each else "last"
    codes, pairs = state.build(
        _occurring,
        class_of,
        windowing(resolved),
        when if reduces or resolved.gradients_leave else "",
        resolved.overlap_parameters,
    )
    sizes = state.structure.sizes
    state.scales = [state.scaled_costs(*size) for size in sizes] if sizes else [state.costs]
    scales = len(state.scales)
    if BUCKETS in state.structure.variant and not resolved.on_servers:
        _cut_layers(state)
    made: dict[int, Block] = {}
    bases = []
    for code in codes:
        rest, scale = divmod(code, scales)
        rest, variant = divmod(rest, 3)
        number, kind = divmod(rest, 4)
        state.occurring.setdefault((number, kind > 0, scale), set()).add(variant)
        block = made[code] = _block(state, number, names[number], kind, variant, scale)
        bases.append((code, len(state.items), len(block.segments)))
        state.items.extend(block.segments)
        state.blocks.append(block)
    fused = []
    for both in pairs:
        one, two = (made[code].segments[0] for code in both)
        item = state.add_item(FusedSegment(name=f"({one.name}; {two.name})", first=one, second=two))
        fused.append((*both, item))
    state.build(_add_actions, class_of, tuple(bases), tuple(fused))


def _cut_layers(state: State) -> None:
    """Say of the layers that are larger than a bucket which parts of them their backward is cut in, and what these cost."""
    resolved = state.resolved
    fused = bool(resolved.bucket_sizes and resolved.framework.cycle_time)
    most = 1.0 if fused else min(resolved.bucket_sizes or (resolved.bucket_size,)) / resolved.gradient_bytes
    for kind in [kind for kind, cost in state.costs.items() if is_layer(kind) and is_cut(cost, most, resolved)]:
        found = [parts_of(costs[kind], most) for costs in (state.costs, *state.scales)]
        names = state.parts[kind] = tuple(f"{kind} part {n}" for n in range(len(found[0])))
        state.costs, *state.scales = (
            {**costs, **dict(zip(names, parts, strict=True))}
            for costs, parts in zip((state.costs, *state.scales), found, strict=True)
        )


def _add_actions(
    rows: Structure,
    class_of: tuple[int, ...],
    bases: tuple[tuple[int, int, int], ...],
    fused: tuple[tuple[int, int, int], ...],
) -> None:
    """Add one row per segment of every action.

    Args:
        class_of: per chunk: its number among the different ones.
        bases: (code of a block, its first item, how many) of all that occur.
        fused: (code, code, item) of fused pairs.
    """
    order, ranks = rows.order, rows.pattern.rank
    key = _codes(rows, class_of)
    table = np.zeros((int(key.max(initial=0)) + 1, 2), np.int64)
    for code, *where in bases:
        table[code] = where
    base, per_action = table[key].T.copy()
    pair = order.pair.astype(np.int64)
    leads = np.flatnonzero(pair > np.arange(len(pair)))
    for one, two, item in fused:
        base[leads[(key[leads] == one) & (key[pair[leads]] == two)]] = item
    second = (pair >= 0) & (pair < np.arange(len(pair)))
    per_action[second] = 0
    kept = per_action + rows.updates if len(rows.updates) else per_action
    ends = np.cumsum(kept)
    rows.first_row, rows.last_row = ends - kept, ends - kept + per_action - 1
    rows.first_row[second], rows.last_row[second] = rows.first_row[pair[second]], rows.last_row[pair[second]]
    total = int(ends[-1]) if len(ends) else 0
    rows.check_size(total)
    action = np.repeat(np.arange(len(pair)), kept)
    part = np.arange(total) - rows.first_row[action]
    partner = pair[action]
    joined, compute = partner >= 0, rows.lanes("compute")
    batch = Batch(
        item=base[action] + part,
        kind=COMPUTE,
        rank=ranks[action],
        streams=compute[ranks[action]][:, None],
        action=np.where(joined, 5, order.kind[action]),
        chunk=order.chunk[action],
        microbatch=order.microbatch[action],
        part=part,
        count=order.count[action],
        slice=order.part[action],
        slices=order.parts[action],
        second_chunk=np.where(joined, order.chunk[partner], -1) if len(leads) else -1,
        second_microbatch=np.where(joined, order.microbatch[partner], -1) if len(leads) else -1,
        step=rows.step_of(order.microbatch[action]),
    )
    if len(rows.updates):
        _keep_updates(batch, part == per_action[action])
    rows.add_rows(batch)


def _keep_updates(batch: Batch, update: np.ndarray) -> None:
    """Make these rows updates; what they run is filled in by the pass `asynchronous`."""
    for column, value in (("item", -1), ("action", 4), ("chunk", -1), ("microbatch", -1), ("part", 0)):
        getattr(batch, column)[update] = value
    for column, value in (("count", 1), ("slice", 0), ("slices", 1)):
        getattr(batch, column)[update] = value
