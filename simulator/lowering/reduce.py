"""Pass 6: gradient synchronisation below ZeRO-3.

Replicas along the data-parallel axis and copies of a chunk in several lanes (Chimera) add their gradients: all_reduce under
ZeRO-0, reduce_scatter under ZeRO-1 and 2, and under hybrid sharding a second hop between the copies of the shards.  With
overlap a bucket is reduced as soon as the backward of its layers ends; without, everything after the rank's last backward.
ZeRO-2 keeps no full gradients, so it reduces after every microbatch; shards are added between copies after the last.  Embeddings
shared by parts on different ranks add their gradients last.
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.hops import Chain, add_chains, gradient_link, links_of
from simulator.lowering.parameters import chunk_held, group_held, rank_held, table_copies, table_size, words
from simulator.lowering.state import Batch, State
from simulator.program.program import COLLECTIVE

__all__ = ["add_reductions"]


def add_reductions(state: State) -> None:
    """Add the gradient reductions of the plan."""
    settled = state.settled
    if settled.zero_stage < 3:
        if state.placement.lanes > 1:
            _replica_lanes(state)
        elif settled.reduces:
            if settled.overlap_gradients:
                _buckets(state)
            else:
                _at_the_end(state)
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
    """Copies of a chunk in several lanes: one all_reduce over lanes and replicas, a rendezvous of the ranks that hold it."""
    last = np.flatnonzero(state.pattern.last_backward)
    done = {(int(state.pattern.lane[a]), int(state.order.chunk[a])): int(state.last_row[a]) for a in last}
    final = state.last_row[state.order.rank_offsets[1:] - 1]
    lane = state.lanes("dp")
    entries = []
    for chunk in range(len(state.chunks)):
        holders = sorted({int(r) for r in state.placement.rank_of[:, chunk]})
        held = chunk_held(state, chunk)
        waits = [done[(a, chunk)] for a in range(state.placement.lanes) if (a, chunk) in done]
        ready = max(waits) if state.settled.overlap_gradients else max(int(final[r]) for r in holders)
        entries.append((ready, chunk, holders, held, waits))
    entries.sort(key=lambda e: (e[0], e[1]))
    for _, chunk, holders, held, waits in entries:
        settled = state.settled
        parts = [("", held.all - held.experts, settled.replica_axes if settled.replicas > 1 else ())]
        if held.experts:
            apart = settled.groups.expert_replicas if settled.expert_replicas > 1 else ()
            parts.append((" (experts)", held.experts, apart))
        items = [
            gradient_link(
                state,
                "all_reduce",
                f"gradients of chunk {chunk}{what}",
                count * settled.reduction_bytes,
                (*group, "pp"),
                tuple(holders),
            )
            for what, count, group in parts
        ]
        rows = state.add_rows(
            Batch(
                item=np.array(items),
                kind=COLLECTIVE,
                rank=np.full(len(items), holders[0]),
                streams=np.repeat(lane[np.array(holders)][None, :], len(items), axis=0),
                chunk=np.full(len(items), chunk),
            )
        )
        after = waits if state.settled.overlap_gradients else [int(final[r]) for r in holders]
        for row in rows:
            state.wait(np.full(len(after), row), np.array(after))


def _shared_tables(state: State) -> None:
    """Parts of the model that share the embedding's matrix add their gradients when they lie on different ranks.

    These are a tied head, a decoder's own look-up, and multi-token prediction.
    """
    tied = state.workload.model.tied_embeddings
    users = [c for c, chunk in enumerate(state.chunks) if "input" in table_copies(chunk, tied)]
    of_lane = [{int(state.placement.rank_of[a, c]) for c in users} for a in range(state.placement.lanes)]
    ends = sorted(set().union(*of_lane))
    if any(len(ranks) < 2 for ranks in of_lane):
        return
    size = table_size(state) * state.settled.reduction_bytes
    name = f"{'tied' if tied else 'shared'} embedding gradients"
    item = gradient_link(state, "all_reduce", name, size, ("pp",), tuple(ends))
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
