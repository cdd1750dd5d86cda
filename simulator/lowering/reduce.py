"""Pass 6: gradient synchronisation: of replicas below ZeRO-3 (FSDP reduces in the pass `shard`), of lanes always.

Replicas along the data-parallel axis and copies of a chunk in several lanes (Chimera) add their gradients: all_reduce under
ZeRO-0, reduce_scatter under ZeRO-1 and 2 (all_reduce where the framework reduces whole buckets), and under hybrid sharding a
second hop between the copies of the shards; under ZeRO-3 lanes all_reduce their shards.  With overlap a bucket is reduced as soon
as the backward of its layers ends; without, everything after the rank's last backward.  ZeRO-2 keeps no full gradients, so it
reduces after every microbatch; shards are added between copies after the last.  Embeddings shared by parts on different ranks add
their gradients last.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.hops import Chain, add_chains, gradient_link, links_of
from simulator.lowering.idle import idle_after
from simulator.lowering.parameters import chunk_held, group_held, rank_held, table_copies, table_size, words
from simulator.lowering.state import Batch, State
from simulator.program.program import COLLECTIVE, Link

__all__ = ["add_reductions", "meet_holders", "table_link"]


def add_reductions(state: State) -> None:
    """Add the gradient reductions of the plan."""
    settled = state.settled
    if len(state.updates):
        return  # without a flush they belong to each update: pass `asynchronous`
    lanes = state.placement.lanes > 1
    if settled.reduces and (settled.zero_stage == 2 or (settled.zero_stage < 2 and not lanes)):
        if settled.overlap_gradients:
            _buckets(state)
        else:
            _at_the_end(state)
    if lanes:
        _replica_lanes(state)
    _shared_tables(state)


def _spread(found: list[list[Chain]]) -> tuple[list[Chain], np.ndarray]:
    """Return (chains one after the other, index of the list that each comes from)."""
    counts = [len(chains) for chains in found]
    return [chain for chains in found for chain in chains], np.repeat(np.arange(len(found)), counts)


def _buckets(state: State) -> None:
    """One reduction per segment of every backward that completes a bucket (fused pairs are not cut: one for the whole)."""
    kind = state.order.kind
    completes = (kind == 1) | (kind == 3) if state.settled.zero_stage == 2 else state.pattern.last_backward
    items: dict[tuple[str, ...], list[Chain]] = {}
    found, actions, rows = [], [], []
    for a in np.flatnonzero(completes).tolist():
        chunk = state.chunks[int(state.order.chunk[a])]
        for group, _, last in state.spans(chunk, "backward", int(state.variant[a])):
            if group not in items:
                items[group] = links_of(state, f"gradients of {words(group)}", group_held(state, group))
            found.append(items[group])
            actions.append(a)
            rows.append(int(state.first_row[a]) + last)
    action, row = np.array(actions, np.int64), np.array(rows, np.int64)
    chains, of = _spread(found)
    chains, of = _second_hop_once(state, chains, of, action[of])
    add_chains(state, chains, state.pattern.rank[action[of]], row[of])


def _second_hop_once(
    state: State, chains: list[Chain], of: np.ndarray, action: np.ndarray
) -> tuple[list[Chain], np.ndarray]:
    """Keep the hop between copies for the backward that completes a chunk's gradients."""
    copies = state.settled.groups.copies
    if state.settled.zero_stage != 2 or not copies:
        return chains, of
    completes = state.pattern.last_backward[action].tolist()
    kept = [
        chain if last else tuple(i for i in chain if getattr(state.items[i], "group", ()) != copies)
        for chain, last in zip(chains, completes, strict=True)
    ]
    some = [k for k, chain in enumerate(kept) if chain]
    return [kept[k] for k in some], of[some]


def _at_the_end(state: State) -> None:
    """One reduction per rank after its last backward; ZeRO-2 one per rank and microbatch."""
    completes = np.isin(state.order.kind, (1, 3))
    if state.settled.zero_stage == 2:
        actions = np.flatnonzero(completes)
        items = [links_of(state, f"gradients of chunk {c}", chunk_held(state, c)) for c in range(len(state.chunks))]
        chains, of = _spread([items[int(c)] for c in state.order.chunk[actions]])
    else:
        actions = np.array([int(e) - 1 for e in state.order.rank_offsets[1:]])
        chains, of = _spread(
            [links_of(state, f"gradients of rank {r}", rank_held(state, r)) for r in range(state.ranks)]
        )
    chains, of = _second_hop_once(state, chains, of, actions[of])
    actions = actions[of]
    add_chains(state, chains, state.pattern.rank[actions], state.last_row[actions])


def _replica_lanes(state: State) -> None:
    """Copies of a chunk in several lanes: one sum over lanes and replicas, a rendezvous of the ranks that hold it.

    ZeRO-2 and 3 have added the gradients of a lane's replicas by then, so that their shards are what lanes exchange.
    """
    last = np.flatnonzero(state.pattern.last_backward)
    done = {(int(state.pattern.lane[a]), int(state.order.chunk[a])): int(a) for a in last}
    final = state.last_row[state.order.rank_offsets[1:] - 1]
    eager = np.full(state.order.size, state.settled.overlap_gradients or state.settled.zero_stage == 3)
    if state.settled.overlaps_in_bubbles:
        eager &= idle_after(state.order, state.pattern)
    entries = []
    for chunk in range(len(state.chunks)):
        holders = sorted({int(r) for r in state.placement.rank_of[:, chunk]})
        waits = []
        for lane, holder in enumerate(state.placement.rank_of[:, chunk].tolist()):
            action = done.get((lane, chunk), -1)
            starts_early = action >= 0 and eager[action]
            waits.append(int(state.last_row[action]) if starts_early else int(final[holder]))
        entries.append((max(waits), chunk, holders, sorted(set(waits))))
    entries.sort(key=lambda e: (e[0], e[1]))
    stage = state.settled.zero_stage
    whole = stage in (0, 3) or (stage == 1 and state.settled.framework.reduces_whole)
    kind = "all_reduce" if whole else "reduce_scatter"
    for _, chunk, holders, after in entries:
        rows = meet_holders(state, kind, "gradients", chunk, holders, state.settled.reduce_bytes)
        for row in rows:
            state.wait(np.full(len(after), row), np.array(after))


def meet_holders(
    state: State, collective: str, what: str, chunk: int, holders: list[int], dtype_bytes: float
) -> np.ndarray:
    """Return rows of a collective over all copies of a chunk's weights: its holders in all lanes, and their replicas.

    One for experts apart, where other ranks hold the same of those.  Gradients that ZeRO-2 and 3 have sharded over the replicas
    meet as shards, over the lanes alone.
    """
    settled, held = state.settled, chunk_held(state, chunk)
    sharded = what == "gradients" and settled.zero_stage >= 2
    parts = [("", held.all - held.experts, settled.replica_axes, settled.replicas)]
    if held.experts:
        parts.append((" (experts)", held.experts, settled.groups.expert_replicas, settled.expert_replicas))
    items = [
        state.add_item(
            Link(
                name=f"{collective} {what} of chunk {chunk}{which}",
                kind=COLLECTIVE,
                message=count * dtype_bytes / (replicas if sharded else 1),
                dtype=settled.reduce_dtype if what == "gradients" else settled.precision.compute,
                group=("pp",) if sharded or replicas == 1 else (*axes, "pp"),
                pipeline_ranks=tuple(holders),
                account="dp",
                collective=collective,
            )
        )
        for which, count, axes, replicas in parts
    ]
    apart = settled.zero_stage == 3 and settled.framework.separate_communicators
    lane = state.lanes("dp-reduce" if apart else "dp")
    return state.add_rows(
        Batch(
            item=np.array(items),
            kind=COLLECTIVE,
            rank=np.full(len(items), holders[0]),
            streams=np.repeat(lane[np.array(holders)][None, :], len(items), axis=0),
            chunk=np.full(len(items), chunk),
        )
    )


def _shared_tables(state: State) -> None:
    shared = table_link(state)
    if shared is None:
        return
    item, ends = shared
    lane = state.lanes("dp")
    rows = state.add_rows(
        Batch(
            item=np.array([item]),
            kind=COLLECTIVE,
            rank=np.array([ends[0]]),
            streams=lane[np.array(ends)][None, :],
        )
    )
    final = state.last_row[state.order.rank_offsets[1:] - 1]
    state.wait(np.full(len(ends), rows[0]), final[np.array(ends)])


def table_link(state: State) -> tuple[int, list[int]] | None:
    """Return the sum of the gradients of parts that share the embedding's matrix, and the ranks that they lie on.

    These are a tied head, a decoder's own look-up, and multi-token prediction.  None where a lane has them all on one rank, as a V
    does.
    """
    tied = state.workload.model.tied_embeddings
    users = [c for c, chunk in enumerate(state.chunks) if "input" in table_copies(chunk, tied)]
    of_lane = [{int(state.placement.rank_of[a, c]) for c in users} for a in range(state.placement.lanes)]
    ends = sorted(set().union(*of_lane))
    if any(len(ranks) < 2 for ranks in of_lane):
        return None
    size = table_size(state) * state.settled.reduce_bytes
    name = f"{'tied' if tied else 'shared'} embedding gradients"
    return gradient_link(state, "all_reduce", name, size, ("pp",), tuple(ends)), ends
