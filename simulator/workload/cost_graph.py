"""What layers or operators cost, as a graph: times and bytes that were measured somewhere, without shapes.

    CostNode   an operator: seconds of its forward and of its backward, bytes of its output, of its weights and in memory
    CostWay    one of several ways to run an operator, where it can be divided over devices or recompute its activations
    CostEdge   who reads whose output
    CostGraph  both, in the order of the file, and the machine that the file describes, if it does

Planners of placements and of pipelines take it, and so may a workload whose layers were measured.  Profiles of other programs are read by
`importers.cost_graphs`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from simulator.errors import SpecError

__all__ = ["CostEdge", "CostGraph", "CostNode", "CostWay", "Machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWay:
    """One way to run an operator.

    Args:
        kind: in the words of its file.
        tensor: devices that share the operator.
        seconds: s of forward and backward of one microbatch.
        parameters: B of weights on a device.
        kept: B on a device of every microbatch whose backward is to come.
        held: B on a device however many these are.
        gathers: per edge that ends here, in the order of the edges: B that its devices move to have a tensor that comes from elsewhere.
        scatters: the same per edge that begins here, of the gradient that comes back.
    """

    kind: str = ""
    tensor: int = 1
    seconds: float = 0.0
    parameters: float = 0.0
    kept: float = 0.0
    held: float = 0.0
    gathers: tuple[float, ...] = ()
    scatters: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostNode:
    """One operator, on one device.

    Args:
        name: unique in its graph.
        kind: what it does, in the words of its file.
        forward, backward: s on a device, of one minibatch.
        activation: B of its output.
        parameters: B of its weights.
        memory: B that stand on the device that has it.
        host: s on a host in place of a device, both directions together; infinite = not there.
        device: whether it may run on a device.
        belongs_to: nodes with one number lie on one device; None = free.
        passes_back: whether the node is itself a part of the backward pass (its time stands in `backward`).
        ways: to run it, where there are several; seconds and bytes stand there then, not here.
    """

    name: str
    kind: str = ""
    forward: float = 0.0
    backward: float = 0.0
    activation: float = 0.0
    parameters: float = 0.0
    memory: float = 0.0
    host: float = math.inf
    device: bool = True
    belongs_to: int | None = None
    passes_back: bool = False
    ways: tuple[CostWay, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEdge:
    """An output that is read.

    Args:
        source, target: numbers of nodes in the graph.
        bytes: B that move when the two lie apart.
        seconds: what moving them takes, where the file says so.
    """

    source: int
    target: int
    bytes: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a graph's file says of the machine.

    Args:
        devices, hosts: how many.
        memory: B of a device.
        bandwidth: B/s of a device; None = not said.
        microbatches: of a step; None = not said.
    """

    devices: int
    hosts: int
    memory: float
    bandwidth: float | None = None
    microbatches: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CostGraph:
    """Operators and who reads whose output.

    Args:
        name: for people.
        nodes: in the order of the file.
        edges: as the file has them.
        machine: None where the file says nothing of it.

    Raises:
        SpecError: there is no node, two bear one name, a number is negative or none, an edge meets no node, edges make a circle, or some
            nodes have ways and others not, or not as many numbers as edges.

    >>> a, b = CostNode(name="a", forward=1.0, backward=2.0, activation=8.0), CostNode(name="b", forward=3.0, parameters=4.0)
    >>> graph = CostGraph(name="two", nodes=(a, b), edges=(CostEdge(source=0, target=1, bytes=8.0),))
    >>> graph.forward, graph.backward, graph.parameters, graph.order
    (4.0, 2.0, 4.0, (0, 1))
    """

    name: str
    nodes: tuple[CostNode, ...]
    edges: tuple[CostEdge, ...]
    machine: Machine | None = None

    def __post_init__(self) -> None:
        if not self.nodes:
            raise SpecError(f"graph {self.name!r}: a graph of costs has one node or more, got none")
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise SpecError(f"graph {self.name!r}: names of nodes are unique, but two are called {node.name!r}")
            seen.add(node.name)
            for what in ("forward", "backward", "activation", "parameters", "memory", "host"):
                value = getattr(node, what)
                if not value >= 0 or (math.isinf(value) and what != "host"):
                    raise SpecError(f"graph {self.name!r}: {what} of node {node.name!r} is 0 or more, got {value:g}")
        for edge in self.edges:
            if not (0 <= edge.source < len(self.nodes) and 0 <= edge.target < len(self.nodes)):
                raise SpecError(
                    f"graph {self.name!r}: an edge joins nodes 0 to {len(self.nodes) - 1}, got {edge.source} -> {edge.target}"
                )
        self._check_ways()
        if len(self.order) < len(self.nodes):
            stuck = sorted(set(range(len(self.nodes))) - set(self.order))
            raise SpecError(
                f"graph {self.name!r}: outputs are read by later nodes only, but {self.nodes[stuck[0]].name!r} waits for itself"
            )

    def _check_ways(self) -> None:
        for number, node in enumerate(self.nodes):
            if bool(node.ways) != self.has_ways:
                raise SpecError(f"graph {self.name!r}: all nodes have ways to run them or none has, but {node.name!r}")
            for way in node.ways:
                where = f"graph {self.name!r}: way {way.kind!r} of node {node.name!r}"
                numbers = (way.seconds, way.parameters, way.kept, way.held, *way.gathers, *way.scatters)
                if way.tensor < 1 or not all(0 <= one < math.inf for one in numbers):
                    raise SpecError(f"{where}: its devices are 1 or more, seconds and bytes 0 or more")
                if (len(way.gathers), len(way.scatters)) != (len(self.sources[number]), len(self.readers[number])):
                    raise SpecError(f"{where}: it has bytes for every edge that ends or begins at the node")

    @property
    def has_ways(self) -> bool:
        """Whether nodes have several ways to run them."""
        return any(node.ways for node in self.nodes)

    def refuse_ways(self) -> None:
        """Refuse nodes with several ways, for those who read one time of each.

        Raises:
            SpecError: there are some.
        """
        if self.has_ways:
            raise SpecError(
                f"graph {self.name!r} has several ways to run each node, and no time of a node alone. "
                f"Way out: dtsim plan {self.name} --problem hybrid"
            )

    @property
    def forward(self) -> float:
        """Seconds of all forwards."""
        return math.fsum(node.forward for node in self.nodes)

    @property
    def backward(self) -> float:
        """Seconds of all backwards."""
        return math.fsum(node.backward for node in self.nodes)

    @property
    def parameters(self) -> float:
        """Bytes of all weights."""
        return math.fsum(node.parameters for node in self.nodes)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Per node: who reads its output, in the order of the edges."""
        out: list[list[int]] = [[] for _ in self.nodes]
        for edge in self.edges:
            out[edge.source].append(edge.target)
        return tuple(map(tuple, out))

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Per node: whose outputs it reads, in the order of the edges."""
        into: list[list[int]] = [[] for _ in self.nodes]
        for edge in self.edges:
            into[edge.target].append(edge.source)
        return tuple(map(tuple, into))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Numbers of the nodes, each behind those whose outputs it reads (Kahn 1962); without those that wait for themselves."""
        waits = [len(sources) for sources in self.sources]
        ready = deque(number for number, count in enumerate(waits) if not count)
        found = []
        while ready:
            found.append(node := ready.popleft())
            for reader in self.readers[node]:
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
        return tuple(found)

    def without(self, numbers: Iterable[int]) -> CostGraph:
        """Return the graph without some nodes and the edges at them."""
        gone = set(numbers)
        new = {old: place for place, old in enumerate(n for n in range(len(self.nodes)) if n not in gone)}
        return CostGraph(
            name=self.name,
            nodes=tuple(self.nodes[old] for old in new),
            edges=tuple(
                CostEdge(source=new[e.source], target=new[e.target], bytes=e.bytes, seconds=e.seconds)
                for e in self.edges
                if e.source in new and e.target in new
            ),
            machine=self.machine,
        )
