"""Prices where ranks differ: the program unfolded as far as it must be, each item priced for those who run it.

    parts of the cluster --> condition of every world rank --> classes of replicas that are alike --> unfold --> price

Ranks in step (tensor, context and expert parallelism) wait for each other at every layer: a segment takes what it takes on
the slowest of them, and what they send goes over the slowest of their wires.  So does a collective or a message: the
slowest wire of its members sets the pace.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs.price import price
from simulator.costs.stages import StageKinds, kinds_of_stages, price_stage_items, stages_of_items
from simulator.hardware.cluster import Cluster
from simulator.hardware.conditions import condition, on_wires, slowest_wires
from simulator.hardware.parts import RankKind, shown_numbers, which_parts
from simulator.program.prices import ACCOUNTS, RESOURCE_KINDS, ByClass, Prices
from simulator.program.program import Program
from simulator.program.replicas import ReplicaMesh, alike, replica_mesh
from simulator.program.trace import Trace
from simulator.program.unfold import Unfolded, unfold

__all__ = ["Priced", "price_ranks", "rank_parts"]

Ints = NDArray[np.int64]
_ROUNDING = 2.0**-30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """A program with prices.

    Args:
        program: as lowered, or unfolded where ranks differ.
        prices: of its items.
        cluster: what it is priced on; where all parts are alike, the cluster that they make.
        ranks: what each rank of the program stands for; () where all ranks are alike.
        unfolded: where the program comes from; None when it is as lowered.
        class_of: [replicas] the class of each replica; empty when it is as lowered.
    """

    program: Program
    prices: Prices
    cluster: Cluster
    ranks: tuple[RankKind, ...] = ()
    unfolded: Unfolded | None = None
    class_of: Ints

    @property
    def item_of(self) -> Ints:
        """[classes, folded rows] the item that a folded row runs in a class."""
        return self._of_folded(self.program.item.astype(np.int64))

    def stretch(self, trace: Trace) -> NDArray[np.float64]:
        """Return [classes, folded rows] how many times longer than its price each row took in a run."""
        took, price = trace.end - trace.start, self.prices.occupancy[self.program.item]
        factor = np.divide(took, price, out=np.ones(len(took)), where=price > 0)
        return self._of_folded(np.where(np.abs(factor - 1.0) < _ROUNDING, 1.0, factor))

    def _of_folded(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the unfolded program as [classes, folded rows]."""
        if self.unfolded is None:
            return column[None, :]
        own = np.flatnonzero(~self.unfolded.bar)
        classes, rows = int(self.class_of.max()) + 1, int(self.unfolded.folded_row.max(initial=-1)) + 1
        out = np.zeros((classes, rows), column.dtype)
        out[self.unfolded.owner[own], self.unfolded.folded_row[own]] = column[own]
        return out


def price_ranks(program: Program, cluster: Cluster, fold: bool = True) -> Priced:
    """Return the program priced on a cluster whose parts may differ.

    Args:
        program: folded, as lowered.
        fold: False tells all replicas apart, also those that are alike (small worlds; the same times come out).

    Raises:
        PlanError: a part names what the job does not have, parts contradict each other, or a wire is not there.
        SpecError: a part names a GPU or node that does not exist, or a GPU lacks the number format.
    """
    if program.stages:
        return _staged(program, cluster)
    if not cluster.parts and fold:
        return _alike(program, cluster)
    mesh = replica_mesh(program)
    kinds, of_rank, parts = _conditions(cluster, mesh)
    if len(kinds) == 1 and fold:
        return _alike(program, kinds[0])
    bits: Ints = np.bitwise_or.reduce(np.int64(1) << of_rank, axis=2)
    colour = np.unique(bits, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    class_of = alike(mesh, colour if fold else np.arange(mesh.count, dtype=np.int64))
    first = np.unique(class_of, return_index=True)[1]
    unfolded = unfold(program, mesh, class_of, bits[first])
    return Priced(
        program=unfolded.program,
        prices=_price(program, unfolded, kinds),
        cluster=kinds[0] if len(kinds) == 1 else cluster,
        ranks=_rank_kinds(kinds, of_rank, parts, class_of),
        unfolded=unfolded,
        class_of=class_of,
    )


def _alike(program: Program, cluster: Cluster) -> Priced:
    none = np.zeros(0, np.int64)
    return Priced(program=program, prices=price(program, cluster), cluster=cluster, class_of=none)


def _staged(program: Program, cluster: Cluster) -> Priced:
    """Stages with ranks of their own, which are one timeline each."""
    found, of_item = kinds_of_stages(program, cluster), stages_of_items(program)
    bits = [int(np.bitwise_or.reduce(np.int64(1) << mine)) for mine in found.of_rank]
    jobs: dict[Cluster, list[int]] = {}
    for number, ranks in enumerate(of_item):
        for kind in _members(found.kinds, functools.reduce(int.__or__, [bits[rank] for rank in ranks])):
            jobs.setdefault(kind, []).append(number)
    tables = [(np.array(some), price_stage_items(program, some, of_item, kind)) for kind, some in jobs.items()]
    alone = len(found.kinds) == 1
    return Priced(
        program=program,
        prices=_slowest(len(program.items), tables),
        cluster=found.kinds[0] if alone else cluster,
        ranks=() if alone else _stage_kinds(found),
        class_of=np.zeros(0, np.int64),
    )


def _stage_kinds(found: StageKinds) -> tuple[RankKind, ...]:
    """What each stage stands for."""
    columns = zip(found.stages.tolist(), found.replicas, found.of_rank, found.parts, strict=True)
    return tuple(
        [
            _rank_kind(found.kinds, stage, np.unique(replicas), mine, int(np.bitwise_or.reduce(parts)))
            for stage, replicas, mine, parts in columns
        ]
    )


def _conditions(cluster: Cluster, mesh: ReplicaMesh) -> tuple[list[Cluster], Ints, Ints]:
    """The kinds of GPUs with wires that occur; [replicas, pipeline ranks, members] the number of each rank's kind, and the
    parts it belongs to as bits."""
    found = rank_parts(cluster, mesh)
    patterns, inverse = np.unique(found, return_inverse=True)
    numbers: dict[Cluster, int] = {}
    number = [numbers.setdefault(condition(cluster, int(b)), len(numbers)) for b in patterns]
    return list(numbers), np.array(number, np.int64)[inverse.reshape(-1)][mesh.world], found[mesh.world]


def rank_parts(cluster: Cluster, mesh: ReplicaMesh) -> Ints:
    """Return [world ranks] the parts of the cluster that each belongs to, as bits.

    Raises:
        PlanError: as `which_parts`.
    """
    place, replica = np.zeros(mesh.world.size, np.int64), np.zeros(mesh.world.size, np.int64)
    replicas, pipeline, _ = np.indices(mesh.world.shape)
    place[mesh.world], replica[mesh.world] = pipeline, replicas
    return which_parts(cluster.parts, cluster.levels[0].size, {"pipeline_ranks": place, "replicas": replica})


def _members(kinds: list[Cluster], bits: int) -> list[Cluster]:
    """The kinds whose bits are set, each on the slowest wires of all of them."""
    chosen = [kind for number, kind in enumerate(kinds) if bits >> number & 1]
    wires = slowest_wires(chosen)
    return list(dict.fromkeys(on_wires(kind, wires) for kind in chosen))


def _price(folded: Program, unfolded: Unfolded, kinds: list[Cluster]) -> Prices:
    """Price each item for every kind of its members; the slowest counts."""
    jobs: dict[Cluster, list[int]] = {}
    for number, (item, bits) in enumerate(zip(unfolded.folded_item.tolist(), unfolded.bits.tolist(), strict=True)):
        if item >= 0:
            for cluster in _members(kinds, bits):
                jobs.setdefault(cluster, []).append(number)
    tables = []
    for cluster, numbers in jobs.items():
        items = tuple(folded.items[int(unfolded.folded_item[i])] for i in numbers)
        tables.append((np.array(numbers), price(replace(folded, items=items), cluster)))
    return _slowest(len(unfolded.folded_item), tables)


def _slowest(n: int, tables: list[tuple[Ints, Prices]]) -> Prices:
    """Put prices of some of n items each together; of an item with several the slowest."""
    classes = tuple(dict.fromkeys(which for _, p in tables for which in p.classes))
    columns: dict[str, Any] = {
        "occupancy": np.zeros(n),
        "latency": np.zeros(n),
        "account": np.zeros((n, len(ACCOUNTS))),
        "share": np.zeros((n, len(RESOURCE_KINDS))),
    }
    class_share, known = np.zeros((n, len(classes))), np.full(n, -1.0)
    model, placement = ["given"] * n, [""] * n
    weight, sigma, calibrated = np.zeros(len(classes)), np.zeros(len(classes)), [True] * len(classes)
    for priced, prices in tables:
        total = prices.occupancy + prices.latency
        slower = total > known[priced]
        rows = priced[slower]
        known[rows] = total[slower]
        for name, column in columns.items():
            column[rows] = getattr(prices, name)[slower]
        index = np.array([classes.index(which) for which in prices.classes], np.int64)
        class_share[rows] = 0.0
        class_share[np.ix_(rows, index)] = prices.class_share[slower]
        for i, row in zip(np.flatnonzero(slower).tolist(), rows.tolist(), strict=True):
            model[row], placement[row] = prices.model[i], prices.placement[i]
        seconds = prices.class_share.sum(axis=0)
        weight[index] += seconds
        sigma[index] += seconds * prices.sigma
        for q, good in zip(index.tolist(), prices.calibrated, strict=True):
            calibrated[q] &= good
    made = functools.partial(
        ByClass,
        classes=classes,
        class_share=class_share,
        sigma=np.divide(sigma, weight, out=np.zeros(len(classes)), where=weight > 0),
        calibrated=tuple(calibrated),
    )
    return Prices(
        **columns,
        slowdown=tables[0][1].slowdown,
        model=tuple(model),
        placement=tuple(placement),
        by_class=made,
    )


def _rank_kinds(kinds: list[Cluster], of_rank: Ints, parts: Ints, class_of: Ints) -> tuple[RankKind, ...]:
    """What each rank of the unfolded program stands for."""
    out = []
    for number in range(int(class_of.max()) + 1):
        mine = np.flatnonzero(class_of == number)
        for rank in range(of_rank.shape[1]):
            touched = int(np.bitwise_or.reduce(parts[mine, rank].reshape(-1)))
            out.append(_rank_kind(kinds, rank, mine, of_rank[mine[0], rank], touched))
    return tuple(out)


def _rank_kind(kinds: list[Cluster], place: int, replicas: Ints, of_rank: Ints, parts: int) -> RankKind:
    """What a rank stands for whose members are of these kinds and belong to these parts."""
    members, counts = np.unique(of_rank, return_counts=True)
    gpus = [kinds[m].gpu for m in members.tolist()]
    names = set.intersection(*(set(g.peak_flops) for g in gpus))
    return RankKind(
        pipeline_rank=place,
        replicas=shown_numbers(replicas),
        gpus=tuple(dict.fromkeys(g.name for g in gpus)),
        memory=min(g.usable_memory for g in gpus),
        host_memory=min(kinds[m].node.host_memory or 0.0 for m in members.tolist()),
        nvme=min(kinds[m].node.nvme or 0.0 for m in members.tolist()),
        peak_flops={d: float(np.average([g.peak(d) for g in gpus], weights=counts)) for d in names},
        parts=tuple(i for i in range(parts.bit_length()) if parts >> i & 1),
    )
