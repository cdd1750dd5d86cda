"""How every operation of a layer is divided over a mesh: least bytes moved, within the memory of a rank.

Every operation has choices: along each mesh axis one of the dimensions it runs over; where none divides evenly, nothing.  A choice costs
what its weights' gradients move (`costs`); a tensor that one operation makes and another reads costs what brings it, and its gradient
back, from the one's choice to the other's (`edges`).  What must be moved between two placements is `partition.redistribute`'s table.
A layer is one of a stack: its output goes to where its input lies, so that the next one finds it there.

Every operation is divided whenever it can be, as in ToFu (Wang et al., EuroSys 2019): else nothing would move, and nothing be gained.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import LayoutError, SpecError
from simulator.partition.layout import PARTIAL, REPLICATE, Mesh, Placement, Shard
from simulator.partition.operands import Operand, operands_of, same_dimension
from simulator.partition.placements import LaidOut, local_dims, running_dims, tensors_of
from simulator.partition.signatures import boxing_bytes
from simulator.planners.base import Problem
from simulator.report.table import Section, Table
from simulator.units import show
from simulator.workload.graph import Dim, Exchange, HostWait, Kernel, LayerGraph, Lookup, Op, Tensor, count

__all__ = ["Along", "Choices", "Layouts", "make_layouts"]

Choices = tuple[int, ...]
"""Number of the choice of each operation."""
Placements = Mapping[str, Placement]
_MOST_CHOICES = 2_000
"""Of one operation; tables of two operations have its square."""


class Along(NamedTuple):
    """What a mesh axis divides.

    Args:
        axis, dimension: their names.
    """

    axis: str
    dimension: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Layouts(Problem[Choices]):
    """A choice for every operation.

    Args:
        names: of the operations.
        divides: per operation and choice: what each mesh axis divides.
        costs: per operation, (choices,) B moved over all ranks.
        held: per operation, (choices,) B that a rank holds of its weights and of what it makes.
        weights: per operation, (choices,) B of these that are weights.
        edges: pair of operations, the lower number first -> (choices, choices) B moved between them.
        memory: B of a rank; infinite = not asked.
        coarser: the same without the last mesh axis; None where there is one.
    """

    names: tuple[str, ...]
    divides: tuple[tuple[tuple[Along, ...], ...], ...]
    costs: tuple[NDArray[np.float64], ...]
    held: tuple[NDArray[np.float64], ...]
    weights: tuple[NDArray[np.float64], ...]
    edges: Mapping[tuple[int, int], NDArray[np.float64]]
    memory: float = math.inf
    coarser: Layouts | None = None
    name: ClassVar[str] = "layout"
    unit: ClassVar[str] = "B"
    objective: ClassVar[str] = "moved in a step"

    @property
    def labels(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """`divides` in words."""
        return tuple(tuple(tuple(":".join(one) for one in choice) for choice in choices) for choices in self.divides)

    @property
    def lower_bound(self) -> float:
        """Every operation and every pair its least."""
        return float(sum(one.min() for one in (*self.costs, *self.edges.values())))

    def moved(self, plan: Choices) -> float:
        """Return the bytes that a plan moves over all ranks, whatever it holds."""
        own = (costs[choice] for costs, choice in zip(self.costs, plan, strict=True))
        return math.fsum((*own, *(table[plan[a], plan[b]] for (a, b), table in self.edges.items())))

    def bytes_held(self, plan: Choices) -> float:
        """Return the bytes that a rank holds."""
        return math.fsum(held[choice] for held, choice in zip(self.held, plan, strict=True))

    def price(self, plan: Choices) -> float:
        """See `Problem.price`."""
        return self.moved(plan)

    def broken(self, plan: Choices) -> str:
        """See `Problem.broken`."""
        sizes = [len(one) for one in self.costs]
        if len(plan) != len(sizes) or not all(0 <= choice < n for choice, n in zip(plan, sizes, strict=True)):
            return f"a layout has a choice for each of {len(sizes)} operations"
        held = self.bytes_held(plan)
        return f"a rank has {show(self.memory, 'B')}, but holds {show(held, 'B')}" if held > self.memory else ""

    def every_plan(self) -> Iterator[Choices]:
        """See `Problem.every_plan`."""
        yield from itertools.product(*(range(len(one)) for one in self.costs))

    def described(self, plan: Choices) -> Section:
        """See `Problem.described`: a row per operation."""
        rows = []
        for number, choice in enumerate(plan):
            brought = math.fsum(table[plan[a], choice] for (a, b), table in self.edges.items() if b == number)
            label = " ".join(self.labels[number][choice]) or "whole"
            own = float(self.costs[number][choice])
            numbers = own, brought, float(self.held[number][choice])
            rows.append((self.names[number], label, *(show(one, "B") for one in numbers)))
        headings = ("operation", "divides", "gradients", "brought", "held")
        lines = (
            f"{show(self.moved(plan), 'B')} moved over all ranks, {show(self.bytes_held(plan), 'B')} held by each",
        )
        return Section(title="the layout", lines=lines, table=Table(headings=headings, rows=tuple(rows), left=(0, 1)))

    def to_dict(self, plan: Choices) -> dict[str, Any]:
        """See `Problem.to_dict`."""
        return {
            "held": self.bytes_held(plan),
            "operations": [
                {"name": name, "divides": list(labels[choice])}
                for name, labels, choice in zip(self.names, self.labels, plan, strict=True)
            ],
        }


class _Read(NamedTuple):
    """A tensor as an operation sees it, how it lies there, and how its gradient comes out."""

    tensor: Tensor
    used: Placements
    gradient: Placements


@dataclass(frozen=True, slots=True)
class _Node:
    """An operation with its choices; the layer's input is one that computes nothing."""

    name: str
    alongs: tuple[Mapping[str, Dim], ...]
    made: tuple[dict[str, Placements], ...]
    read: tuple[dict[str, _Read], ...]
    cost: NDArray[np.float64]
    held: NDArray[np.float64]
    weights: NDArray[np.float64]


def make_layouts(graph: LayerGraph, mesh: Mesh, memory: float = math.inf) -> Layouts:
    """Return the problem of a layer on a mesh.

    Args:
        graph: of one kind of layer, as one of a stack.
        mesh: axes and their ranks.
        memory: B of a rank for the layer's weights and what its operations make.

    Raises:
        SpecError: an operation has too many choices, rows go to experts, or no mesh was given.
    """
    if not mesh or any(ranks < 2 for _, ranks in mesh):
        raise SpecError("a layout needs a mesh of axes of two ranks or more. Way out: --mesh tensor=8")
    for op in graph.ops:
        if isinstance(op, Exchange | HostWait):
            raise SpecError(
                f"a layer is divided whose tensors lie still, but operation {op.label!r} of kind {graph.kind!r} deals rows out to experts. "
                "Way out: a model without experts, or dtsim layout for a layout of your own"
            )
    nodes = [_input(graph, mesh), *(_node(op, graph, mesh) for op in graph.ops)]
    makers = {t.name: number + 1 for number, op in enumerate(graph.ops) for t in op.outputs}
    makers[graph.inputs[0].name] = 0
    edges: dict[tuple[int, int], NDArray[np.float64]] = {}

    def add(maker: int, reader: int, name: str, op: Op) -> None:
        makes, reads = nodes[maker].made, nodes[reader].read
        table = np.array([[_brought(op, one[name], other[name], mesh) for other in reads] for one in makes])
        pair, table = ((maker, reader), table) if maker < reader else ((reader, maker), table.T)
        edges[pair] = edges[pair] + table if pair in edges else table

    for number, op in enumerate(graph.ops):
        for tensor in {t.name: t for t in op.inputs}.values():
            if tensor.name in makers and tensor.name in nodes[number + 1].read[0]:
                add(makers[tensor.name], number + 1, tensor.name, op)
    last, first = graph.outputs[0], graph.inputs[0]
    if {d.name for d in last.dims} == {d.name for d in first.dims} and last.name in makers:
        op = graph.ops[makers[last.name] - 1]
        lies = (one[first.name] for one in nodes[0].made)
        nodes[0] = replace(nodes[0], read=tuple({last.name: _Read(last, one, one)} for one in lies))
        add(makers[last.name], 0, last.name, op)
    return Layouts(
        names=tuple(node.name for node in nodes),
        divides=tuple(tuple(tuple(Along(a, d.name) for a, d in one.items()) for one in node.alongs) for node in nodes),
        costs=tuple(node.cost for node in nodes),
        held=tuple(node.held for node in nodes),
        weights=tuple(node.weights for node in nodes),
        edges=edges,
        memory=memory,
        coarser=make_layouts(graph, mesh[:-1]) if len(mesh) > 1 else None,
    )


def _input(graph: LayerGraph, mesh: Mesh) -> _Node:
    """The layer's input lies along any of its dimensions."""
    tensor = graph.inputs[0]
    alongs = _alongs(tensor.dims, lambda along: _fits(tensor, _shards(tensor, along), mesh), mesh, "input")
    made = tuple({tensor.name: _shards(tensor, along)} for along in alongs)
    nothing = np.zeros(len(alongs))
    return _Node("input", alongs, made, tuple({} for _ in alongs), nothing, nothing, nothing)


def _node(op: Op, graph: LayerGraph, mesh: Mesh) -> _Node:
    whole = LaidOut("choices", mesh, {t.name: {} for t in tensors_of(graph)}, ())
    found: dict[tuple[tuple[str, str], ...], tuple[Operand, ...]] = {}

    def works(along: Mapping[str, Dim]) -> bool:
        try:
            found[_key(along)] = operands_of(op, along, whole, frozenset(), False)
        except LayoutError:
            return False
        return True

    reduced = {d.name for d in op.reduces} if isinstance(op, Kernel) else set()
    alongs = _alongs(tuple(d for d in running_dims(op) if d.name not in reduced), works, mesh, op.label)
    costs: list[float] = []
    held: list[float] = []
    weights: list[float] = []
    made: list[dict[str, Placements]] = []
    read: list[dict[str, _Read]] = []
    for along in alongs:
        operands = found[_key(along)]
        own = [o for o in operands if o.role == "weight"]
        costs.append(sum(boxing_bytes(o.tensor, _gradient(o, along), o.used, mesh) for o in own))
        sizes = [(o.role, count(o.used_shape) * o.tensor.element) for o in operands if o.role in ("weight", "output")]
        held.append(math.fsum(size for _, size in sizes))
        weights.append(math.fsum(size for role, size in sizes if role == "weight"))
        made.append({o.tensor.name: dict(o.used) for o in operands if o.role == "output"})
        seen = [o for o in operands if o.role == "input" and not isinstance(op, Lookup)]
        read.append({o.tensor.name: _Read(o.tensor, o.used, _gradient(o, along)) for o in seen})
    return _Node(op.label, alongs, tuple(made), tuple(read), np.array(costs), np.array(held), np.array(weights))


def _brought(op: Op, made: Placements, read: _Read, mesh: Mesh) -> float:
    """Bytes that bring a tensor from where it comes out to where it is read, and its gradient the other way."""
    seen = {axis: _renamed(op, read.tensor, place) for axis, place in made.items()}
    wanted = {axis: place for axis, place in seen.items() if place != PARTIAL}
    return boxing_bytes(read.tensor, seen, read.used, mesh) + boxing_bytes(read.tensor, read.gradient, wanted, mesh)


def _renamed(op: Op, tensor: Tensor, place: Placement) -> Placement:
    if not isinstance(place, Shard) or place.dim in {d.name for d in tensor.dims}:
        return place
    found = same_dimension(op, tensor.dims, place.dim, tensor)
    return place if found is None else Shard(found.name)


def _gradient(operand: Operand, along: Mapping[str, Dim]) -> Placements:
    """How the gradient of an operand comes out: a sum in terms along axes that divide what it lacks."""
    return {axis: place if isinstance(place := operand.used.get(axis, REPLICATE), Shard) else PARTIAL for axis in along}


def _alongs(dims: tuple[Dim, ...], works: Any, mesh: Mesh, label: str) -> tuple[dict[str, Dim], ...]:
    """What each axis may divide: always something where something works."""
    if len(dims) ** len(mesh) > _MOST_CHOICES:
        raise SpecError(f"operation {label!r} has more than {_MOST_CHOICES:,} choices. Way out: a mesh of fewer axes")
    found: list[dict[str, Dim]] = []
    axes = [axis for axis, _ in mesh]
    for pick in itertools.product((*dims, None), repeat=len(axes)):
        along = {axis: dim for axis, dim in zip(axes, pick, strict=True) if dim is not None}
        if works(along):
            found.append(along)
    most = max(len(along) for along in found)
    return tuple(along for along in found if len(along) == most)


def _shards(tensor: Tensor, along: Mapping[str, Dim]) -> Placements:
    return {axis: Shard(dim.name) for axis, dim in along.items()}


def _fits(tensor: Tensor, placements: Placements, mesh: Mesh) -> bool:
    try:
        local_dims(tensor, placements, dict(mesh), "choices")
    except LayoutError:
        return False
    return True


def _key(along: Mapping[str, Dim]) -> tuple[tuple[str, str], ...]:
    return tuple((axis, dim.name) for axis, dim in along.items())
