"""What a step takes at least, from the kernels and messages that the step itself is made of.

A rank runs its segments one after another on one stream, and a segment takes no less than its kernels.  So a step takes no
less than the forwards and backwards of all microbatches on one rank.  Before its first forward a microbatch went through the chunks in
front of its lowest one and the messages between them, and behind its last backward, unless weights have a half of their own, one goes
back through them, or, where nothing runs beside the backward, the rank's gradients are added:

    fill: forwards in front | m (forwards + backwards) of the rank's chunks | drain: backwards in front, or reductions | gather of weights

A rank's reductions share a stream, and so do all messages from one rank to another: a step takes no less than either.

Where a rank may skip or hide any of that less is counted: with chunks in several lanes or fused pairs the busiest rank's kernels alone,
without exchanges of experts; with slices, steps that run into each other or ranks some of which are quicker nothing.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.costs.desk import Desk, desk_of
from simulator.costs.items import price_item
from simulator.costs.tables import price_table
from simulator.hardware.conditions import plain_if_slower
from simulator.job import Job
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.connect import message_links
from simulator.lowering.steps.hops import links_of
from simulator.lowering.steps.parameters import all_alike, contents, group_held, layer_counts, rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.unit_parts import gather_links
from simulator.lowering.steps.update import weight_gathers
from simulator.program.calls import Convolved
from simulator.program.prices import ACCOUNTS
from simulator.program.program import Link
from simulator.remembered import Remembered, kept
from simulator.workload.layer_kind import is_layer

__all__ = ["ROUNDING", "contents_of", "least_of_any_split", "least_products", "least_seconds", "one_after_another"]


def least_seconds(job: Job, state: State, enough: float = math.inf) -> float:
    """Return seconds that the step of a job cannot be quicker than; 0 where nothing is known.

    Args:
        state: of the job, as `lowering.begin` returns it.
        enough: seconds of the kernels alone from which on nothing else is counted.
    """
    cluster = plain_if_slower(job.cluster)
    if cluster is None:
        return 0.0
    resolved = state.resolved
    desk = desk_of(cluster, resolved.axes, resolved.framework)
    if not one_after_another(state):
        return _least_busy(state, desk) * (1.0 - ROUNDING)
    kinds, layers = tuple(state.costs), tuple(state.costs.values())
    way = _ROUTES.get((state.structure, state.chunks, kinds, state.boundaries), lambda: _Route(state, kinds))
    each = _of_layers(layers, desk, _kernels).ravel()
    front, drain = way.front @ each, way.drain @ each
    kernels = float((front + drain).max()) * (1.0 - ROUNDING)
    if kernels > enough:
        return kernels
    occupancy, latency = _messages(message_links(state), desk)
    hops = occupancy + latency
    front, drain = front + way.there @ hops, drain + way.back @ hops
    alike = all_alike(state)
    exchanged = {rank: _exchanged(state, rank, desk) for rank in dict.fromkeys(alike)}
    reduced, gathered = np.array([exchanged[rank] for rank in alike]).T
    behind = reduced if not resolved.overlap_gradients and resolved.zero_stage < 2 else 0.0
    whole = np.maximum(front + np.maximum(drain, behind + gathered), reduced + gathered)
    return float(max((way.sent * occupancy).max(initial=0.0), whole.max())) * (1.0 - ROUNDING)


def least_of_any_split(job: Job, state: State) -> float:
    """Return seconds that no plan is quicker than which deals the same layers out otherwise, by their kernels alone.

    Of ranks with a chunk each, t the seconds of a rank's chunk for one microbatch of m: rank r takes those in front of it and m t, which
    is least for the slowest where all take as long: c = (sum of t) / (1 - (1 - 1/m)^ranks).

    Args:
        state: of the job, as `lowering.begin` returns it, with any split.
    """
    cluster = plain_if_slower(job.cluster)
    if cluster is None:
        return 0.0
    resolved = state.resolved
    desk = desk_of(cluster, resolved.axes, resolved.framework)
    if not one_after_another(state):
        if not _counts_actions(state):
            return 0.0
        runs = _TIMES.get((state.structure,), lambda: _times(state)).sum(axis=0).min()
        return float(runs * _of_chunks(state, desk, _computing).sum() / state.ranks) * (1.0 - ROUNDING)
    whole = float(_of_chunks(state, desk, _kernels).sum())
    if len(state.chunks) == state.ranks and not resolved.schedule.splits_backward:
        return whole / (1.0 - (1.0 - 1.0 / resolved.microbatches) ** state.ranks) * (1.0 - ROUNDING)
    return resolved.microbatches * whole / state.ranks * (1.0 - ROUNDING)


def least_products(state: State) -> dict[str, float]:
    """Return FLOP of matrix products that a GPU computes in a step at least, mean over GPUs, by number format; {} where that is not known.

    Args:
        state: of the job, as `lowering.begin` returns it.
    """
    if not one_after_another(state):
        return {}
    kinds, layers = tuple(state.costs), tuple(state.costs.values())
    held = contents_of(state.chunks, kinds).counts.sum(axis=0) * (
        state.resolved.microbatches / state.ranks * (1.0 - ROUNDING)
    )
    out: dict[str, float] = {}
    for count, cost in zip(held.tolist(), layers, strict=True):
        for dtype, flops in _products(cost):
            out[dtype] = out.get(dtype, 0.0) + count * flops
    return out


@functools.lru_cache(maxsize=2048)
def _products(cost: LayerCost) -> tuple[tuple[str, float], ...]:
    """Number format and FLOP of a layer's matrix products, forward and backward; convolutions are left out."""
    return tuple(
        (table.dtype[row], float(table.flops[row]))
        for table in (cost.forward, cost.backward)
        for row, work in enumerate(table.work)
        if work == "gemm" and not isinstance(table.call[row], Convolved)
    )


def _of_chunks(state: State, desk: Desk, seconds: Callable[[LayerCost, str, Desk], float]) -> np.ndarray:
    """[2, chunks] seconds of every chunk's forward and backward."""
    each = _of_layers(tuple(state.costs.values()), desk, seconds)
    return np.asarray(each @ contents_of(state.chunks, tuple(state.costs)).counts.T)


@functools.lru_cache(maxsize=2048)
def _of_layers(
    layers: tuple[LayerCost, ...], desk: Desk, seconds: Callable[[LayerCost, str, Desk], float]
) -> np.ndarray:
    """[2, layers] seconds of every layer's forward and backward."""
    return np.array([[seconds(cost, way, desk) for cost in layers] for way in ("forward", "backward")])


class Contents(NamedTuple):
    """[chunks, kinds of layers] how many of each kind chunks hold; whether they hold any, and but for the head; and whether the first of
    their layers is of it."""

    counts: np.ndarray
    held: np.ndarray
    behind: np.ndarray
    first: np.ndarray


@functools.lru_cache(maxsize=512)
def contents_of(chunks: tuple[Chunk, ...], kinds: tuple[str, ...]) -> Contents:
    """Return what chunks hold of these kinds of layers."""
    place = {kind: number for number, kind in enumerate(kinds)}
    counts, first = np.zeros((len(chunks), len(kinds))), np.zeros((len(chunks), len(kinds)))
    for number, chunk in enumerate(chunks):
        for kind, count in layer_counts(chunk.kinds):
            counts[number, place[kind]] = count
        for kind in [kind for kind in chunk.kinds if kind != "head"][-1:]:
            first[number, place[kind]] = 1.0
    held = (counts > 0).astype(float)
    behind = held * np.array([kind != "head" for kind in kinds])
    return Contents(counts, held, behind, first)


def _least_busy(state: State, desk: Desk) -> float:
    """Seconds of the busiest rank's kernels where chunks lie in several lanes, or exchanges of experts hide in fused pairs; 0 where
    actions are no whole microbatches, or steps run into each other."""
    if not _counts_actions(state):
        return 0.0
    times = _TIMES.get((state.structure,), lambda: _times(state))
    return float((times * _of_chunks(state, desk, _computing)).sum(axis=(1, 2)).max())


def _counts_actions(state: State) -> bool:
    """Whether actions are whole microbatches of one step."""
    schedule = state.resolved.schedule
    return not (schedule.slices or not schedule.flush or state.structure.steps > 1 or state.structure.sizes)


def _times(state: State) -> np.ndarray:
    """[ranks, 2, chunks] how often a rank runs each chunk forward, and backward to its end."""
    order, rank = state.order, state.pattern.rank
    out = np.zeros((state.ranks, 2, len(state.chunks)))
    for way, mine in enumerate((order.kind == 0, order.completes)):
        np.add.at(out, (rank[mine], way, order.chunk[mine]), 1.0)
    return out


_TIMES: Remembered[np.ndarray] = Remembered(2**22, lambda times: 1024 + times.nbytes)


class _Route:
    """The way of a microbatch through the chunks of an order, in what it takes of each.

    Attributes:
        front, drain: [ranks, 2 x kinds of layers] layers that run forward, and backward, from the first microbatch on its way to a
            rank until the rank's last action, and behind that.
        there, back: [ranks, links] messages on the way to each rank's first chunk, and on the way back from it.
        sent: [links] messages of a step.
    """

    def __init__(self, state: State, kinds: tuple[str, ...]) -> None:
        self._boundaries, self._rank_of = state.boundaries, state.placement.rank_of[0]
        self._messages = state.pattern.messages(self._boundaries)
        self._first = np.unique(self._rank_of, return_index=True)[1]
        self._returns = not state.resolved.schedule.splits_backward
        counts = contents_of(state.chunks, kinds).counts
        before = _before(counts)[self._first]
        own = state.resolved.microbatches * np.add.reduceat(
            counts[np.argsort(self._rank_of, kind="stable")],
            np.searchsorted(np.sort(self._rank_of), range(state.ranks)),
        )
        self.front = np.hstack([before + own, own])
        self.drain = np.hstack([np.zeros_like(before), before * self._returns])

    @kept
    def there(self) -> np.ndarray:
        return self._links(1)

    @kept
    def back(self) -> np.ndarray:
        return self._links(-1) * self._returns

    @kept
    def sent(self) -> np.ndarray:
        return np.bincount(self._messages.link, minlength=len(self._messages.links))

    def _links(self, turn: int) -> np.ndarray:
        links = {(*ranks, boundary): number for number, (*ranks, _, boundary) in enumerate(self._messages.links)}
        taken = np.zeros((len(self._rank_of) - 1, len(links)))
        for place, way in enumerate(itertools.pairwise(self._rank_of.tolist())):
            boundary = self._boundaries[place + 1] if self._boundaries else 0
            if (number := links.get((*way[::turn], boundary))) is not None:  # on one rank nothing is sent
                taken[place, number] = 1.0
        return np.asarray(_before(taken)[self._first])


_ROUTES: Remembered[_Route] = Remembered(2**24, lambda way: 4096 + 2 * way.front.nbytes + 64 * len(way.front) ** 2)


def _before(taken: np.ndarray) -> np.ndarray:
    """[places + 1, ...] all before each, and all."""
    return np.concatenate([np.zeros((1, *taken.shape[1:])), np.cumsum(taken, axis=0)])


@functools.lru_cache(maxsize=1024)
def _messages(links: tuple[Link, ...], desk: Desk) -> tuple[np.ndarray, np.ndarray]:
    """[links] occupancy and latency of a message."""
    prices = [price_item(link, desk) for link in links]
    return np.array([one.occupancy for one in prices]), np.array([one.latency for one in prices])


def one_after_another(state: State) -> bool:
    """Whether every rank runs whole microbatches of one copy of the model, one action after another."""
    schedule, framework = state.resolved.schedule, state.resolved.framework
    if schedule.replicas > 1 or schedule.slices or not schedule.flush or state.structure.steps > 1:
        return False
    return not (framework.fuses_pairs and (state.order.pair >= 0).any())


ROUNDING = 1e-9
"""Sums are made in another order here than in a step."""


def _kernels(cost: LayerCost, way: str, desk: Desk) -> float:
    """Kernels of a layer's forward or backward [s]."""
    return price_table(cost.forward if way == "forward" else cost.backward, desk.machine, desk.axes).seconds


def _computing(cost: LayerCost, way: str, desk: Desk) -> float:
    """As `_kernels`, without the exchanges of experts, which a pair may hide."""
    price = price_table(cost.forward if way == "forward" else cost.backward, desk.machine, desk.axes)
    return price.seconds - float(price.account[ACCOUNTS.index("ep")])


def _exchanged(state: State, rank: int, desk: Desk) -> tuple[float, float]:
    """Seconds in which a rank's replicas add its gradients, and in which weights that they updated in shards are gathered; one message
    takes no longer than its parts."""
    resolved = state.resolved
    if not resolved.reduces or resolved.quantized_gradients:
        return 0.0, 0.0

    def seconds(item: int) -> float:
        return price_item(state.items[item], desk).occupancy

    chains = links_of(state, "gradients", rank_held(state, rank))
    first = sum(resolved.reductions * seconds(chain[0]) for chain in chains)
    if resolved.zero_stage == 3:
        first += _gathered(state, rank, seconds)
    reduced = max((first, *map(seconds, _second_hops(chains))))
    if resolved.zero_stage not in (1, 2) or resolved.overlap_parameters or resolved.optimizer_offload:
        return reduced, 0.0
    return reduced, sum(map(seconds, weight_gathers(state, rank)))


def _gathered(state: State, rank: int, seconds: Callable[[int], float]) -> float:
    """Seconds in which ZeRO-3 gathers a rank's layers for every microbatch, forward and, where no unit can stay, backward."""
    resolved, habits = state.resolved, state.resolved.framework
    by_tensor = habits.gathers_by_tensor or habits.gather_bucket  # some may stay, or come with others
    if by_tensor or not resolved.reshard_after_forward or resolved.fsdp_gather != "microbatch":
        return 0.0
    kinds = [kind for chunk in contents(state, rank) for kind in chunk.kinds if is_layer(kind)]
    each = 0.0
    for what, count, group in group_held(state, kinds).gathered(resolved):
        forward, backward = gather_links(state, f"weights{what}", count, group)
        each += seconds(forward) + (seconds(backward) if resolved.fsdp_unit == 1 else 0.0)
    return resolved.microbatches * each


def _second_hops(chains: list[tuple[int, ...]]) -> list[int]:
    """Hops between copies of shards, each on the stream of the copies."""
    return [item for chain in chains for item in chain[1:]]
