"""Pass 7: the end of the step: global gradient norm, optimizer, and the gather of weights that ZeRO-1 and 2 updated in shards."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import numpy as np

from simulator.lowering.assign import Chunk
from simulator.lowering.casts import add_casts
from simulator.lowering.hops import REDUCING_LANES
from simulator.lowering.host_shards import shard_bytes
from simulator.lowering.offload import add_host_update
from simulator.lowering.parameter_offload import add_shards_down
from simulator.lowering.parameters import Held, contents, rank_chunks, rank_held, small_parameters
from simulator.lowering.reduce import meet_holders
from simulator.lowering.rows import Rows
from simulator.lowering.settled import Settled
from simulator.lowering.state import Batch, State
from simulator.lowering.unit_parts import gather_link, kept_tensors, listed
from simulator.program.program import COLLECTIVE, COMPUTE, Link, OperatorTable, Segment, Tensor
from simulator.workload.optimizers import OPTIMIZERS

__all__ = [
    "add_update",
    "gradients_dropped",
    "kept_gradient",
    "listed_results",
    "optimizer_bytes",
    "tensors_held",
    "update_segments",
    "weight_gathers",
]

TENSORS_PER_LAYER = 12
"""Weight tensors of a transformer layer, norms and biases included; sets the kernel launches of an unfused optimizer."""
TENSORS_PER_LAUNCH = 30
"""Tensors one multi-tensor-apply launch covers (four lists of pointers in a kernel's argument space)."""


def optimizer_bytes(state: State) -> float:
    """Bytes of optimizer state per parameter, the fp32 master weight included."""
    numbers = state.workload.numbers
    cost = OPTIMIZERS.get(state.workload.optimizer).cost(
        numbers.element, state.settled.gradient_bytes, numbers.master_weights
    )
    return cost.state + (4.0 if numbers.master_weights else 0.0)


def kept_gradient(state: State) -> float:
    """Bytes per weight of the gradients that are kept; beside fp32 shards that are the only copy of the weights they are fp32."""
    return 4.0 if shard_bytes(state) > state.settled.precision.element else float(state.settled.gradient_bytes)


def tensors_held(state: State, rank: int) -> int:
    """Weight tensors on a rank."""
    held = [state.chunks[c] for _, c in rank_chunks(state, rank)]
    return sum(TENSORS_PER_LAYER * c.layers + 2 * c.embedding + 2 * c.head for c in held)


def add_update(state: State) -> None:
    """Add norm, optimizer and gather rows for every pipeline rank."""
    settled = state.settled
    if len(state.updates):
        return  # where steps run into each other they stand amid the actions: pass `asynchronous`
    compute, lane = state.lanes("compute"), state.lanes("dp")
    final = state.last_row[state.order.rank_offsets[1:] - 1]
    rank, reduced = _last_reductions(state)
    alone = np.setdiff1d(np.arange(state.ranks), rank)
    rank, before = np.append(rank, alone), np.append(reduced, final[alone])
    if settled.clip_gradients or settled.precision.loss_scaling:
        norm = _segments(state, (_norm_table,), "gradient norm", synchronises=False)
        rows = _compute(state, norm, compute)
        state.wait(rows[rank], before)
        item = state.add_item(
            Link(
                name="all_reduce gradient norm",
                kind=COLLECTIVE,
                message=8.0,
                dtype="fp32",
                group=_norm_group(state),
                pipeline_ranks=tuple(range(state.ranks)),
                account="dp",
                collective="all_reduce",
            )
        )
        joined = state.add_rows(
            Batch(item=np.array([item]), kind=COLLECTIVE, rank=np.array([0]), streams=lane[None, :])
        )
        state.wait(np.full(state.ranks, joined[0]), rows)
        rank, before = np.arange(state.ranks), np.full(state.ranks, joined[0])
    rows = _compute(state, _segments(state, (_optimizer_table,), "optimizer", synchronises=True), compute)
    state.wait(rows[rank], before)
    state.touch("mark", rows, [state.effect(_stands_in_update(state, r)) for r in range(state.ranks)])
    hosts, back = add_host_update(state, lambda held: _mine(state, held), rank, before)
    if settled.zero_stage in (1, 2) and not settled.overlap_parameters:
        _gather(state, rows, lane, hosts, back)
    if settled.zero_stage == 3 and settled.framework.keeps_tensors_below:
        _gather_kept(state, rows, lane)
    if settled.parameter_offload:
        on_host = [settled.optimizer_offload * _mine(state, rank_held(state, r)) for r in range(state.ranks)]
        add_shards_down(state, [rows, back] if len(hosts) else [rows], on_host)


def _norm_group(state: State) -> tuple[str, ...]:
    """Mesh axes of the ranks that hold different gradients: all that split weights, and those that shard states."""
    groups = state.settled.groups
    sharded = groups.shards if state.settled.zero_stage else groups.expert
    return tuple(dict.fromkeys((*groups.tensor, *sharded, "pp")))


def _last_reductions(state: State) -> tuple[np.ndarray, np.ndarray]:
    """(pipeline rank, row): the last row so far on every stream on which a rank adds gradients."""
    owner = np.full(len(state.streams), -1, np.int64)
    for (rank, name), stream in state.streams.items():
        if name in REDUCING_LANES:
            owner[stream] = rank
    last = np.full(len(owner), -1, np.int64)
    start = 0
    for batch in state.batches:
        n = len(batch.item)
        if batch.kind == COLLECTIVE:
            rows = np.arange(start, start + n)
            for column in batch.streams.T:
                known = column >= 0
                np.maximum.at(last, column[known], rows[known])
        start += n
    some = np.flatnonzero((last >= 0) & (owner >= 0))
    return owner[some], last[some]


def _compute(state: State, items: np.ndarray, compute: np.ndarray) -> np.ndarray:
    return state.add_rows(
        Batch(item=items, kind=COMPUTE, rank=np.arange(state.ranks), streams=compute[:, None], action=4)
    )


def update_segments(state: State) -> np.ndarray:
    """Return, per rank, the segment that changes its weights without waiting for other ranks or the host.

    Loss scaling then checks each rank's own gradients; a global norm is checked afterwards.
    """
    settled = state.settled
    local = settled.precision.loss_scaling or settled.sequence_parallel or settled.clip_gradients
    tables = (_norm_table, _optimizer_table) if local else (_optimizer_table,)
    return _segments(state, tables, "update", synchronises=False)


def _segments(
    state: State, tables: tuple[Callable[..., OperatorTable], ...], name: str, synchronises: bool
) -> np.ndarray:
    """One segment per different rank content."""
    alike: dict[tuple[Chunk, ...], int] = {}
    known: dict[tuple[Held, float, float], int] = {}
    out = []
    for rank in range(state.ranks):
        mine = contents(state, rank)
        if mine not in alike:
            key = (rank_held(state, rank), small_parameters(state, rank), float(tensors_held(state, rank)))
            if key not in known:
                pieces = tuple((table(state, *key), 1) for table in tables)
                segment = Segment(name=name, pieces=pieces, phase="optimizer", synchronises=synchronises)
                known[key] = state.add_item(segment)
            alike[mine] = known[key]
        out.append(alike[mine])
    return np.array(out)


def _mine(state: State, held: Held, stage: int = 1) -> float:
    """Weights of which this rank keeps the states that a ZeRO stage shards [count]."""
    return held.sharded(state.settled) if state.settled.zero_stage >= stage else held.all


def _stands_in_update(state: State, rank: int) -> tuple[Tensor, ...]:
    """Gradients that stand beside activations in no step, and what an update over lists of tensors makes on its way."""
    found = [("results of the update", "workspace", listed_results(state, rank))]
    if gradients_dropped(state.settled):
        found.append(("gradients", "gradients", _mine(state, rank_held(state, rank), 2) * kept_gradient(state)))
    return tuple(Tensor(name=name, category=category, bytes=size) for name, category, size in found if size)


def listed_results(state: State, rank: int) -> float:
    """Bytes of the results that an update over lists of tensors makes: one per weight, as wide as the moments.

    torch.optim documents "about sizeof(params) more peak memory" for its foreach form: roots of all second moments stand at once.
    """
    settled, numbers = state.settled, state.workload.numbers
    if not settled.framework.updates_in_lists:
        return 0.0
    mine = _mine(state, rank_held(state, rank)) * (1.0 - settled.optimizer_offload)
    times = OPTIMIZERS.get(state.workload.optimizer).listed_results
    return times * mine * (4.0 if numbers.master_weights else float(numbers.element))


def gradients_dropped(settled: Settled) -> bool:
    """Whether gradients stand during the update only: freed by it, and made while the activations of the one microbatch go.

    Of the layers whose gradients stand the activations are gone, so the peak lies at one end of the backward: all activations, or
    all gradients.  With more microbatches those of the first stand beside the activations of the next.
    """
    alone = settled.microbatches == 1 and settled.pipeline_parallel == 1
    return settled.framework.drops_gradients and alone and settled.optimizer_offload == 0.0


def _norm_table(state: State, held: Held, small: float, tensors: float) -> OperatorTable:
    """Local part of the gradient norm, overflow check and unscaling, and the sum of the norms' gradients under SP."""
    settled = state.settled
    gradients = _mine(state, held) * settled.gradient_bytes
    rows = Rows("gradient norm")
    if settled.sequence_parallel:
        rows.add(
            label="norm gradients all_reduce",
            kind=COLLECTIVE,
            work="all_reduce",
            message=small * settled.gradient_bytes,
            group=settled.groups.tensor,
            dtype=settled.gradient_dtype,
            phase="optimizer",
        )
    launches = max(1, round(tensors / TENSORS_PER_LAUNCH))
    common = {"work": "memory_bound", "dtype": settled.gradient_dtype, "phase": "optimizer"}
    if settled.precision.loss_scaling:
        rows.add(label="unscale gradients", read=gradients, written=gradients, launches=launches, **common)
    if settled.clip_gradients:
        rows.add(label="gradient norm", read=gradients, launches=launches + 2, **common)
        rows.add(label="clip gradients", read=gradients, written=gradients, launches=launches, **common)
    return rows.table()


def _optimizer_table(state: State, held: Held, small: float, tensors: float) -> OperatorTable:
    """The optimizer's traffic on this rank's shard, and clearing the gradients."""
    settled = state.settled
    numbers = state.workload.numbers
    cost = OPTIMIZERS.get(state.workload.optimizer).cost(
        numbers.element, settled.gradient_bytes, numbers.master_weights
    )
    mine = _mine(state, held) * (1.0 - settled.optimizer_offload)
    fused = settled.framework.fused_optimizer
    launches = max(cost.fused_launches, round(tensors / TENSORS_PER_LAUNCH)) if fused else int(12 * tensors)
    rows = Rows("optimizer")
    rows.add(
        label=state.workload.optimizer,
        work="memory_bound",
        dtype="fp32",
        flops=cost.flops * mine,
        read=cost.read * mine * (1 if fused else 2),
        written=cost.written * mine * (1 if fused else 2),
        phase="optimizer",
        launches=launches,
    )
    if not (settled.framework.casts_gathered and settled.zero_stage == 3):
        add_casts(rows, "weights", held.all, settled.precision, phase="optimizer", launches=max(1, int(tensors)))
    if settled.reduce_dtype != settled.gradient_dtype and settled.reduces:
        wide, narrow, times = settled.gradient_bytes, settled.reduce_bytes, settled.reductions
        updated = _mine(state, held)
        rows.add(
            label=f"cast gradients to {settled.reduce_dtype} and back",
            work="memory_bound",
            dtype=settled.gradient_dtype,
            read=times * (wide * held.all + narrow * updated),
            written=times * (narrow * held.all + wide * updated),
            phase="optimizer",
            launches=2 * times * max(1, round(tensors / TENSORS_PER_LAUNCH)),
        )
    flat = _flat_copies(state, held)
    if any(flat):
        rows.add(
            label="flatten gradients",
            work="memory_bound",
            dtype=settled.gradient_dtype,
            read=flat[0],
            written=flat[1],
            phase="optimizer",
            launches=3 * max(1, round(tensors / TENSORS_PER_LAUNCH)),
        )
    rows.add(
        label="clear gradients",
        work="memory_bound",
        dtype=settled.gradient_dtype,
        written=_mine(state, held, 2) * settled.gradient_bytes * (settled.lanes if settled.zero_stage == 2 else 1),
        phase="optimizer",
        launches=2,
    )
    return rows.table()


def _flat_copies(state: State, held: Held) -> tuple[float, float]:
    """Return the bytes (read, written) of a framework's flat copies of gradients; what stands of them is in `habits`.

    Replicas reduce through flat buckets: a copy into them, and one back but where ZeRO-1 and 2 reduce each part to its owner
    alone.  The optimizer's part is then flattened and cast to fp32; without ZeRO the other way round; fp32 gradients are updated
    in place.
    """
    settled = state.settled
    if not settled.framework.flattens_gradients or settled.zero_stage == 3:
        return 0.0, 0.0
    width, whole = settled.gradient_bytes, not settled.zero_stage or settled.framework.reduces_whole
    buckets = (2.0 if whole else 1.0) * width * held.all if settled.replicas > 1 else 0.0
    if width > settled.precision.element:
        return buckets, buckets
    if settled.zero_stage or settled.replicas == 1:
        mine = _mine(state, held)
        return buckets + 2.0 * width * mine, buckets + (width + 4.0) * mine
    return buckets + (width + 4.0) * held.all, buckets + 8.0 * held.all


def _gather(state: State, updated: np.ndarray, lane: np.ndarray, hosts: np.ndarray, back: np.ndarray) -> None:
    """Gather the weights that the ranks of a group updated; those updated on the host when they are back."""
    if state.placement.lanes > 1:
        for chunk in range(len(state.chunks)):
            holders = sorted({int(r) for r in state.placement.rank_of[:, chunk]})
            element = float(state.settled.precision.element)
            for row in meet_holders(state, "all_gather", "weights", chunk, holders, element):
                for done in (updated, back) if len(hosts) else (updated,):
                    state.wait(np.full(len(holders), row), done[np.array(holders)])
        return
    found = [weight_gathers(state, r) for r in range(state.ranks)]
    rank = np.repeat(np.arange(state.ranks), [len(items) for items in found])
    items = np.array([i for some in found for i in some], np.int64)
    rows = state.add_rows(Batch(item=items, kind=COLLECTIVE, rank=rank, streams=lane[rank][:, None]))
    state.wait(rows, updated[rank])
    if len(hosts):
        state.wait(rows, back[rank])


def _gather_kept(state: State, updated: np.ndarray, lane: np.ndarray) -> None:
    """Gather the small tensors that ZeRO-3 does not drop: all at once; from a list each is put together slice by slice."""
    settled = state.settled
    group = settled.groups.shards
    for rank in range(state.ranks):
        kept = kept_tensors(state, (kind for chunk in contents(state, rank) for kind in chunk.kinds))
        if not kept or settled.shard_size == 1:
            continue
        item = gather_link(
            state,
            f"small tensors of rank {rank}",
            sum(kept) * settled.precision.element,
            group,
            slices=(1 + len(kept)) * listed(settled, group),
        )
        row = state.add_rows(
            Batch(item=np.array([item]), kind=COLLECTIVE, rank=np.array([rank]), streams=lane[[rank]][:, None])
        )
        state.wait(row, updated[[rank]])


def weight_gathers(state: State, rank: int) -> list[int]:
    """Return the gathers of the weights that a rank's replicas updated in shards, or the broadcasts of those who own them."""
    settled, found = state.settled, []
    for what, count, group in rank_held(state, rank).parts(settled):
        owned = _owned(state, rank) if settled.framework.broadcasts_updates and not what else ()
        for collective, size, times in [("broadcast", *some) for some in owned] or [("all_gather", count, 1)]:
            item = state.add_item(
                Link(
                    name=f"{collective} weights of rank {rank}{what}",
                    kind=COLLECTIVE,
                    message=size * settled.precision.element,
                    dtype=settled.precision.compute,
                    group=group,
                    pipeline_ranks=(),
                    account="dp",
                    collective=collective,
                )
            )
            found += [item] * times
    return found


def _owned(state: State, rank: int) -> list[tuple[float, int]]:
    """(weights, how many ranks own as many) where tensors are dealt out whole: the largest first, to whom has least."""
    tensors = [
        size
        for _, c in rank_chunks(state, rank)
        for kind in state.chunks[c].kinds
        for size in state.costs[kind].tensors
    ]
    loads = [0.0] * min(state.settled.shard_size, len(tensors))
    for size in sorted(tensors, reverse=True):
        heapq.heapreplace(loads, loads[0] + size)
    return sorted(Counter(loads).items(), reverse=True)
