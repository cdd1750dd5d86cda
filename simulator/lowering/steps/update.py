"""Pass 7: the end of the step: global gradient norm, optimizer, and the gather of weights that ZeRO-1 and 2 updated in shards."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import numpy as np

from simulator.lowering.memory.host_shards import shard_bytes
from simulator.lowering.memory.offload import add_host_update
from simulator.lowering.memory.parameter_offload import add_shards_down
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.exchange import add_exchange_beside, exchange_pieces, exchanged_matrices
from simulator.lowering.steps.flat_gradients import flat_copies
from simulator.lowering.steps.hops import REDUCING_LANES
from simulator.lowering.steps.orthogonal import orthogonal_matrices, orthogonal_pieces
from simulator.lowering.steps.parameters import (
    Held,
    Matrices,
    all_alike,
    contents,
    rank_chunks,
    rank_held,
    summed_parameters,
)
from simulator.lowering.steps.reduce import meeting_links
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.lowering.steps.unit_parts import kept_tensors, listed
from simulator.lowering.steps.update_tables import Summed, UpdateFacts, norm_table, optimizer_table, update_facts
from simulator.program.program import COLLECTIVE, COMPUTE, OperatorTable, Segment, Tensor
from simulator.workload.optimizers import OPTIMIZERS, optimizer_cost

__all__ = [
    "add_update",
    "gradients_await_update",
    "gradients_dropped",
    "kept_gradient",
    "listed_results",
    "master_bytes",
    "optimizer_bytes",
    "states_kept",
    "tensors_held",
    "update_segments",
    "weight_gathers",
]

TENSORS_PER_LAYER = 12
"""Weight tensors of a transformer layer, norms and biases included; sets the kernel launches of an unfused optimizer."""


def optimizer_bytes(state: State, others: float = 0.0) -> float:
    """Bytes of optimizer state per parameter, the fp32 master weight included.

    Args:
        others: share of the parameters that the optimizer leaves to another.
    """
    numbers = state.workload.numbers
    if state.resolved.on_servers:
        return master_bytes(state)
    facts = numbers.element, state.resolved.gradient_bytes, numbers.master_weights
    cost = optimizer_cost(state.workload.optimizer, *facts, others, state.resolved.moment_bytes)
    return cost.state + master_bytes(state)


def master_bytes(state: State) -> float:
    """Return the bytes of a weight's copy that is updated: in fp32, or the lower half of it, where the bf16 weight is the upper one; in the
    weights' own format where a code updates flat copies of shards all the same; else 0.

    Where servers update it is theirs, but for codes whose own weights are fp32.  DeepSpeed: runtime/zero/stage3.py, _create_fp32_partitions
    (converted.clone()), and runtime/zero/stage_1_and_2.py, single_partition_of_fp32_groups, whatever master_weights_and_grads_dtype is.
    """
    wide = state.resolved.style.autocast or shard_bytes(state) > state.resolved.precision.element
    if state.resolved.on_servers and not wide:
        return 0.0
    numbers = state.workload.numbers
    if not numbers.master_weights:
        flat = state.resolved.framework.flattens_gradients and state.resolved.zero_stage
        return float(numbers.element) if flat else 0.0
    return 2.0 if state.resolved.splits_master_weights and numbers.compute == "bf16" else 4.0


def kept_gradient(state: State) -> float:
    """Bytes per weight of the gradients that are kept; beside fp32 shards that are the only copy of the weights they are fp32."""
    return 4.0 if shard_bytes(state) > state.resolved.precision.element else float(state.resolved.gradient_bytes)


def tensors_held(state: State, rank: int) -> int:
    """Weight tensors that are updated on a rank."""
    if state.workload.model.lora_rank:
        return sum(len(state.costs[kind].trained_tensors) for c in contents(state, rank) for kind in c.kinds)
    return sum([TENSORS_PER_LAYER * c.layers + 2 * c.embedding + 2 * c.head for c in contents(state, rank)])


def add_update(state: State) -> None:
    """Add norm, optimizer and gather rows for every pipeline rank."""
    resolved = state.resolved
    if len(state.updates):
        return  # where steps run into each other they stand amid the actions: pass `asynchronous`
    facts, updates = update_facts(state), _updates(state)
    add_exchange_beside(state)
    rank, before = state.build(_last_reductions)
    tables: tuple[Callable[..., OperatorTable], ...] = (optimizer_table,)
    if not (resolved.clip_gradients or resolved.precision.loss_scaling):
        tables = (norm_table, optimizer_table) if _sums_gradients(state) else tables
    else:
        norm = _segments(state, facts, updates, (norm_table,), "gradient norm", synchronises=False)
        everyone = tuple(range(state.ranks))
        item = state.link("all_reduce", "gradient norm", 8.0, "fp32", _norm_group(state), pipeline_ranks=everyone)
        rank, before = state.build(_add_norm, norm, item)
    optimizer = _segments(state, facts, updates, tables, "optimizer", synchronises=True)
    alike = all_alike(state)
    stands = {rank: state.effect(_stands_in_update(state, rank)) for rank in dict.fromkeys(alike)}
    rows = state.build(_add_optimizer, optimizer)
    state.stand(_stand, tuple([stands[first] for first in alike]))
    hosts, back = add_host_update(state, lambda held: states_kept(state, held), rank, before)
    if resolved.zero_stage in (1, 2) and not resolved.overlap_parameters:
        _gather(state, hosts, back)
    if resolved.zero_stage == 3 and resolved.framework.keeps_tensors_below:
        _gather_kept(state)
    if resolved.parameter_offload:
        on_host = [resolved.optimizer_offload * states_kept(state, rank_held(state, r)) for r in range(state.ranks)]
        add_shards_down(state, [rows, back] if len(hosts) else [rows], on_host)


def _last_reductions(rows: Structure) -> tuple[np.ndarray, np.ndarray]:
    """Return (pipeline rank, row) pairwise: what must have ended before a rank has its gradients; no row.

    The last row so far on every stream on which it adds gradients, or its last action.
    """
    rows.lanes("compute"), rows.lanes("dp")
    owner = np.full(len(rows.streams), -1, np.int64)
    for (rank, name), stream in rows.streams.items():
        if name in REDUCING_LANES:
            owner[stream] = rank
    last = np.full(len(owner), -1, np.int64)
    start = 0
    for batch in rows.batches:
        n = len(batch.item)
        if batch.kind == COLLECTIVE:
            numbers = np.arange(start, start + n)
            for column in batch.streams.T:
                known = column >= 0
                last[column[known]] = numbers[known]  # they rise: of several rows of a stream the last one stays
        start += n
    some = np.flatnonzero((last >= 0) & (owner >= 0))
    final = rows.last_row[rows.order.rank_offsets[1:] - 1]
    alone = np.flatnonzero(np.bincount(owner[some], minlength=rows.ranks) == 0)
    rows.waited = np.append(owner[some], alone), np.append(last[some], final[alone])
    return rows.waited


def _add_norm(rows: Structure, norm: tuple[int, ...], item: int) -> tuple[np.ndarray, np.ndarray]:
    """Add each rank's part of the gradient norm and the sum that all wait for; returns (rank, row) as `_last_reductions`."""
    rank, before = rows.waited
    parts = _compute(rows, norm)
    rows.wait(parts[rank], before)
    joined = rows.across("dp", np.array([item]), range(rows.ranks))
    rows.wait(np.full(rows.ranks, joined[0]), parts)
    rows.waited = np.arange(rows.ranks), np.full(rows.ranks, joined[0])
    return rows.waited


def _add_optimizer(rows: Structure, optimizer: tuple[int, ...]) -> np.ndarray:
    """Add each rank's optimizer; returns its rows."""
    rank, before = rows.waited
    rows.updated = _compute(rows, optimizer)
    rows.wait(rows.updated[rank], before)
    return rows.updated


def _stand(rows: Structure, effects: tuple[int, ...]) -> None:
    """Say what stands during each rank's optimizer."""
    rows.touch("mark", rows.updated, effects)


def _compute(rows: Structure, items: tuple[int, ...]) -> np.ndarray:
    return rows.on_lane("compute", np.array(items), np.arange(rows.ranks), COMPUTE, action=4)


def _norm_group(state: State) -> tuple[str, ...]:
    """Mesh axes of the ranks that hold different gradients: all that split weights, and those that shard states."""
    groups = state.resolved.groups
    sharded = groups.shards if state.resolved.zero_stage else groups.expert
    # ranks along these hold the same weights, but for the experts
    apart = (axis for axis in groups.copies if axis in groups.expert)
    return tuple(dict.fromkeys((*groups.tensor, *sharded, *apart, "pp")))


def update_segments(state: State) -> tuple[int, ...]:
    """Return, per rank, the segment that changes its weights without waiting for other ranks or the host; nothing where servers do.

    Loss scaling then checks each rank's own gradients; a global norm is checked afterwards.
    """
    resolved = state.resolved
    if resolved.on_servers:
        wait = state.add_item(Segment(name="end of the step", pieces=(), phase="optimizer", synchronises=True))
        return (wait,) * state.ranks
    local = resolved.precision.loss_scaling or _sums_gradients(state) or resolved.clip_gradients
    tables = (norm_table, optimizer_table) if local else (optimizer_table,)
    return _segments(state, update_facts(state), _updates(state), tables, "update", synchronises=False)


def _sums_gradients(state: State) -> bool:
    """Whether tensor-parallel ranks have terms of any gradients."""
    return any(summed_parameters(state, rank) for rank in dict.fromkeys(all_alike(state)))


Update = tuple[Held, float, float, Summed, float, Matrices, Matrices]
"""Of a rank: its weights, those whose states it keeps and those whose gradients it keeps [count], those of whose gradients ranks have a
term each, how many tensors it has, the matrices that the update makes orthogonal, and those that replicas
exchange as such."""


def _updates(state: State) -> dict[int, Update]:
    """What the update of each rank depends on, of those whose contents differ."""

    def update(rank: int) -> Update:
        held = rank_held(state, rank).trained
        mine = states_kept(state, held), states_kept(state, held, 2) * state.resolved.gradients_kept
        return (
            held,
            *mine,
            summed_parameters(state, rank),
            float(tensors_held(state, rank)),
            orthogonal_matrices(state, contents(state, rank)),
            exchanged_matrices(state, contents(state, rank)),
        )

    return {rank: update(rank) for rank in dict.fromkeys(all_alike(state))}


def _segments(
    state: State,
    facts: UpdateFacts,
    updates: dict[int, Update],
    tables: tuple[Callable[..., OperatorTable], ...],
    name: str,
    synchronises: bool,
) -> tuple[int, ...]:
    """Return, per rank, its segment; one for all whose updates are alike."""
    items: dict[Update, int] = {}
    for update in dict.fromkeys(updates.values()):
        held, *counts, matrices, exchanged = update
        own = update_facts(state, held.others / held.all) if held.others else facts
        pieces = tuple([(table(own, held.all, *counts), 1) for table in tables])
        if optimizer_table in tables:
            pieces += orthogonal_pieces(state, held, matrices)
            before, behind = exchange_pieces(held, state.resolved, exchanged)
            pieces = before + pieces + behind
        made = Segment(name=name, pieces=pieces, phase="optimizer", synchronises=synchronises)
        items[update] = state.add_item(made)
    of_rank = {rank: items[update] for rank, update in updates.items()}
    return tuple([of_rank[first] for first in all_alike(state)])


def states_kept(state: State, held: Held, stage: int = 1) -> float:
    """Weights of which this rank keeps the states that a ZeRO stage shards [count]."""
    held = held.trained
    return held.sharded(state.resolved) if state.resolved.zero_stage >= stage else held.all


def _stands_in_update(state: State, rank: int) -> tuple[Tensor, ...]:
    """Gradients that stand beside activations in no step, and what an update over lists, or of flat tensors, makes on its way."""
    found = [
        ("results of the update", "workspace", listed_results(state, rank)),
        ("flat copies of gradients", "workspace", flat_copies(state, rank_held(state, rank).trained).stand),
    ]
    shards_stand = state.resolved.zero_stage == 3  # those of units, since their reductions
    if gradients_await_update(state.resolved) and not shards_stand:
        found.append(("gradients", "gradients", states_kept(state, rank_held(state, rank), 2) * kept_gradient(state)))
    return tuple(Tensor(name=name, category=category, bytes=size) for name, category, size in found if size)


def listed_results(state: State, rank: int) -> float:
    """Bytes of the results that an update over lists of tensors makes: one per weight, as wide as the moments.

    torch.optim documents "about sizeof(params) more peak memory" for its foreach form: roots of all second moments stand at once.
    """
    resolved, numbers = state.resolved, state.workload.numbers
    rule, width = OPTIMIZERS.get(state.workload.optimizer), 4.0 if numbers.master_weights else float(numbers.element)
    alone = resolved.optimizer_in_backward or rule.looped_results  # of a list of one tensor
    flat = resolved.framework.flattens_gradients  # `flat_copies` has them
    if resolved.on_servers or not (resolved.framework.updates_in_lists or (rule.looped_results and not flat)):
        return 0.0
    mine = states_kept(state, rank_held(state, rank)) * (1.0 - resolved.optimizer_offload)
    if alone:
        mine = min(mine, max(size for cost in state.costs.values() for size in (*cost.trained_tensors, 0.0)))
    return (rule.looped_results or rule.listed_results) * mine * width


def gradients_dropped(resolved: ResolvedPlan) -> bool:
    """Whether gradients do not stand all the time, but until the update, or, used up as soon as they are there, not even so long."""
    return resolved.optimizer_in_backward or gradients_await_update(resolved)


def gradients_await_update(resolved: ResolvedPlan) -> bool:
    """Whether gradients stand during the update only: freed by it, and made while the activations of the one microbatch go.

    Of the layers whose gradients stand the activations are gone, so the peak lies at one end of the backward: all activations, or
    all gradients.  With more microbatches those of the first stand beside the activations of the next, but where they are added up
    whole, in pipelines too: then their shards are made by the last backward, which lets the whole ones go.
    """
    alone = resolved.microbatches == 1 and resolved.pipeline_parallel == 1
    once = alone or (resolved.zero_stage == 3 and resolved.fsdp_reduce == "step")
    return (
        resolved.framework.drops_gradients
        and once
        and not (resolved.optimizer_in_backward or resolved.on_servers)
        and resolved.optimizer_offload == 0.0
    )


def _gather(state: State, hosts: np.ndarray, back: np.ndarray) -> None:
    """Gather the weights that the ranks of a group updated; those updated on the host when they are back."""
    if state.placement.lanes > 1:
        found = []
        for chunk in range(len(state.chunks)):
            holders = tuple(sorted(set(state.placement.rank_of[:, chunk].tolist())))
            element = float(state.resolved.precision.element)
            found.append((chunk, holders, meeting_links(state, "all_gather", "weights", chunk, holders, element)))
        rows, rank = state.build(_add_meetings, tuple(found))
    else:
        rows, rank = state.build(_add_weights, tuple(tuple(weight_gathers(state, r)) for r in range(state.ranks)))
    if len(hosts):
        state.wait(rows, back[rank])


def _add_meetings(
    rows: Structure, found: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Add the gathers (chunk, holders, links) of weights that several lanes have, after their optimizers; returns (row, rank)
    pairwise."""
    waiting: list[int] = []
    on: list[int] = []
    for chunk, holders, links in found:
        for row in rows.across("dp", np.array(links), holders, chunk=chunk).tolist():
            waiting += [row] * len(holders)
            on += holders
    rank = np.array(on, np.int64)
    rows.wait(waiting, rows.updated[rank])
    return np.array(waiting, np.int64), rank


def _add_weights(rows: Structure, gathers: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Add the gathers of each rank after its optimizer; returns (row, rank)."""
    rank = np.repeat(np.arange(rows.ranks), [len(items) for items in gathers])
    items = np.array([i for some in gathers for i in some], np.int64)
    added = rows.on_lane("dp", items, rank)
    rows.wait(added, rows.updated[rank])
    return added, rank


def _gather_kept(state: State) -> None:
    """Gather the small tensors that ZeRO-3 does not drop: all at once; from a list each is put together slice by slice."""
    resolved = state.resolved
    group, found = resolved.groups.shards, []
    for rank in range(state.ranks):
        kept = kept_tensors(state, (kind for chunk in contents(state, rank) for kind in chunk.kinds), trained=True)
        if not kept or resolved.shard_size == 1:
            continue
        size, slices = sum(kept) * resolved.precision.element, (1 + len(kept)) * listed(resolved, group)
        name, dtype = f"small tensors of rank {rank}", resolved.precision.compute
        found.append((rank, state.link("all_gather", name, size, dtype, group, slices=slices)))
    state.build(_add_kept, tuple(found))


def _add_kept(rows: Structure, found: tuple[tuple[int, int], ...]) -> None:
    """Add gathers (rank, item) after the optimizers of their ranks."""
    rank, item = np.array(found, np.int64).reshape(-1, 2).T
    added = rows.on_lane("dp", item, rank)
    rows.wait(added, rows.updated[rank])


def weight_gathers(state: State, rank: int) -> list[int]:
    """Return the gathers of the weights that a rank's replicas updated in shards, or the broadcasts of those who own them."""
    resolved, found = state.resolved, []
    for what, count, group in rank_held(state, rank).trained.parts(resolved):
        owned = _owned(state, rank) if resolved.framework.broadcasts_updates and not what else ()
        for collective, size, times in [("broadcast", *some) for some in owned] or [("all_gather", count, 1)]:
            name, size = f"weights of rank {rank}{what}", size * resolved.precision.element
            found += [state.link(collective, name, size, resolved.precision.compute, group)] * times
    return found


def _owned(state: State, rank: int) -> list[tuple[float, int]]:
    """(weights, how many ranks own as many) where tensors are dealt out whole: the largest first, to whom has least."""
    tensors = [
        size
        for _, c in rank_chunks(state, rank)
        for kind in state.chunks[c].kinds
        for size in state.costs[kind].trained_tensors
    ]
    loads = [0.0] * min(state.resolved.shard_size, len(tensors))
    for size in sorted(tensors, reverse=True):
        heapq.heapreplace(loads, loads[0] + size)
    return sorted(Counter(loads).items(), reverse=True)
