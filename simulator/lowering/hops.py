"""Gradients added in one hop or two: over the ranks that shard them, then, shard by shard, over the copies of the shards.

The second hop is an all_reduce on a stream of its own ("dp-copies"), so that the first hop of the next bucket runs beside it, as
with the second communicator of hybrid sharding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.lowering.parameters import Held
from simulator.lowering.state import Batch, State
from simulator.program.program import COLLECTIVE, Link

__all__ = ["COPY_LANE", "REDUCING_LANES", "Chain", "add_chains", "add_second_hops", "gradient_link", "links_of"]

COPY_LANE = "dp-copies"
REDUCING_LANES = ("dp", "dp-reduce", COPY_LANE)
"""Streams on which gradients are added."""

Chain = tuple[int, ...]
"""Items of one reduction, hop by hop."""


def gradient_link(
    state: State,
    collective: str,
    name: str,
    message: float,
    group: tuple[str, ...],
    ranks: tuple[int, ...] = (),
    slices: int = 0,
) -> int:
    """Add a link that adds gradients; returns its item.

    Args:
        slices: as in `Link`.
    """
    return state.add_item(
        Link(
            name=f"{collective} {name}",
            kind=COLLECTIVE,
            message=message,
            dtype=state.settled.reduce_dtype,
            group=group,
            pipeline_ranks=ranks,
            account="dp",
            collective=collective,
            slices=slices,
        )
    )


def links_of(state: State, name: str, held: Held, slices: int = 0) -> list[Chain]:
    """Add the links that add the gradients of some weights: a chain for each part that has replicas of its own.

    Args:
        slices: of a reduce_scatter, as in `Link`.
    """
    settled = state.settled
    whole = settled.zero_stage == 0 or (settled.zero_stage < 3 and settled.framework.reduces_whole)
    chains = []
    for what, steps in held.hops(settled):
        items = []
        for count, group in steps:
            between = bool(settled.groups.copies) and group == settled.groups.copies
            collective = "all_reduce" if between or whole else "reduce_scatter"
            where = ", between copies" if between else ""
            size, cut = count * settled.reduce_bytes, slices if collective == "reduce_scatter" else 0
            items.append(gradient_link(state, collective, f"{name}{what}{where}", size, group, slices=cut))
        chains.append(tuple(items))
    return chains


def add_chains(state: State, chains: Sequence[Chain], rank: np.ndarray, after: np.ndarray) -> None:
    """Add the rows of reductions, in the order given.

    Args:
        chains: what each reduction runs.
        rank: [chains] the pipeline rank of each.
        after: [chains] the row that each waits for.
    """
    if not chains:
        return
    lane = state.lanes("dp")
    rows = state.add_rows(
        Batch(
            item=np.array([chain[0] for chain in chains], np.int64),
            kind=COLLECTIVE,
            rank=rank,
            streams=lane[rank][:, None],
        )
    )
    state.wait(rows, after)
    add_second_hops(state, rows, [chain[1] if len(chain) > 1 else -1 for chain in chains], rank)


def add_second_hops(state: State, rows: np.ndarray, items: Sequence[int], rank: np.ndarray) -> None:
    """Let an all_reduce between the copies follow each of these rows; -1 = none."""
    numbers = np.array(items, np.int64)
    some = np.flatnonzero(numbers >= 0)
    some = some[np.argsort(rows[some], kind="stable")]
    if not len(some):
        return
    if state.settled.framework.copies_bucket:
        some = _joined(state, numbers, some, rank)
    lane = state.lanes(COPY_LANE)
    second = state.add_rows(
        Batch(item=numbers[some], kind=COLLECTIVE, rank=rank[some], streams=lane[rank[some]][:, None])
    )
    state.wait(second, rows[some])


def _joined(state: State, items: np.ndarray, some: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Put all_reduces between copies together while no more than the bucket comes together; changes `items` of those that stay.

    Args:
        some: places of the reductions, in running order.
    """
    most, stays = state.settled.framework.copies_bucket, set()
    open_since: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for place in some.tolist():
        link = _link(state, int(items[place]))
        bucket = open_since.setdefault((int(rank[place]), link.group), [])
        held = sum(_link(state, int(items[p])).message for p in bucket)
        if bucket and held + link.message > most:
            stays.add(_close(state, items, bucket))
            bucket.clear()
        bucket.append(place)
    stays |= {_close(state, items, bucket) for bucket in open_since.values()}
    return some[np.isin(some, list(stays))]


def _link(state: State, number: int) -> Link:
    item = state.items[number]
    if not isinstance(item, Link):
        raise TypeError(f"item {number} of a second hop is a {type(item).__name__}, not a link")
    return item


def _close(state: State, items: np.ndarray, bucket: list[int]) -> int:
    """Make one link of a bucket, in the place of its last reduction; returns that place."""
    links = [_link(state, int(items[place])) for place in bucket]
    if len(links) > 1:
        name = f"{len(links)} buckets, between copies"
        items[bucket[-1]] = gradient_link(state, "all_reduce", name, sum(x.message for x in links), links[0].group)
    return bucket[-1]
