"""Gradients added in one hop or two: over the ranks that shard them, then, shard by shard, over the copies of the shards.

The second hop is an all_reduce on a stream of its own ("dp-copies"), so that the first hop of the next bucket runs beside it, as
with the second communicator of hybrid sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.lowering.steps.parameters import Held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.program.program import Link, Served
from simulator.workload.optimizers import optimizer_cost

__all__ = [
    "BESIDE_LANE",
    "COPY_LANE",
    "REDUCING_LANES",
    "Chain",
    "Hops",
    "add_chains",
    "add_second_hops",
    "links_of",
]

COPY_LANE = "dp-copies"
BESIDE_LANE = "dp-beside"
REDUCING_LANES = ("dp", COPY_LANE, BESIDE_LANE)
"""Streams on which gradients are added, and what else an update waits for is exchanged."""

Chain = tuple[int, ...]
"""Items of one reduction, hop by hop."""


def _served(state: State) -> Served | None:
    """Return the servers through which a plan's replicas add their gradients."""
    resolved, exchange, numbers = state.resolved, state.resolved.exchange, state.workload.numbers
    if not exchange.algorithm:
        return None
    moved = 0.0
    if resolved.on_servers:
        facts = numbers.element, resolved.gradient_bytes, numbers.master_weights
        cost = optimizer_cost(state.workload.optimizer, *facts)
        moved = (cost.read + cost.written) / resolved.reduce_bytes
    return Served(exchange.algorithm, resolved.exchange_terms.servers, moved, exchange.stale)


def links_of(state: State, name: str, held: Held, slices: int = 0) -> list[Chain]:
    """Add the links that add the gradients of some weights: a chain for each part that has replicas of its own.

    Args:
        slices: of the first hop, as in `Link`.
    """
    resolved = state.resolved
    whole = resolved.zero_stage == 0 or (resolved.zero_stage < 3 and resolved.framework.reduces_whole)
    chains, served = [], _served(state)
    for what, steps in held.trained.hops(resolved):
        items = []
        for count, group in steps:
            between = group in resolved.groups.between
            collective = "all_reduce" if between or whole else "reduce_scatter"
            where = ", between copies" if between else ""
            size, cut = count * resolved.reduce_bytes, 0 if between else slices
            title, dtype = f"{name}{what}{where}", resolved.reduce_dtype
            items.append(state.link(collective, title, size, dtype, group, slices=cut, served=served))
        chains.append(tuple(items))
    return chains


def add_chains(state: State, chains: Sequence[Chain], place: Place, *facts: Hashable) -> np.ndarray:
    """Add the rows of reductions, in the order given; returns those of the first hops.

    Args:
        chains: what each reduction runs.
        place: returns, from the rows so far and these facts, of each reduction the pipeline rank, the row that it waits for and the
            number of its chain.
    """
    if not chains:
        return np.zeros(0, np.int64)
    hops, of = state.build(_add_first_hops, tuple([chain[0] for chain in chains]), place, facts)
    if max(map(len, chains)) > 1:
        second = [chain[1] if len(chain) > 1 else -1 for chain in chains]
        add_second_hops(state, hops, tuple([second[number] for number in of.tolist()]))
    rows: np.ndarray = hops.rows
    return rows


Place = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Reductions: their rows, and the pipeline rank of each."""

    rows: np.ndarray
    rank: np.ndarray


def _add_first_hops(
    rows: Structure, items: tuple[int, ...], place: Place, facts: tuple[Hashable, ...]
) -> tuple[Hops, np.ndarray]:
    rank, after, of = place(rows, *facts)
    added = rows.on_lane("dp", np.array(items, np.int64)[of], rank)
    rows.wait(added, after)
    return Hops(added, rank), of


def add_second_hops(state: State, first: Hops, items: tuple[int, ...]) -> None:
    """Let an all_reduce between the copies follow each of these reductions; -1 = none."""
    if not any(item >= 0 for item in items):
        return
    if state.resolved.framework.copies_bucket:
        items = _joined(state, first, items)
    state.build(_add_second_hops, first, items)


def _add_second_hops(rows: Structure, first: Hops, items: tuple[int, ...]) -> None:
    some = _in_order(first, items)
    added = rows.on_lane(COPY_LANE, np.array(items, np.int64)[some], first.rank[some])
    rows.wait(added, first.rows[some])


def _in_order(first: Hops, items: tuple[int, ...]) -> np.ndarray:
    """The places of those that have an item, in running order."""
    some = np.flatnonzero(np.array(items, np.int64) >= 0)
    return some[np.argsort(first.rows[some], kind="stable")]


def _joined(state: State, first: Hops, items: tuple[int, ...]) -> tuple[int, ...]:
    """Put all_reduces between copies together while no more than the bucket comes together; returns -1 for all but the last of each."""
    most = state.resolved.framework.copies_bucket
    out = [-1] * len(items)
    open_since: dict[tuple[int, tuple[str, ...]], list[int]] = {}

    def close(bucket: list[int]) -> None:
        links = [_link(state, items[place]) for place in bucket]
        joined = items[bucket[-1]]
        if len(links) > 1:
            name = f"{len(links)} buckets, between copies"
            size = sum(x.message for x in links)
            joined = state.link("all_reduce", name, size, state.resolved.reduce_dtype, links[0].group)
        out[bucket[-1]] = joined

    for place in _in_order(first, items).tolist():
        link = _link(state, items[place])
        bucket = open_since.setdefault((int(first.rank[place]), link.group), [])
        held = sum(_link(state, items[p]).message for p in bucket)
        if bucket and held + link.message > most:
            close(bucket)
            bucket.clear()
        bucket.append(place)
    for bucket in open_since.values():
        close(bucket)
    return tuple(out)


def _link(state: State, number: int) -> Link:
    item = state.items[number]
    if not isinstance(item, Link):
        raise TypeError(f"item {number} of a second hop is a {type(item).__name__}, not a link")
    return item
