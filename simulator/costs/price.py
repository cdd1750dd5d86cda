"""price(): seconds for every item of a program on a cluster.  All physics is behind this door; no order, no instances."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costs.desk import Desk, desk_of
from simulator.costs.items import NUMBERS, ItemPrice, price_classes, price_item
from simulator.errors import ProgramError
from simulator.hardware.cluster import Cluster
from simulator.hardware.group_placement import GroupPlacement
from simulator.plan.framework import load_framework
from simulator.program.prices import ByClass, PriceClass, Prices
from simulator.program.program import Item, Program, Segment
from simulator.program.ragged import ranges

__all__ = ["Placed", "price", "price_placed"]


def price(program: Program, cluster: Cluster) -> Prices:
    """Return the seconds of every item of `program` on `cluster`.

    Segments: the sum of their kernels and exposed collectives, and what the GPU waits for the host (`costs/host_time.py`, design 5b G);
    where the host waits for every kernel, its time for each launch.
    Transfers: bytes over bandwidth hold the streams, the rest of the time is latency; so is what hosts need after a message that
    blocks.  Collectives: the quickest algorithm and protocol on the wires that their group has.  Copies and updates on the host:
    `costs/host.py`.

    Raises:
        PlanError: a group leaves the node of a cluster without network.
        ProgramError: parts of the cluster differ, so an item has no one price; `price_ranks` has them.
        SpecError: something is put on the host, and the node's file does not say what memory it has.
    """
    if cluster.parts:
        raise ProgramError(
            f"an item of a cluster whose parts differ has several prices: use price_ranks for {cluster.name!r}"
        )
    desk = desk_of(cluster, program.axes, load_framework(program.framework) if program.framework else None)
    return _joined(*_priced(program, desk), desk.machine.slowdown)


class Placed(NamedTuple):
    """An item, the desk on which it is priced, and where it lies if its mesh does not say so."""

    item: Item
    desk: Desk
    place: GroupPlacement | None = None


def price_placed(placed: Sequence[Placed]) -> Prices:
    """Return the prices of items on desks of their own, one or more."""
    place: dict[ItemPrice, int] = {}
    numbers = [place.setdefault(price_item(*each), len(place)) for each in placed]
    return _joined(list(place), numbers, placed[0].desk.machine.slowdown)


def _priced(program: Program, desk: Desk) -> tuple[list[ItemPrice], list[int]]:
    """The different prices, and which of them every item has; that of a segment which runs the very same as one before is known."""
    place: dict[ItemPrice, int] = {}
    known: dict[tuple[int, bool], int] = {}
    numbers = []
    for item in program.items:
        if isinstance(item, Segment):
            key = id(item.pieces), item.synchronises
            number = known.get(key)
            if number is None:
                number = known[key] = place.setdefault(price_item(item, desk), len(place))
        else:
            number = place.setdefault(price_item(item, desk), len(place))
        numbers.append(number)
    return list(place), numbers


def _joined(different: list[ItemPrice], numbers: list[int], slowdown: NDArray[np.float64]) -> Prices:
    """Put the prices of all items together."""
    item = np.array(numbers, np.int64)
    models, places = [p.model for p in different], [p.placement for p in different]
    accounts, shares, width = NUMBERS
    table = np.concatenate([np.zeros(0), *(p.numbers for p in different)]).reshape(-1, width)[item]
    return Prices(
        occupancy=table[:, 0].copy(),
        latency=table[:, 1].copy(),
        account=table[:, accounts:shares].copy(),
        share=table[:, shares:].copy(),
        slowdown=slowdown,
        model=tuple(map(models.__getitem__, numbers)),
        placement=tuple(map(places.__getitem__, numbers)),
        by_class=functools.partial(_by_class, different, item, price_classes()),
    )


def _by_class(different: list[ItemPrice], item: NDArray[np.int64], classes: list[PriceClass]) -> ByClass:
    """What the prices of all items rest on; classes are numbered as they come.

    Args:
        different: the prices; `item`: [items] which of them each item has; `classes`: by number.
    """
    part = _spread([len(p.noted) for p in different], item)
    noted = _column([p.noted for p in different], np.int64)[part]
    known, first = np.unique(noted, return_index=True)
    met = known[np.argsort(first)]
    number = np.zeros(int(known.max(initial=0)) + 1, np.int64)
    number[met] = np.arange(len(met))
    noted = number[noted]
    seconds, weighted = (
        np.bincount(noted, _column([getattr(p, name) for p in different], np.float64)[part], len(met))
        for name in ("seconds", "weighted")
    )
    unknown = noted[~_column([p.calibrated for p in different], np.bool_)[part]]
    owner = np.repeat(np.arange(len(different)), [len(p.classes) for p in different])
    share = np.zeros((len(different), len(met)))
    share[owner, number[_column([p.classes for p in different], np.int64)]] = _column(
        [p.classes.values() for p in different], np.float64
    )
    return ByClass(
        classes=tuple([classes[n] for n in met.tolist()]),
        class_share=share[item],
        sigma=np.divide(weighted, seconds, out=np.zeros(len(met)), where=seconds != 0.0),
        calibrated=tuple((np.bincount(unknown, minlength=len(met)) == 0).tolist()),
    )


def _column(parts: Iterable[Iterable[float]], dtype: type) -> NDArray[Any]:
    return np.array(list(itertools.chain.from_iterable(parts)), dtype)


def _spread(lengths: list[int], item: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for lists of these lengths laid end to end, where the entries of the list of every item stand.

    >>> _spread([2, 1], np.array([1, 0, 1])).tolist()
    [2, 0, 1, 2]
    """
    size = np.array(lengths, np.int64)
    each = size[item]
    return ranges((np.cumsum(size) - size)[item], each)
