"""Runs a derived program on real numbers over all simulated ranks, forward and backward, and says where it differs from one rank.

Operations mean, whatever they are called:

    product          the einsum of its operands; what is added (biases) is added where the result lies
    window           the sum over its taps of the einsum of what it reads there; of a shift what it reads there
    look-up          one-hot rows times the table
    any kernel       the sum over what its output lacks of the product of tanh of its operands, p
    one that reduces p times the sum of p over the dimensions that it reduces; where the output lacks them, that sum

Nothing here knows which collective is needed: moves are made as they were derived, and sums of reductions over the axes that were named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.partition.derive import DerivedOp, derive
from simulator.partition.layout import Shard
from simulator.partition.operands import Operand
from simulator.partition.placements import LaidOut
from simulator.testing.simulated_ranks import Array, Parts, SimulatedRanks
from simulator.testing.window_arithmetic import window_backward, window_forward
from simulator.workload.graph import Dim, Kernel, LayerGraph, Lookup, Product, Tensor
from simulator.workload.windows import Windowed

__all__ = ["MeshInterpreter", "differences"]

Values = dict[str, Parts]


def differences(graph: LayerGraph, laid: LaidOut, derived: Sequence[DerivedOp], seed: int = 0) -> list[str]:
    """Return what of a derived program differs on some rank from what one rank computes: values, gradients; [] where it is right."""
    one = MeshInterpreter(
        LaidOut("one rank", (), {name: {} for name in laid.tensors}, ({},) * len(graph.ops)), graph, seed
    )
    one.run(derive(graph, one.laid))
    many = MeshInterpreter(laid, graph, seed)
    many.run(derived)
    return [
        *_unlike("", many, one.values, many.values),
        *_unlike("gradient of ", many, one.gradients, many.gradients),
    ]


def _unlike(what: str, many: MeshInterpreter, right: Values, found: Values) -> list[str]:
    out = []
    for name, whole in right.items():
        tensor = many.tensors[name]
        if name not in found:
            out.append(f"{what}{name} is missing")
            continue
        for at, part in many.place(tensor, whole[()]).items():
            mine = found[name][at]
            if mine.shape != part.shape or not np.allclose(mine, part, rtol=1e-8, atol=1e-8):
                out.append(f"{what}{name} on rank {at}")
                break
    return out


@dataclass
class MeshInterpreter:
    """A graph on a mesh, with numbers drawn by a seed: equal on every mesh.

    Args:
        laid: where its tensors lie.
        nudged: (tensor, place, change) of one of the numbers given.
    """

    laid: LaidOut
    graph: LayerGraph
    seed: int = 0
    nudged: tuple[str, tuple[int, ...], float] | None = None
    values: Values = field(default_factory=dict)
    gradients: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranks = SimulatedRanks(self.laid.mesh)
        made = (t for op in self.graph.ops for t in op.outputs)
        self.tensors = {t.name: t for t in (*self.graph.inputs, *self.graph.weights, *made)}
        self.random = np.random.default_rng(self.seed)
        self.numbers: dict[str, Array] = {}
        self.lies = dict(self.laid.tensors)

    def run(self, derived: Sequence[DerivedOp]) -> None:
        """Run forward and backward; `values` and `gradients` lie as the tensors do."""
        self.lies.update({o.tensor.name: o.held for op in derived for o in op.part("output")})
        looked = {op.inputs[0].name: op.weights[0].dims[0].size for op in self.graph.ops if isinstance(op, Lookup)}
        for tensor in (*self.graph.inputs, *self.graph.weights):
            shape = [d.size for d in tensor.dims]
            if tensor.name in looked:
                self.numbers[tensor.name] = self.random.integers(looked[tensor.name], size=shape).astype(float)
            else:
                self.numbers[tensor.name] = self.random.standard_normal(shape) / 2
                if self.nudged and self.nudged[0] == tensor.name:
                    self.numbers[tensor.name][self.nudged[1]] += self.nudged[2]
                self.values[tensor.name] = self.place(tensor, self.numbers[tensor.name])
        reads: list[dict[str, Parts]] = []
        for op in derived:
            reads.append(self._forward(op))
        for tensor in self.graph.outputs:
            drawn = self.random.standard_normal([d.size for d in tensor.dims])
            self._add(tensor.name, self.place(tensor, drawn))
        for op, read in zip(reversed(derived), reversed(reads), strict=True):
            self._backward(op, read)

    def place(self, tensor: Tensor, whole: Array) -> Parts:
        """Return a tensor as it lies."""
        return self.ranks.place(whole, tensor.dims, self.lies[tensor.name])

    def _add(self, name: str, parts: Parts) -> None:
        known = self.gradients.get(name)
        self.gradients[name] = parts if known is None else {at: known[at] + part for at, part in parts.items()}

    def _moved(self, o: Operand, parts: Parts, forward: bool) -> Parts:
        return self.ranks.change(parts, o.tensor.dims, o.forward if forward else o.backward)

    def _read(self, op: DerivedOp) -> dict[str, Parts]:
        """Operands as the operation reads them; of a look-up, one-hot rows of the part of the table that each rank has."""
        out = {}
        for o in (*op.part("input"), *op.part("weight")):
            if isinstance(op.op, Lookup) and o.role == "input":
                words = op.op.weights[0].dims[0]
                rows = np.eye(words.size)[self.numbers[o.tensor.name].astype(int)]
                lies = {axis: Shard(d.name) for axis, d in op.along.items() if d == words or d in o.tensor.dims}
                out[o.tensor.name] = self.ranks.place(rows, (*o.tensor.dims, words), lies)
            else:
                out[o.tensor.name] = self._moved(o, self.values[o.tensor.name], True)
        return out

    def _forward(self, op: DerivedOp) -> dict[str, Parts]:
        read = self._read(op)
        if isinstance(op.op, Windowed):
            o = op.part("output")[0]
            self.values[o.tensor.name] = self._moved(o, window_forward(self.ranks, op, op.op, read), True)
            return read
        for number, o in enumerate(op.part("output")):
            factors, maps = self._factors(op, number)
            parts = self._product(factors, read, maps, o.tensor.dims)
            if sums := self._reduced(op, o):
                kept = tuple(d for d in self._union(factors) if d.name not in sums)
                found = self._summed(op, self._product(factors, read, maps, kept))
                whole = all(d.name not in sums for d in o.tensor.dims)
                parts = (
                    found
                    if whole
                    else {at: _times((p, found[at]), (o.tensor.dims, kept), o.tensor.dims) for at, p in parts.items()}
                )
            parts = self._moved(o, parts, True)
            for bias in self._biases(op, number):
                mine = read[bias.name]
                parts = {at: p + _spread(mine[at], bias.dims, o.tensor.dims) for at, p in parts.items()}
            self.values[o.tensor.name] = parts
        return read

    def _backward(self, op: DerivedOp, read: dict[str, Parts]) -> None:
        found: dict[str, Parts] = {}
        for number, o in enumerate(op.part("output")):
            gradient = self.gradients.get(o.tensor.name)
            if gradient is None:
                continue
            if isinstance(op.op, Windowed):
                found = window_backward(self.ranks, op, op.op, read, self._moved(o, gradient, False))
                continue
            for bias in self._biases(op, number):
                found[bias.name] = {at: _times((g,), (o.tensor.dims,), bias.dims) for at, g in gradient.items()}
            gradient, dims = self._moved(o, gradient, False), o.tensor.dims
            factors, maps = self._factors(op, number)
            if sums := self._reduced(op, o):
                gradient, dims = self._through_sum(op, o, gradient, factors, read, maps, sums)
            for i, tensor in enumerate(factors):
                if isinstance(op.op, Lookup) and i == 0:
                    continue
                inner, _ = maps
                others = [t for j, t in enumerate(factors) if j != i]
                parts = {
                    at: _times(
                        (g, *(inner(read[t.name][at]) for t in others), maps[1](read[tensor.name][at])),
                        (dims, *(t.dims for t in others), tensor.dims),
                        tensor.dims,
                    )
                    for at, g in gradient.items()
                }
                known = found.get(tensor.name)
                found[tensor.name] = parts if known is None else {at: known[at] + p for at, p in parts.items()}
        for o in (*op.part("input"), *op.part("weight")):
            if o.tensor.name in found:
                self._add(o.tensor.name, self._moved(o, found[o.tensor.name], False))

    def _through_sum(
        self,
        op: DerivedOp,
        o: Operand,
        gradient: Parts,
        factors: tuple[Tensor, ...],
        read: dict[str, Parts],
        maps: Maps,
        sums: set[str],
    ) -> tuple[Parts, tuple[Dim, ...]]:
        """The gradient of p, of y = p sum(p) or of y = sum(p)."""
        dims, union = o.tensor.dims, self._union(factors)
        if all(d.name not in sums for d in dims):
            return gradient, dims
        kept = tuple(d for d in union if d.name not in sums)
        total = self._summed(op, self._product(factors, read, maps, kept))
        p = self._product(factors, read, maps, dims)
        back = self._summed(op, {at: _times((g, p[at]), (dims, dims), kept) for at, g in gradient.items()})
        out = {
            at: _times((g, total[at]), (dims, kept), dims) + _spread(back[at], kept, dims) for at, g in gradient.items()
        }
        return out, dims

    def _summed(self, op: DerivedOp, parts: Parts) -> Parts:
        """Added over the axes of a reduction."""
        for axis in op.reduces:
            place, size = [a for a, _ in self.laid.mesh].index(axis), self.laid.ranks[axis]
            parts = {
                at: np.asarray(sum(parts[(*at[:place], i, *at[place + 1 :])] for i in range(size))) for at in parts
            }
        return parts

    @staticmethod
    def _reduced(op: DerivedOp, o: Operand) -> set[str]:
        return {d.name for d in op.op.reduces} if isinstance(op.op, Kernel) else set()

    @staticmethod
    def _biases(op: DerivedOp, number: int) -> list[Tensor]:
        return [w for w in op.op.weights if w.role == "bias"] if isinstance(op.op, Product) and number == 0 else []

    @staticmethod
    def _union(factors: tuple[Tensor, ...]) -> tuple[Dim, ...]:
        return tuple({d.name: d for t in factors for d in t.dims}.values())

    @staticmethod
    def _factors(op: DerivedOp, number: int) -> tuple[tuple[Tensor, ...], Maps]:
        """What an output is the product of, and the function of each and its derivative."""
        one = op.op
        if isinstance(one, Product):
            return list(one.pairs)[number][:2], LINEAR
        if isinstance(one, Lookup):
            rows = one.inputs[0].view(*one.inputs[0].dims, one.weights[0].dims[0])
            return (rows, one.weights[0]), LINEAR
        return (*one.inputs, *one.weights), CURVED

    def _product(
        self, factors: tuple[Tensor, ...], read: Mapping[str, Parts], maps: Maps, dims: tuple[Dim, ...]
    ) -> Parts:
        inner = maps[0]
        return {
            at: _times(tuple(inner(read[t.name][at]) for t in factors), tuple(t.dims for t in factors), dims)
            for at in self.ranks.coordinates
        }


Maps = tuple[Callable[[Array], Array], Callable[[Array], Array]]
LINEAR: Maps = (lambda x: x, np.ones_like)
CURVED: Maps = (np.tanh, lambda x: 1.0 - np.tanh(x) ** 2)


def _times(arrays: tuple[Array, ...], dims: tuple[tuple[Dim, ...], ...], out: tuple[Dim, ...]) -> Array:
    """The einsum of some arrays."""
    letters: dict[str, str] = {}
    for dim in (d for each in (*dims, out) for d in each):
        letters.setdefault(dim.name, chr(ord("a") + len(letters)))
    *given, made = ("".join(letters[d.name] for d in each) for each in (*dims, out))
    return np.asarray(np.einsum(f"{','.join(given)}->{made}", *arrays))


def _spread(array: Array, dims: tuple[Dim, ...], out: tuple[Dim, ...]) -> Array:
    """An array with further dimensions of size one, in the order of others, so that it is added to each."""
    order = [d.name for d in out if d.name in {e.name for e in dims}]
    moved = np.transpose(array, [[d.name for d in dims].index(name) for name in order])
    return moved[tuple(slice(None) if d.name in order else None for d in out)]
