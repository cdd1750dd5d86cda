"""The price of one item on one desk: a segment, a fused pair, or a link.  Equal items cost the same, so each is priced once.

A price depends on what an item runs or moves, on the machine, on where mesh axes lie on its wires and on the host's times; these
last three are the *desk*.  Names of items are no part of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import collective_seconds, with_servers
from simulator.collectives.crossing import placed_alike
from simulator.costs.desk import Desk
from simulator.costs.fused_pairs import handed_over, hidden_seconds
from simulator.costs.host import host_seconds
from simulator.costs.host_time import HostTimes, table_time
from simulator.costs.memory_bound import MEMORY_BOUND_CLASS, memory_bound_calibrated, memory_bound_sigma
from simulator.costs.slices import slice_seconds
from simulator.costs.tables import Machine, TablePrice, mesh_of, placement_text, price_table
from simulator.errors import PlanError, ProgramError
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement, place_group, place_hop
from simulator.hardware.host import Host, host_of
from simulator.program.calls import SYNCHRONISED
from simulator.program.prices import ACCOUNTS, BLOCKED, HOST_BOUND, HOST_CLASS, RESOURCE_KINDS, PriceClass
from simulator.program.program import (
    COPY,
    TRANSFER,
    Axes,
    FusedSegment,
    Item,
    OperatorTable,
    Pieces,
    Segment,
    Served,
)

__all__ = ["NUMBERS", "ItemPrice", "price_classes", "price_item"]

HOST_SIGMA = 0.3
"""Spread of launch times between hosts: traces show medians of 3 to 6 us, i.e. exp(+-0.3) around 4 us."""

SMALL_WAIT = 0.05
"""A block that waits for its host for less than this part of its kernels' time is not called host-bound."""

_CLASSES: dict[PriceClass, int] = {}
"""Numbers of the price classes met so far, of which there are few."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemPrice:
    """The price of an item; columns as in `Prices`.

    Args:
        numbers: occupancy, latency, seconds by account and shares of kinds of resources, in this order (`NUMBERS`).
        classes: seconds by number of the price class.
        noted: number of the price class (`price_classes`) of every part that was priced by itself; `seconds`, `weighted` (by its sigma),
            `calibrated`: of each.
    """

    numbers: NDArray[np.float64]
    classes: dict[int, float]
    noted: tuple[int, ...]
    seconds: tuple[float, ...]
    weighted: tuple[float, ...]
    calibrated: tuple[bool, ...]
    model: str
    placement: str

    @property
    def occupancy(self) -> float:
        """Seconds for which its streams are held."""
        return float(self.numbers[0])

    @property
    def latency(self) -> float:
        """Seconds between its end and the start of what waits for it."""
        return float(self.numbers[1])


NUMBERS = (2, 2 + len(ACCOUNTS), 2 + len(ACCOUNTS) + len(RESOURCE_KINDS))
"""Where in `ItemPrice.numbers` the accounts begin, the shares, and where they end."""


class _Draft:
    """The price of an item in the making."""

    def __init__(self) -> None:
        self.occupancy = self.latency = 0.0
        self.account, self.share = [0.0] * len(ACCOUNTS), [0.0] * len(RESOURCE_KINDS)
        self.classes: dict[int, float] = {}
        self.noted: list[tuple[int, float, float, bool]] = []
        self.model = self.placement = ""

    def note(self, which: PriceClass, seconds: float, sigma: float, calibrated: bool) -> None:
        """Count seconds under a price class."""
        self.count(_CLASSES.setdefault(which, len(_CLASSES)), seconds, sigma, calibrated)

    def count(self, number: int, seconds: float, sigma: float, calibrated: bool) -> None:
        """As `note`, by the number of the class."""
        self.classes[number] = self.classes.get(number, 0.0) + seconds
        self.noted.append((number, seconds, seconds * sigma, calibrated))

    def price(self) -> ItemPrice:
        """Return the finished price, kept in tuples of plain numbers: they cost the garbage collector nothing."""
        noted, seconds, weighted, calibrated = zip(*self.noted, strict=True) if self.noted else ((), (), (), ())
        return ItemPrice(
            numbers=np.array([self.occupancy, self.latency, *self.account, *self.share], np.float64),
            classes=self.classes,
            noted=noted,
            seconds=seconds,
            weighted=weighted,
            calibrated=calibrated,
            model=self.model,
            placement=self.placement,
        )


def price_classes() -> list[PriceClass]:
    """Return the price classes met so far, by number."""
    return list(_CLASSES)


def price_item(item: Item, desk: Desk, place: GroupPlacement | None = None) -> ItemPrice:
    """Return the price of an item.

    Args:
        place: of what a link joins, where that is not found on the desk's mesh.

    Raises:
        PlanError: a group leaves the node of a cluster without network.
        ProgramError: a link's group names an axis that the mesh lacks.
        SpecError: something is put on the host, and the node's file does not say what memory it has.
    """
    if isinstance(item, Segment):
        price = _segment(item.pieces, item.synchronises, desk)
        return _noticed(price, desk.notice) if desk.notice and item.phase == "backward" else price
    if isinstance(item, FusedSegment):
        return _pair(item.first.pieces, item.second.pieces, desk)
    if place is None and item.kind not in (COPY, TRANSFER) and not desk.names.issuperset(item.group):
        raise ProgramError(f"link {item.name!r}: group {item.group} names an axis that the mesh {desk.axes} lacks")
    if place is not None:
        place = placed_alike(place, desk.machine.fabric)
    elif item.kind != COPY:
        place = _place(item.kind, item.group, item.pipeline_ranks, desk)
    wait, listing = desk.after_message if item.blocks else 0.0, desk.slice_time if item.slices else 0.0
    return _link(
        item.kind,
        item.collective,
        item.message,
        place,
        item.account,
        wait,
        item.slices,
        listing,
        item.served,
        desk.machine,
        desk.unbound,
    )


def _noticed(price: ItemPrice, notice: float) -> ItemPrice:
    """The price of a segment with this latency [s]."""
    numbers = price.numbers.copy()
    numbers[1] = notice
    return replace(price, numbers=numbers)


@functools.lru_cache(maxsize=16384)
def _segment(pieces: Pieces, synchronises: bool, desk: Desk) -> ItemPrice:
    return _kernels(pieces, _meshes(pieces, desk), desk.machine, desk.host, desk.end_of_step if synchronises else 0.0)


def _meshes(pieces: Pieces, desk: Desk) -> tuple[Axes, ...]:
    """What of the mesh the price of each piece depends on."""
    return tuple([mesh_of(table, desk.axes) for table, _ in pieces])


@functools.lru_cache(maxsize=4096)
def _pair(first: Pieces, second: Pieces, desk: Desk) -> ItemPrice:
    both, hidden, parts = first + second, 0.0, 0
    if desk.fuses:
        hidden = hidden_seconds(first, second, desk.machine, desk.axes)
        parts = handed_over(first, second, desk.machine, desk.axes)
    return _kernels(both, _meshes(both, desk), desk.machine, desk.host, 0.0, hidden, parts)


@functools.lru_cache(maxsize=16384)
def _kernels(
    pieces: Pieces,
    meshes: tuple[Axes, ...],
    machine: Machine,
    times: HostTimes,
    fixed: float,
    hidden: float = 0.0,
    parts: int = 0,
) -> ItemPrice:
    """Price the kernels of a segment.

    Args:
        meshes: of each piece (`mesh_of`).
        fixed: what the host adds at the end [s].
        hidden: communication of a fused pair that may hide under its compute (design 5b C) [s].
        parts: of its layers that the host starts one by one, each as a module.
    """
    draft = _Draft()
    kernels, ahead, behind, launches, stops = 0.0, 0.0, 0.0, 0, 0
    account, resource = draft.account, [0.0] * len(RESOURCE_KINDS)
    crossings: list[str] = []
    for (table, count), axes in zip(pieces, meshes, strict=True):
        run = _run(table, machine, axes, times)
        priced = run.price
        crossings += priced.crossings
        kernels += count * priced.seconds
        launches += count * priced.launches
        stops += count * run.stops
        behind += count * run.behind
        ahead += count * run.ahead
        for number, seconds in run.accounts:
            account[number] += count * seconds
        for number, seconds in run.resources:
            resource[number] += count * seconds
        for number, seconds, sigma, calibrated in run.classes:
            draft.count(number, count * seconds, sigma, calibrated)
    ahead += parts * times.module
    if hidden:
        saved = min(hidden, account[ACCOUNTS.index("ep")])
        kernels -= saved
        ahead += saved
        _hide(draft, saved)
    waiting = launches * times.blocked if times.blocked else max(0.0, ahead) + behind
    waiting += stops * times.synchronised
    host = waiting + fixed
    account[ACCOUNTS.index("host")] += host
    total = kernels + host
    draft.occupancy = float(np.array(account).sum())
    if host:
        draft.note(HOST_CLASS, host, HOST_SIGMA, True)
    if total:
        draft.share = [seconds / total for seconds in resource]
    bound = HOST_BOUND if waiting > SMALL_WAIT * kernels else "kernels"
    draft.model = BLOCKED if times.blocked and waiting else bound
    draft.placement = "; ".join(dict.fromkeys(crossings))
    return draft.price()


class _Run(NamedTuple):
    """One run through a table: its price; how often the host waits for the GPU in it; how much longer the host works than
    the GPU where it runs ahead, and where it waits on the way [s]; (number, seconds) of the accounts and kinds of resources that it has
    a part in, and (number, seconds, sigma, calibrated) of its price classes."""

    price: TablePrice
    stops: int
    ahead: float
    behind: float
    accounts: tuple[tuple[int, float], ...]
    resources: tuple[tuple[int, float], ...]
    classes: tuple[tuple[int, float, float, bool], ...]


@functools.lru_cache(maxsize=8192)
def _run(table: OperatorTable, machine: Machine, axes: Axes, host: HostTimes) -> _Run:
    priced = price_table(table, machine, axes)
    work = table_time(table, machine, axes, host)
    classes = [
        (
            _CLASSES.setdefault(which, len(_CLASSES)),
            time.seconds,
            time.weighted_sigma / time.seconds if time.seconds else 0.0,
            time.calibrated,
        )
        for which, time in priced.classes.items()
    ]
    return _Run(
        price=priced,
        stops=table.call.count(SYNCHRONISED),
        ahead=0.0 if work.joint else work.host - work.device,
        behind=work.joint - work.device if work.joint else 0.0,
        accounts=_parts(priced.account),
        resources=_parts(priced.resource),
        classes=tuple(classes),
    )


def _parts(seconds: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    """Where there are any, with their number."""
    return tuple([(number, some) for number, some in enumerate(seconds.tolist()) if some])


def _hide(draft: _Draft, saved: float) -> None:
    """Take what a fused pair hides off the experts' exchanges."""
    ep = ACCOUNTS.index("ep")
    draft.account[ep] -= saved
    exchanges = [number for which, number in _CLASSES.items() if which.kind == "all_to_all"]
    numbers = [number for number in draft.classes if number in exchanges]
    total = sum(draft.classes[number] for number in numbers)
    for number in numbers:
        draft.classes[number] *= 1.0 - min(saved / total, 1.0) if total else 1.0


@functools.lru_cache(maxsize=16384)
def _link(
    kind: int,
    collective: str,
    message: float,
    place: GroupPlacement | None,
    account: str,
    wait: float,
    slices: int,
    slice_time: float,
    served: Served | None,
    machine: Machine,
    unbound: bool,
) -> ItemPrice:
    """Price a link.

    Args:
        place: of its ranks on the wires; None for a copy.
        wait: for the host, behind it [s].
        slice_time: the host's, for a tensor of a list [s].
        served: as of `Link`.
        unbound: whether the threads of every rank's update on the host may run on every core.
    """
    draft, number = _Draft(), ACCOUNTS.index(account)
    if place is None:
        _copy(draft, collective, message, number, host_of(machine.cluster, unbound))
    else:
        _message(draft, kind, collective, message, place, number, machine.fabric, served)
    if wait:
        draft.latency += wait
        draft.note(HOST_CLASS, wait, HOST_SIGMA, True)
    if slices:
        _list(draft, slices, message, number, slice_time, machine)
    return draft.price()


def _copy(draft: _Draft, what: str, message: float, account: int, host: Host) -> None:
    """Price what the host does; copies use the GPU's copy engines, updates and drives nothing of it."""
    seconds, which, sigma = host_seconds(what, message, host)
    draft.occupancy = seconds
    if what in ("to_host", "to_device"):
        draft.share[RESOURCE_KINDS.index("copy")] = 1.0
    draft.account[account] = seconds
    draft.note(which, seconds, sigma, True)
    draft.model = str(which)


def _message(
    draft: _Draft,
    kind: int,
    collective: str,
    message: float,
    place: GroupPlacement,
    account: int,
    fabric: Fabric,
    served: Served | None,
) -> None:
    """Price a transfer (bytes over bandwidth hold the streams, the rest is latency) or a collective."""
    if kind == TRANSFER:
        time = collective_seconds("send_recv", message, place, fabric)
        start = collective_seconds("send_recv", 0.0, place, fabric)
        draft.latency = min(start.seconds, time.seconds)
        draft.occupancy = time.seconds - draft.latency
    else:
        how = with_servers(*_reached(served, place)) if served else "auto"
        time = collective_seconds(collective, message, place, fabric, how)
        draft.occupancy = time.seconds
    draft.share[RESOURCE_KINDS.index("pp" if kind == TRANSFER else _wires(place, fabric))] = 1.0
    draft.account[account] = draft.occupancy
    if place.ranks > 1:
        draft.note(time.price_class, time.seconds, time.sigma, time.calibrated)
    draft.model = f"{time.algorithm}/{time.protocol} ({time.profile})"
    draft.placement = placement_text(place, time)


def _reached(served: Served, place: GroupPlacement) -> Served:
    """Return the servers, which ranks on one node do not reach over a network."""
    if place.nodes < 2 and served.servers:
        raise PlanError(
            f"machines without GPUs serve nodes over a network, but the {place.ranks} ranks lie on one node (exchange_servers = "
            f"{served.servers}). Way out: exchange_servers = 0, or more nodes"
        )
    return served


def _wires(place: GroupPlacement, fabric: Fabric) -> str:
    """Return the kind of resource of a collective: "tp" where its multiprocessors set its pace, "dp" where network or PCIe hold it up."""
    return "dp" if place.level == "fabric" or fabric.intra == "pcie" else "tp"


def _list(draft: _Draft, slices: int, message: float, account: int, slice_time: float, machine: Machine) -> None:
    """Add what a list of tensors around a collective costs; the copies use the GPU's memory where the host does not hold them up."""
    seconds, waits = slice_seconds(
        slices, message / machine.pace.memory_bandwidth, slice_time, machine.gpu, machine.memory_bound
    )
    alone = draft.occupancy
    draft.occupancy += seconds
    draft.account[account] += seconds
    draft.share = [share * (alone / draft.occupancy) for share in draft.share]
    if waits:
        draft.note(HOST_CLASS, seconds, HOST_SIGMA, True)
        return
    draft.share[RESOURCE_KINDS.index("memory")] = seconds / draft.occupancy
    sigma = memory_bound_sigma(machine.gpu, machine.memory_bound)
    known = memory_bound_calibrated(machine.gpu, machine.memory_bound)
    draft.note(MEMORY_BOUND_CLASS, seconds, sigma, known)


@functools.lru_cache(maxsize=4096)
def _place(kind: int, group: tuple[str, ...], some: tuple[int, ...], desk: Desk) -> GroupPlacement:
    """Place what a link joins, as all are placed that lie alike: of a pipeline most hops do."""
    fabric = desk.machine.fabric
    if kind != TRANSFER:
        return placed_alike(_group(desk.axes, group, some, desk.machine), fabric)
    source, destination = some
    return placed_alike(place_hop(desk.axes, source, destination, fabric), fabric)


def _group(axes: Axes, group: tuple[str, ...], some: tuple[int, ...], machine: Machine) -> GroupPlacement:
    """Place a collective's group; one that joins some pipeline ranks only is a hop widened by its other axes."""
    size = dict(axes).get("pp", 1)
    if "pp" not in group or not some or len(some) == size:
        return place_group(axes, group, machine.fabric)
    hop = place_hop(axes, min(some), max(some), machine.fabric)
    others = tuple(name for name in group if name != "pp")
    if not others:
        return replace(hop, ranks=len(some), lattice=hop.lattice if len(some) == 2 else None)
    inner = place_group(axes, others, machine.fabric)
    leaves = hop.nodes > 1
    return replace(
        hop if leaves else inner,
        ranks=inner.ranks * len(some),
        nodes=inner.nodes * (len(some) if leaves else 1),
        ranks_per_node=inner.ranks_per_node if leaves else inner.ranks_per_node * len(some),
        fewest_per_node=inner.fewest_per_node if leaves else inner.fewest_per_node * len(some),
    )
