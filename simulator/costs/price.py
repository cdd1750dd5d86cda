"""price(): seconds for every item of a program on a cluster.  All physics is behind this door; no order, no instances."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from simulator.collectives import collective_seconds
from simulator.costs.fused_pairs import hidden_seconds
from simulator.costs.host import host_seconds
from simulator.costs.host_time import NO_HOST, HostTimes, host_times, table_time
from simulator.costs.memory_bound import MEMORY_BOUND_CLASS, memory_bound_calibrated, memory_bound_sigma
from simulator.costs.slices import slice_seconds
from simulator.costs.tables import ClassTime, Machine, machine_of, placement_text, price_table
from simulator.errors import ProgramError
from simulator.hardware.cluster import Cluster
from simulator.hardware.fabric import GroupPlacement, place_group, place_hop
from simulator.hardware.host import host_of
from simulator.plan.framework import Framework, load_framework
from simulator.program.prices import ACCOUNTS, BLOCKED, HOST_BOUND, RESOURCE_KINDS, Prices
from simulator.program.program import COPY, SYNCHRONISED, TRANSFER, FusedSegment, Link, Program, Segment

__all__ = ["HOST_CLASS", "HOST_SIGMA", "price"]

HOST_CLASS = "host"
HOST_SIGMA = 0.3
"""Spread of launch times between hosts: traces show medians of 3 to 6 us, i.e. exp(+-0.3) around 4 us."""

SMALL_WAIT = 0.05
"""A block that waits for its host for less than this part of its kernels' time is not called host-bound."""


class _Columns:
    """The growing columns of `Prices`."""

    def __init__(self, count: int) -> None:
        self.occupancy, self.latency = np.zeros(count), np.zeros(count)
        self.account = np.zeros((count, len(ACCOUNTS)))
        self.share = np.zeros((count, len(RESOURCE_KINDS)))
        self.classes: list[dict[str, float]] = [{} for _ in range(count)]
        self.totals: dict[str, ClassTime] = defaultdict(ClassTime)
        self.model, self.placement = [""] * count, [""] * count

    def note(self, i: int, name: str, seconds: float, sigma: float, calibrated: bool) -> None:
        """Count seconds of item i under a price class."""
        self.classes[i][name] = self.classes[i].get(name, 0.0) + seconds
        self.totals[name].add(seconds, sigma, calibrated)


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
    machine = machine_of(cluster)
    host = load_framework(program.framework) if program.framework else None
    times = host_times(host, cluster.node.host, cluster.pace.host) if host else NO_HOST
    again, step = (
        (s / cluster.pace.host for s in (_message_wait(host, program), host.step_time)) if host else (0.0, 0.0)
    )
    columns = _Columns(len(program.items))
    for i, item in enumerate(program.items):
        if isinstance(item, Segment | FusedSegment):
            fuses = isinstance(item, FusedSegment) and host is not None and host.fuses_pairs
            fixed = step if isinstance(item, Segment) and item.synchronises else 0.0
            _segment(columns, i, item, machine, program.axes, times, fixed, fuses)
        else:
            _link(columns, i, item, machine, program.axes, cluster)
            if item.blocks and again:
                columns.latency[i] += again
                columns.note(i, HOST_CLASS, again, HOST_SIGMA, True)
            _list(columns, i, item, machine, host.slice_time / cluster.pace.host if host else 0.0)
    names = tuple(columns.totals)
    index = {name: q for q, name in enumerate(names)}
    class_share = np.zeros((len(program.items), len(names)))
    for i, shares in enumerate(columns.classes):
        for name, seconds in shares.items():
            class_share[i, index[name]] = seconds
    totals = columns.totals.values()
    return Prices(
        occupancy=columns.occupancy,
        latency=columns.latency,
        account=columns.account,
        share=columns.share,
        slowdown=machine.slowdown,
        classes=names,
        class_share=class_share,
        sigma=np.array([t.weighted_sigma / t.seconds if t.seconds else 0.0 for t in totals]),
        model=tuple(columns.model),
        placement=tuple(columns.placement),
        calibrated=tuple(t.calibrated for t in totals),
    )


def _message_wait(host: Framework, program: Program) -> float:
    """How long a message that blocks keeps the GPU waiting for the host [s]; where only the description of a divided activation makes
    it wait, not at all without tensor parallelism."""
    divided = dict(program.axes).get("tp", 1) > 1
    return host.message_wait if divided or not host.partitions_activations else 0.0


def _segment(
    columns: _Columns,
    i: int,
    item: Segment | FusedSegment,
    machine: Machine,
    axes: tuple[tuple[str, int], ...],
    times: HostTimes,
    fixed: float,
    fuses: bool,
) -> None:
    """Price a segment; with `fuses` the communication of a pair hides under its compute (design 5b C)."""
    kernels, ahead, behind, launches, stops = 0.0, 0.0, 0.0, 0, 0
    resource = np.zeros(len(RESOURCE_KINDS))
    noted: list[str] = []
    for table, count in item.pieces:
        priced = price_table(table, machine, axes)
        noted += priced.crossings
        kernels += count * priced.seconds
        launches += count * priced.launches
        stops += count * table.layout.count(SYNCHRONISED)
        work = table_time(table, machine, axes, times)
        if work.joint:
            behind += count * (work.joint - work.device)
        else:
            ahead += count * (work.host - work.device)
        columns.account[i] += count * priced.account
        resource += count * priced.resource
        for name, time in priced.classes.items():
            sigma = time.weighted_sigma / time.seconds if time.seconds else 0.0
            columns.note(i, name, count * time.seconds, sigma, time.calibrated)
    if fuses and isinstance(item, FusedSegment):
        saved = min(
            hidden_seconds(item.first, item.second, machine, axes), float(columns.account[i, ACCOUNTS.index("ep")])
        )
        kernels -= saved
        ahead += saved
        _hide(columns, i, saved)
    waiting = launches * times.blocked if times.blocked else max(0.0, ahead) + behind
    waiting += stops * times.synchronised
    host = waiting + fixed
    columns.account[i, ACCOUNTS.index("host")] += host
    total = kernels + host
    columns.occupancy[i] = columns.account[i].sum()
    if host:
        columns.note(i, HOST_CLASS, host, HOST_SIGMA, True)
    if total:
        columns.share[i] = resource / total
    bound = HOST_BOUND if waiting > SMALL_WAIT * kernels else "kernels"
    columns.model[i] = BLOCKED if times.blocked and waiting else bound
    columns.placement[i] = "; ".join(dict.fromkeys(noted))


def _hide(columns: _Columns, i: int, saved: float) -> None:
    """Take what a fused pair hides off the experts' exchanges."""
    ep = ACCOUNTS.index("ep")
    columns.account[i, ep] -= saved
    names = [name for name in columns.classes[i] if name.startswith("all_to_all")]
    total = sum(columns.classes[i][name] for name in names)
    for name in names:
        columns.classes[i][name] *= 1.0 - min(saved / total, 1.0) if total else 1.0


def _copy(columns: _Columns, i: int, item: Link, cluster: Cluster) -> None:
    """Price what the host does; copies use the GPU's copy engines, updates nothing of it."""
    seconds, name, sigma = host_seconds(item.collective, item.message, host_of(cluster))
    columns.occupancy[i] = seconds
    if item.collective != "host_update":
        columns.share[i, RESOURCE_KINDS.index("copy")] = 1.0
    columns.account[i, ACCOUNTS.index(item.account)] = seconds
    columns.note(i, name, seconds, sigma, True)
    columns.model[i] = name


def _link(
    columns: _Columns, i: int, item: Link, machine: Machine, axes: tuple[tuple[str, int], ...], cluster: Cluster
) -> None:
    if item.kind == COPY:
        _copy(columns, i, item, cluster)
        return
    fabric = machine.fabric
    if item.kind == TRANSFER:
        source, destination = item.pipeline_ranks
        place = place_hop(axes, source, destination, fabric)
        time = collective_seconds("send_recv", item.message, place, fabric)
        start = collective_seconds("send_recv", 0.0, place, fabric)
        columns.latency[i] = min(start.seconds, time.seconds)
        columns.occupancy[i] = time.seconds - columns.latency[i]
    else:
        place = _place(axes, item, machine)
        time = collective_seconds(item.collective, item.message, place, fabric)
        columns.occupancy[i] = time.seconds
        columns.share[i, RESOURCE_KINDS.index("dp")] = 1.0
    if item.kind == TRANSFER:
        columns.share[i, RESOURCE_KINDS.index("pp")] = 1.0
    columns.account[i, ACCOUNTS.index(item.account)] = columns.occupancy[i]
    columns.note(i, time.class_name, time.seconds, time.sigma, time.calibrated)
    columns.model[i] = f"{time.algorithm}/{time.protocol} ({time.profile})"
    columns.placement[i] = placement_text(place, time)


def _list(columns: _Columns, i: int, item: Link, machine: Machine, slice_time: float) -> None:
    """Add what a list of tensors around a collective costs; the copies use the GPU's memory where the host does not hold them up."""
    if not item.slices:
        return
    pace = machine.pace
    seconds, waits = slice_seconds(
        item.slices, item.message / pace.memory_bandwidth, slice_time, machine.gpu, machine.memory_bound
    )
    alone = columns.occupancy[i]
    columns.occupancy[i] += seconds
    columns.account[i, ACCOUNTS.index(item.account)] += seconds
    columns.share[i] *= alone / columns.occupancy[i]
    if waits:
        columns.note(i, HOST_CLASS, seconds, HOST_SIGMA, True)
        return
    columns.share[i, RESOURCE_KINDS.index("memory")] = seconds / columns.occupancy[i]
    sigma = memory_bound_sigma(machine.gpu, machine.memory_bound)
    known = memory_bound_calibrated(machine.gpu, machine.memory_bound)
    columns.note(i, MEMORY_BOUND_CLASS, seconds, sigma, known)


def _place(axes: tuple[tuple[str, int], ...], item: Link, machine: Machine) -> GroupPlacement:
    """Place a collective's group; one that joins some pipeline ranks only is a hop widened by its other axes."""
    size = dict(axes).get("pp", 1)
    some = item.pipeline_ranks
    if not set(item.group) <= {name for name, _ in axes}:
        raise ProgramError(f"link {item.name!r}: group {item.group} names an axis that the mesh {axes} lacks")
    if "pp" not in item.group or not some or len(some) == size:
        return place_group(axes, item.group, machine.fabric)
    hop = place_hop(axes, min(some), max(some), machine.fabric)
    others = tuple(name for name in item.group if name != "pp")
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
