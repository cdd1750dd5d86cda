"""Pass 6: gradient synchronisation: of replicas below ZeRO-3 (FSDP reduces in the pass `shard`), of lanes always.

Replicas along the data-parallel axis and copies of a chunk in several lanes (Chimera) add their gradients: all_reduce under
ZeRO-0, reduce_scatter under ZeRO-1 and 2 (all_reduce where the framework reduces whole buckets), and under hybrid sharding a
second hop between the copies of the shards; under ZeRO-3 lanes all_reduce their shards.  With overlap a bucket is reduced as soon
as the backward of its layers ends; without, everything after the rank's last backward.  ZeRO-2 keeps no full gradients, so it
reduces after every microbatch; shards are added between copies after the last.  Embeddings shared by parts on different ranks add
their gradients last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulator.lowering.memory.gradients_down import Bucket, add_gradients_down
from simulator.lowering.steps.assign import classes_of
from simulator.lowering.steps.cut import BUCKETS, UNBROKEN, UNITS
from simulator.lowering.steps.hops import Chain, add_chains, links_of
from simulator.lowering.steps.idle import idle_after
from simulator.lowering.steps.parameters import (
    Held,
    bucket_held,
    chunk_held,
    rank_held,
    table_copies,
    table_size,
    words,
)
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.program.ragged import ranges

__all__ = ["add_reductions", "meeting_links", "table_link"]


def add_reductions(state: State) -> None:
    """Add the gradient reductions of the plan."""
    resolved = state.resolved
    if len(state.updates):
        return  # without a flush they belong to each update: pass `asynchronous`
    lanes = state.placement.lanes > 1
    if resolved.gradients_leave:
        add_gradients_down(state, _with_rows(state, _buckets(state)))
    elif resolved.reduces and (resolved.zero_stage == 2 or (resolved.zero_stage < 2 and not lanes)):
        if resolved.overlap_gradients:
            _buckets(state)
        else:
            _at_the_end(state)
        if resolved.reduce_gradients == "microbatch":
            state.build(_hold_next)
    if lanes:
        _replica_lanes(state)
    _shared_tables(state)


Backward = tuple[int, int, bool]
"""A backward: the class of its chunk, how it is cut, and whether it completes the chunk's gradients."""
_VARIANTS = 1 + max(UNBROKEN, UNITS, BUCKETS)
"""Ways to cut a backward."""


def _code(number: Any, variant: Any, completes: Any) -> Any:
    """A number for a `Backward`, or numbers for columns of them."""
    return (number * _VARIANTS + variant) * 2 + completes


def _buckets(state: State) -> np.ndarray:
    """One reduction per segment of every backward that completes a bucket (fused pairs are not cut: one for the whole); returns the rows
    of all of them."""
    every, (chunks, class_of) = state.resolved.reduces_each, classes_of(state.chunks)
    items: dict[tuple[tuple[str, ...], Held], list[Chain]] = {}
    found: list[Chain] = []
    codes: list[int] = []
    segments: list[int] = []
    for number, variant, completes in state.build(_kinds_completing, every, class_of):
        code = _code(number, variant, completes)
        of_group: dict[tuple[str, ...], list[Chain]] = {}
        for group, _, last in state.cuts[(number, "backward", variant)].spans:
            chains = of_group.get(group)
            if chains is None:
                held = bucket_held(state, chunks[number], group)
                if (group, held) not in items:
                    copied = len(group) if state.resolved.framework.cycle_time and len(group) > 1 else 0
                    items[group, held] = links_of(state, f"gradients of {words(group)}", held, slices=2 * copied)
                chains = of_group[group] = _second_hop_once(state, items[group, held], completes)
            found += chains
            codes += [code] * len(chains)
            segments += [last] * len(chains)
    return add_chains(state, found, _after_segments, every, class_of, tuple(codes), tuple(segments))


def _with_rows(state: State, rows: np.ndarray) -> list[Bucket]:
    """The buckets of all backwards that complete some, each with the rows of its reductions, of which each has as many."""
    out, start, (chunks, class_of) = [], 0, classes_of(state.chunks)
    for action, chunk, variant, _ in state.build(_completing, state.resolved.zero_stage == 2):
        for group, first, last in state.cuts[(class_of[chunk], "backward", variant)].spans:
            held = bucket_held(state, chunks[class_of[chunk]], group).trained
            count = len(held.hops(state.resolved))
            out.append(Bucket(group, held, action, first, last, tuple(rows[start : start + count].tolist())))
            start += count
    return out


def _kinds_completing(rows: Structure, every: bool, class_of: tuple[int, ...]) -> tuple[Backward, ...]:
    """Return the kinds of backwards that complete a bucket, or of all, as they come; no row."""
    return tuple(dict.fromkeys((class_of[c], variant, last) for _, c, variant, last in _completing(rows, every)))


def _completing(rows: Structure, every: bool) -> list[tuple[int, int, int, bool]]:
    """Return (action, chunk, variant, whether it completes its chunk's gradients) of the backwards that do, or of all; no row."""
    return list(zip(*(column.tolist() for column in _backwards(rows, every)), strict=True))


def _backwards(rows: Structure, every: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """As `_completing`, by columns."""
    last = rows.pattern.last_backward
    some = np.flatnonzero(rows.order.completes if every else last)
    return some, rows.order.chunk[some], rows.variant[some], last[some]


def _after_segments(
    rows: Structure, every: bool, class_of: tuple[int, ...], codes: tuple[int, ...], segments: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After the segments of backwards that complete buckets.

    Args:
        codes, segments: of each chain: the kind of backward, by number, and its segment.
    """
    some, chunk, variant, completes = _backwards(rows, every)
    kind, of = _code(np.array(class_of, np.int64)[chunk], variant, completes), np.array(codes, np.int64)
    counts = np.bincount(of, minlength=int(kind.max(initial=0)) + 1)
    each = counts[kind]
    numbers = np.argsort(of, kind="stable")[ranges((np.cumsum(counts) - counts)[kind], each)]
    actions, place = np.repeat(some, each), np.array(segments, np.int64)[numbers]
    return rows.pattern.rank[actions], rows.first_row[actions] + place, numbers


def _second_hop_once(state: State, chains: list[Chain], completes: bool) -> list[Chain]:
    """Keep the hop between copies for the backward that completes a chunk's gradients."""
    between = state.resolved.groups.between
    if state.resolved.zero_stage != 2 or not between or completes:
        return chains
    kept = [tuple(i for i in chain if getattr(state.items[i], "group", ()) not in between) for chain in chains]
    return [chain for chain in kept if chain]


def _at_the_end(state: State) -> None:
    """One reduction per rank after its last backward; ZeRO-2 and DDP's plain loop one per rank and microbatch."""
    found, where = [], []
    if state.resolved.reduces_each:
        items = [links_of(state, f"gradients of chunk {c}", chunk_held(state, c)) for c in range(len(state.chunks))]
        for a, number, _, completes in state.build(_completing, True):
            chains = _second_hop_once(state, items[number], completes)
            found += chains
            where += [a] * len(chains)
    else:
        for rank, end in enumerate(state.order.rank_offsets[1:].tolist()):
            chains = links_of(state, f"gradients of rank {rank}", rank_held(state, rank))
            found += chains
            where += [end - 1] * len(chains)
    add_chains(state, found, _after_actions, tuple(where))


def _hold_next(rows: Structure) -> None:
    """Let what follows a backward wait for its reductions, the rows added last, as DistributedDataParallel ends every backward."""
    reduced, after = rows.waits[-1]
    action = np.searchsorted(rows.first_row, after, "right") - 1
    final = np.append(action[1:] != action[:-1], True)  # of a rank's reductions the last one ends last
    reduced, action = reduced[final], action[final]
    follows = np.minimum(action + 1, len(rows.first_row) - 1)
    goes_on = (follows > action) & (rows.pattern.rank[follows] == rows.pattern.rank[action])
    rows.wait(rows.first_row[follows[goes_on]], reduced[goes_on])


def _after_actions(rows: Structure, where: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After the last rows of these actions."""
    action = np.array(where, np.int64)
    return rows.pattern.rank[action], rows.last_row[action], np.arange(len(action))


def _replica_lanes(state: State) -> None:
    """Copies of a chunk in several lanes: one sum over lanes and replicas, a rendezvous of the ranks that hold it.

    ZeRO-2 and 3 have added the gradients of a lane's replicas by then, so that their shards are what lanes exchange.
    """
    resolved = state.resolved
    stage = resolved.zero_stage
    whole = stage in (0, 3) or (stage == 1 and resolved.framework.reduces_whole)
    kind = "all_reduce" if whole else "reduce_scatter"
    found: list[tuple[Meeting, tuple[int, ...]]] = []
    for meeting in state.build(_lane_meetings, resolved.overlap_gradients or stage == 3, resolved.overlaps_in_bubbles):
        links = meeting_links(state, kind, "gradients", meeting.chunk, meeting.holders, resolved.reduce_bytes)
        found.append((meeting, links))
    state.build(_add_meetings, tuple(found))


class Meeting(NamedTuple):
    """Where copies of a chunk meet: the ranks that hold one, and the rows that must have ended."""

    chunk: int
    holders: tuple[int, ...]
    after: tuple[int, ...]


def _lane_meetings(rows: Structure, eager: bool, in_bubbles: bool) -> tuple[Meeting, ...]:
    """Return the meetings of gradients in the order in which they can begin; no row.

    Args:
        eager: a chunk's gradients are added as soon as they are there; else after the rank's last row.
        in_bubbles: and where the rank idles afterwards.
    """
    order, pattern, rank_of = rows.order, rows.pattern, rows.placement.rank_of
    last = np.flatnonzero(pattern.last_backward)
    done = {(int(pattern.lane[a]), int(order.chunk[a])): int(a) for a in last}
    final = rows.last_row[order.rank_offsets[1:] - 1]
    early = np.full(order.size, eager)
    if in_bubbles:
        early &= idle_after(order, pattern)
    found = []
    for chunk in range(rows.placement.chunks):
        waits = []
        for lane, holder in enumerate(rank_of[:, chunk].tolist()):
            action = done.get((lane, chunk), -1)
            starts_early = action >= 0 and early[action]
            waits.append(int(rows.last_row[action]) if starts_early else int(final[holder]))
        found.append(Meeting(chunk, tuple(sorted(set(rank_of[:, chunk].tolist()))), tuple(sorted(set(waits)))))
    return tuple(sorted(found, key=lambda meeting: (meeting.after[-1], meeting.chunk)))


def _add_meetings(rows: Structure, found: tuple[tuple[Meeting, tuple[int, ...]], ...]) -> None:
    """Add meetings with their links."""
    for meeting, links in found:
        for row in rows.across("dp", np.array(links), meeting.holders, chunk=meeting.chunk):
            rows.wait(np.full(len(meeting.after), row), np.array(meeting.after))


def meeting_links(
    state: State, collective: str, what: str, chunk: int, holders: tuple[int, ...], dtype_bytes: float
) -> tuple[int, ...]:
    """Return links of a collective over all copies of a chunk's weights: its holders in all lanes, and their replicas.

    One for experts apart, where other ranks hold the same of those.  Gradients that ZeRO-2 and 3 have sharded over the replicas
    meet as shards, over the lanes alone.
    """
    resolved, held = state.resolved, chunk_held(state, chunk).trained
    sharded = what == "gradients" and resolved.zero_stage >= 2
    return tuple(
        state.link(
            collective,
            f"{what} of chunk {chunk}{h.what}",
            count * dtype_bytes / (h.ranks if sharded else 1),
            resolved.reduce_dtype if what == "gradients" else resolved.precision.compute,
            ("pp",) if sharded or h.ranks == 1 else (*h.axes, "pp"),
            pipeline_ranks=holders,
        )
        for h, count in held.by_holders(resolved)
    )


def _shared_tables(state: State) -> None:
    shared = table_link(state)
    if shared is not None:
        state.build(_add_shared, *shared)


def _add_shared(rows: Structure, item: int, ends: tuple[int, ...]) -> None:
    """Add the sum of shared gradients after the last rows of the ranks that hold them."""
    added = rows.across("dp", np.array([item]), ends)
    final = rows.last_row[rows.order.rank_offsets[1:] - 1]
    rows.wait(np.full(len(ends), added[0]), final[np.array(ends)])


def table_link(state: State) -> tuple[int, tuple[int, ...]] | None:
    """Return the sum of the gradients of parts that share the embedding's matrix, and the ranks that they lie on.

    These are a tied head, a decoder's own look-up, and multi-token prediction.  None where a lane has them all on one rank, as a V
    does.
    """
    if state.workload.model.lora_rank:
        return None  # the table is frozen
    tied = state.workload.model.tied_embeddings
    names, class_of = classes_of(state.chunks)
    uses = ["input" in table_copies(chunk.kinds, tied) for chunk in names]
    users = [c for c, number in enumerate(class_of) if uses[number]]
    if len(users) < 2:
        return None
    of_lane = [{int(state.placement.rank_of[a, c]) for c in users} for a in range(state.placement.lanes)]
    ends = tuple(sorted(set().union(*of_lane)))
    if any(len(ranks) < 2 for ranks in of_lane):
        return None
    size = table_size(state) * state.resolved.reduce_bytes
    name = f"{'tied' if tied else 'shared'} embedding gradients"
    return state.link("all_reduce", name, size, state.resolved.reduce_dtype, ("pp",), pipeline_ranks=ends), ends
