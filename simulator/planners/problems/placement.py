"""Which operator runs on which device: the least load of the fullest, as in "Efficient Algorithms for Device Placement" (arXiv 2006.16423).

Operators that must lie together are one *block*.  A device's load is what its blocks take and what moves in or out: an output that is made
on it and read elsewhere, or made elsewhere and read on it, is paid once by every device concerned.  A host pays for its blocks only: data
passes through its memory.  In a pipeline without bubbles the fullest device sets the pace, so its load is the time per minibatch.

A placement is *contiguous* when devices can be put in a row so that blocks, in the order of their forwards, read only from devices before
or from their own.  It is then a chain of *ideals*: sets of blocks that hold whatever their members read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from simulator.errors import SpecError, refuse
from simulator.planners.base import Problem
from simulator.report.table import Section, Table
from simulator.units import show
from simulator.workload.cost_graph import CostGraph

__all__ = ["Assignment", "Output", "Placement", "make_placement"]

Assignment = tuple[int, ...]
"""Device of each block: 0 to devices - 1, hosts behind them."""


class Output(NamedTuple):
    """What a node makes for others.

    Args:
        seconds: what a device pays when it is made there and read elsewhere, or the other way round.
        maker: block that makes it.
        meets: blocks that make or read it, two or more.
    """

    seconds: float
    maker: int
    meets: frozenset[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement(Problem[Assignment]):
    """Blocks on devices and hosts.

    Args:
        graph: of which it is made.
        blocks: numbers of the nodes of each.
        edges: (source, target) blocks, in the order of forwards, without circles.
        outputs: those that may have to move.
        devices, hosts: how many.
        memory: B of a device; infinite = not asked.
    """

    graph: CostGraph
    blocks: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    outputs: tuple[Output, ...]
    devices: int
    hosts: int
    memory: float = math.inf
    name: ClassVar[str] = "placement"
    objective: ClassVar[str] = "load of the fullest device"

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """(blocks,) s on a device; infinite where one of the nodes runs on hosts only."""
        nodes = self.graph.nodes
        return np.array([sum(_on_device(nodes[n]) for n in block) for block in self.blocks])

    @cached_property
    def host_seconds(self) -> NDArray[np.float64]:
        """(blocks,) s on a host; infinite where a node cannot run there."""
        return np.array([math.fsum(self.graph.nodes[n].host for n in block) for block in self.blocks])

    @cached_property
    def own_seconds(self) -> NDArray[np.float64]:
        """(blocks, places) s on each device and each host."""
        return np.stack([self.seconds] * self.devices + [self.host_seconds] * self.hosts, axis=1)

    @cached_property
    def held(self) -> NDArray[np.float64]:
        """(blocks,) B that stand on the device."""
        return np.array([math.fsum(self.graph.nodes[n].memory for n in block) for block in self.blocks])

    @cached_property
    def members(self) -> csr_array:
        """(blocks, outputs) 1 where a block makes or reads an output."""
        pairs = [(block, number) for number, output in enumerate(self.outputs) for block in sorted(output.meets)]
        rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
        return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(self.blocks), len(self.outputs)))

    @cached_property
    def prices(self) -> NDArray[np.float64]:
        """(outputs,) s of moving each."""
        return np.array([output.seconds for output in self.outputs])

    @cached_property
    def meets(self) -> NDArray[np.int64]:
        """(outputs,) how many blocks make or read each."""
        return np.array([len(output.meets) for output in self.outputs], np.int64)

    @cached_property
    def lower_bound(self) -> float:
        """All devices equally full and nothing moved, blocks cut in any parts; or the longest block."""
        longest = float(np.minimum(self.seconds, self.host_seconds).max(initial=0.0))
        device, host = self.seconds.astype(float), self.host_seconds.astype(float)
        if not self.hosts:
            return max(longest, float(device.sum()) / self.devices)
        low, high = 0.0, float(np.minimum(device, host).sum())
        order = np.argsort(_ratio(host, device), kind="stable")  # first what is least bad on hosts
        for _ in range(100):  # halving: a double has 53 bits
            pace = (low + high) / 2
            room, left = self.hosts * pace, 0.0
            for block in order:
                part = 1.0 if host[block] <= room else 0.0 if math.isinf(host[block]) else room / host[block]
                room -= part * host[block] if part else 0.0
                left += (1.0 - part) * device[block] if part < 1.0 else 0.0
            low, high = (low, pace) if left <= self.devices * pace else (pace, high)
        return max(longest, low)

    def loads(self, plan: Assignment) -> NDArray[np.float64]:
        """(devices + hosts,) s of each."""
        places = np.array(plan)
        counts = self.counts(places)
        cut = (counts > 0) & (counts < self.meets[:, None])
        moved = (cut * self.prices[:, None]).sum(axis=0)
        own = np.zeros(self.devices + self.hosts)
        on_host = places >= self.devices
        np.add.at(own, places, np.where(on_host, self.host_seconds, self.seconds))
        moved[self.devices :] = 0.0
        return np.asarray(own + moved)

    def counts(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """(outputs, devices + hosts) blocks on each that make or read an output."""
        there = np.zeros((len(self.blocks), self.devices + self.hosts))
        there[np.arange(len(places)), places] = 1.0
        return np.asarray(self.members.T @ there)

    def price(self, plan: Assignment) -> float:
        """See `Problem.price`."""
        return float(self.loads(plan).max())

    def broken(self, plan: Assignment) -> str:
        """See `Problem.broken`."""
        places = self.devices + self.hosts
        if len(plan) != len(self.blocks) or not all(0 <= place < places for place in plan):
            return f"a placement has one of {places} places for each of {len(self.blocks)} blocks"
        array = np.array(plan)
        held = np.bincount(array, weights=self.held, minlength=places)[: self.devices]
        if held.max(initial=0.0) > self.memory:
            worst = int(held.argmax())
            return f"device {worst} has {show(self.memory, 'B')}, but its blocks need {show(float(held[worst]), 'B')}"
        alone = np.where(array >= self.devices, self.host_seconds, self.seconds)
        if np.isinf(alone).any():
            return f"block {int(np.isinf(alone).argmax())} cannot run where it was put"
        return ""

    def every_plan(self) -> Iterator[Assignment]:
        """See `Problem.every_plan`; devices are alike, so a block goes to one of those in use or to the next."""
        plan: list[int] = []
        hosts = range(self.devices, self.devices + self.hosts)

        def further(used: int) -> Iterator[Assignment]:
            if len(plan) == len(self.blocks):
                yield tuple(plan)
                return
            for place in (*range(min(used + 1, self.devices)), *hosts):
                plan.append(place)
                yield from further(max(used, place + 1) if place < self.devices else used)
                plan.pop()

        return further(0)

    def contiguous(self, plan: Assignment) -> bool:
        """Whether devices can be put in a row so that nothing is read from one behind."""
        pairs = {(plan[a], plan[b]) for a, b in self.edges if plan[a] != plan[b]}
        return not _circles(self.devices + self.hosts, pairs)

    def described(self, plan: Assignment) -> Section:
        """See `Problem.described`: a row per device."""
        loads = self.loads(plan)
        rows = []
        for place, load in enumerate(loads):
            blocks = [number for number, where in enumerate(plan) if where == place]
            if not blocks and place >= self.devices:
                continue
            host = place >= self.devices
            own = float((self.host_seconds if host else self.seconds)[blocks].sum())
            rows.append(
                (
                    f"host {place - self.devices}" if host else f"device {place}",
                    str(sum(len(self.blocks[block]) for block in blocks)),
                    show(own, "s"),
                    show(float(load) - own, "s"),
                    show(float(load), "s"),
                    show(float(self.held[blocks].sum()), "B"),
                )
            )
        headings = ("place", "nodes", "computes", "moves", "load", "memory")
        shape = "in a row" if self.contiguous(plan) else "not contiguous"
        return Section(title=f"the placement ({shape})", table=Table(headings=headings, rows=tuple(rows)))

    def to_dict(self, plan: Assignment) -> dict[str, Any]:
        """See `Problem.to_dict`."""
        loads = self.loads(plan)
        return {
            "contiguous": self.contiguous(plan),
            "places": [
                {
                    "kind": "host" if place >= self.devices else "device",
                    "load": float(loads[place]),
                    "nodes": [
                        self.graph.nodes[node].name
                        for block, where in zip(self.blocks, plan, strict=True)
                        if where == place
                        for node in block
                    ],
                }
                for place in range(self.devices + self.hosts)
            ],
        }

    def merged(self, pairs: Iterable[tuple[int, int]]) -> tuple[Placement, NDArray[np.int64]]:
        """Return the problem with blocks put together, and the new number of every old block; circles that this makes go, too."""
        label = _joined(len(self.blocks), list(pairs))
        edges = {(int(label[a]), int(label[b])) for a, b in self.edges if label[a] != label[b]}
        count = int(label.max(initial=-1)) + 1
        strong = _strong(count, edges)
        label = _in_order(strong[label])
        blocks: list[list[int]] = [[] for _ in range(int(label.max(initial=-1)) + 1)]
        for old, new in enumerate(label):
            blocks[new] += self.blocks[old]
        gathered: dict[tuple[int, frozenset[int]], float] = {}
        for output in self.outputs:
            meets = frozenset(int(label[block]) for block in output.meets)
            if len(meets) > 1:
                key = int(label[output.maker]), meets
                gathered[key] = gathered.get(key, 0.0) + output.seconds
        new_edges = dict.fromkeys((int(label[a]), int(label[b])) for a, b in self.edges if label[a] != label[b])
        return (
            Placement(
                graph=self.graph,
                blocks=tuple(map(tuple, blocks)),
                edges=tuple(new_edges),
                outputs=tuple(Output(seconds, maker, meets) for (maker, meets), seconds in gathered.items()),
                devices=self.devices,
                hosts=self.hosts,
                memory=self.memory,
            ),
            label,
        )


def make_placement(
    graph: CostGraph,
    devices: int | None = None,
    hosts: int | None = None,
    memory: float | None = None,
    bandwidth: float | None = None,
) -> Placement:
    """Return the problem of placing a graph.

    Args:
        graph: the operators.
        devices, hosts, memory: None = what the graph's file says of the machine; without one, devices must be given, there are no hosts
            and memory is not asked.
        bandwidth: B/s at which outputs move whose time the file does not say; activations come back as gradients as large, so twice.

    Raises:
        SpecError: neither says how many devices, a bandwidth lacks or has no effect, or a block runs nowhere.
    """
    graph.refuse_ways()
    machine = graph.machine
    if devices is None and machine is None:
        raise SpecError(f"graph {graph.name!r} says nothing of a machine. Way out: --devices N")
    devices = devices if devices is not None else machine.devices if machine else 0
    hosts = hosts if hosts is not None else machine.hosts if machine else 0
    memory = memory if memory is not None else machine.memory if machine else math.inf
    if devices < 1 or hosts < 0:
        raise SpecError(f"there are 1 device or more and 0 hosts or more, got {devices} and {hosts}")
    timed = all(edge.seconds is not None for edge in graph.edges)
    if not timed and bandwidth is None:
        raise SpecError(f"graph {graph.name!r} has bytes on its edges. Way out: --bandwidth '1 GB/s'")
    if timed and bandwidth is not None:
        why = "says what moving its outputs takes" if graph.edges else "has no edges"
        raise SpecError(f"graph {graph.name!r} {why}, so a bandwidth has no effect: leave it out")
    count = len(graph.nodes)
    colours: dict[int, int] = {}
    same = []
    for number, node in enumerate(graph.nodes):
        if node.belongs_to is not None:
            same.append((colours.setdefault(node.belongs_to, number), number))
    block_of = _joined(count, same)
    trains = graph.backward > 0
    moved = [0.0] * count
    for edge in graph.edges:
        seconds = edge.seconds if edge.seconds is not None else (1 + trains) * edge.bytes / (bandwidth or math.inf)
        moved[edge.source] = max(moved[edge.source], seconds)
    outputs = []
    for number, readers in enumerate(graph.readers):
        meets = frozenset(int(block_of[one]) for one in (number, *readers))
        if len(meets) > 1:
            outputs.append(Output(moved[number], int(block_of[number]), meets))
    blocks: list[list[int]] = [[] for _ in range(int(block_of.max(initial=-1)) + 1)]
    for number, block in enumerate(block_of):
        blocks[block].append(number)
    whole = Placement(
        graph=graph,
        blocks=tuple(map(tuple, blocks)),
        edges=tuple(_forward_edges(graph, block_of)),
        outputs=tuple(outputs),
        devices=devices,
        hosts=hosts,
        memory=memory,
    )
    found = whole.merged(())[0]
    nowhere = np.isinf(found.seconds) & (np.isinf(found.host_seconds) | (hosts == 0))
    if nowhere.any():
        first = found.blocks[int(nowhere.argmax())][0]
        refuse(
            "every block runs on a device or a host", f"that of node {graph.nodes[first].name!r} does not", "--hosts 1"
        )
    return found


def _forward_edges(graph: CostGraph, block_of: NDArray[np.int64]) -> dict[tuple[int, int], None]:
    """Pairs of blocks in the order of forwards; a block of backward nodes alone stands where the mirror of its edges puts it."""
    nodes = graph.nodes
    has_forward = {int(block_of[number]) for number, node in enumerate(nodes) if not node.passes_back}
    found: dict[tuple[int, int], None] = {}
    for edge in graph.edges:
        a, b = int(block_of[edge.source]), int(block_of[edge.target])
        if a == b:
            continue
        if not nodes[edge.source].passes_back and not nodes[edge.target].passes_back:
            found[a, b] = None
        elif nodes[edge.source].passes_back and nodes[edge.target].passes_back and not {a, b} <= has_forward:
            found[b, a] = None
    return found


def _on_device(node: Any) -> float:
    return float(node.forward + node.backward) if node.device else math.inf


def _ratio(over: NDArray[np.float64], under: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(over / under, nan=0.0, posinf=math.inf)


def _joined(count: int, pairs: list[tuple[int, int]]) -> NDArray[np.int64]:
    return _in_order(_components(count, pairs, "weak"))


def _strong(count: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    return _components(count, list(pairs), "strong")


def _components(count: int, pairs: list[tuple[int, int]], connection: str) -> NDArray[np.int64]:
    rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(count, count))
    return np.asarray(connected_components(graph, directed=True, connection=connection)[1], np.int64)


def _circles(count: int, pairs: Iterable[tuple[int, int]]) -> bool:
    return int(_strong(count, pairs).max(initial=-1)) + 1 < count


def _in_order(label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels numbered by their first occurrence."""
    new: dict[int, int] = {}
    return np.array([new.setdefault(int(one), len(new)) for one in label], np.int64)
