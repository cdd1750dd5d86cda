"""What every layout must keep, whoever wrote it: `simulator.partition.strategies`.

Checked on the graphs of a small model, and on random chains of products whose dimensions are those that the strategy divides: every
tensor has a valid place; the parts of a dimension make up the whole; ranks do all of the work of a product, and none of it twice where
it is divided; and the collectives derived from the layout are those that numbers need.  For the last, the chains are run forward and
backward on simulated ranks, and compared with what one rank computes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from simulator.errors import LayoutError
from simulator.lowering.layers.division import divide
from simulator.partition.compose import compose
from simulator.partition.layout import Layout, kind_of
from simulator.partition.propagate import look_up_along, product_steps, wanted
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies import STRATEGIES
from simulator.partition.strategies.base import Strategy
from simulator.partition.strategies.sequence import TOKENS
from simulator.testing import require
from simulator.testing.block_contract import BlockContract, small_model
from simulator.testing.simulated_ranks import Array, Parts, SimulatedRanks, einsum
from simulator.workload.graph import Dim, LayerGraph, Product, Tensor
from simulator.workload.operator import Operator
from simulator.workload.operators import operators

__all__ = ["StrategyContract", "dimensions", "trying"]

_RANKS, _MESH_RANKS = (1, 2, 4), (1, 4, 8)
"""Degrees of tensor parallelism in which a strategy is tried, on one axis or several."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Products one behind the other: tensors x0, x1, ... and the weights between them."""

    tensors: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]


@contextlib.contextmanager
def trying(strategy: Strategy) -> Iterator[None]:
    """A strategy that is not saved in its family's folder is known by its name inside."""
    compose.cache_clear()
    try:
        with STRATEGIES.trying(strategy):
            yield
    finally:
        compose.cache_clear()


_STATES = {"ssm_heads": 8, "ssm_head_dim": 16, "ssm_groups": 2, "ssm_state": 16, "conv_width": 4}
_LATENT = {
    "kv_heads": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_SHAPES: tuple[dict[str, object], ...] = (
    {"experts": 4, "experts_per_token": 2, "mtp_layers": 1},
    {"mixers": ["mamba2", "delta"], **_STATES},
    {"attention": "latent", **_LATENT},
    {"architecture": "encoder", "head_transform": True, "positions": "learned"},
)
"""Models that have every kind of layer between them, beside the plain one."""


@functools.lru_cache(maxsize=1)
def dimensions() -> frozenset[str]:
    """Return the names of the dimensions that tensors of layers have."""
    found: set[str] = set()
    for shape in ({}, *_SHAPES):
        for graph in BlockContract.graphs(small_model(**shape)):
            made = (*graph.inputs, *graph.weights, *(t for op in graph.ops for t in (*op.inputs, *op.outputs)))
            found.update(dim.name for tensor in made for dim in tensor.dims)
    return frozenset(found)


class StrategyContract:
    """Checks for one strategy."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def check_all(self, seed: int = 0, chains: int = 8) -> None:
        """Run all checks on small models and on so many random chains."""
        self.check_described()
        model = small_model()
        for layout in self.layouts(self.strategy.name):
            refused = (
                (LayoutError,) if TOKENS in layout.rules else ()
            )  # what needs all tokens, where ranks have parts of them
            for graph in BlockContract.graphs(model, 2 * layout.tensor_ranks):
                self.check_tensors(layout, graph)
                for o in operators(graph):
                    with contextlib.suppress(*refused):
                        self.check_work(layout, o)
            random = np.random.default_rng(seed)
            for _ in range(chains):
                self.check_numbers(layout, self.chain(layout, random), random)
            self.check_look_up(layout, random)

    @staticmethod
    def layouts(name: str) -> Iterator[Layout]:
        """Yield the layouts that a strategy makes: of one and of several ranks, with and without sequence parallelism."""
        known, ranks = 0, _RANKS if len(STRATEGIES.get(name).axes) == 1 else _MESH_RANKS
        for tensor, sequence_parallel in itertools.product(ranks, (False, True)):
            if tensor > 1 or not sequence_parallel:
                with contextlib.suppress(LayoutError):  # a mesh that the strategy does not have
                    layout = compose(name, tensor, sequence_parallel)
                    known += tensor > 1
                    yield layout
        require(known > 0, f"{name} has no layout on any of {', '.join(map(str, ranks))} ranks")

    def check_described(self) -> None:
        """It is known by its name, says where it comes from, and divides something."""
        found = STRATEGIES.get(self.strategy.name)
        require(type(found) is type(self.strategy), f"{self.strategy.name!r} is the name of {type(found).__name__}")
        require(bool(getattr(self.strategy, "source", "")), f"{self.strategy.name}: no source")
        require(bool(self.strategy.dims), f"{self.strategy.name} divides no dimension")
        require(isinstance(self.strategy.dims, frozenset), f"{self.strategy.name}: dims is a frozenset of names")
        unknown = sorted(self.strategy.dims - dimensions())
        require(not unknown, f"{self.strategy.name} divides {unknown}, but no tensor of any layer has such a dimension")

    @staticmethod
    def check_tensors(layout: Layout, graph: LayerGraph) -> None:
        """Every tensor of products and every weight has a place, and its parts make up the whole."""
        made = [t for op in graph.ops if isinstance(op, Product) for t in (*op.inputs, *op.outputs)]
        for tensor in (*made, *graph.weights):
            local = layout.local_tensor(tensor)
            ways = layout.ways(tensor.dims, kind_of(tensor))
            require(
                local.elements * ways == tensor.elements,
                f"{layout.name}: {tensor.name!r} has {tensor.elements} elements, {ways:g} parts of it {local.elements} each",
            )

    @staticmethod
    def check_work(layout: Layout, o: Operator) -> None:
        """Ranks that divide a product do all of it together; the others do all of it each."""
        if isinstance(o.op, Product):
            division, whole = divide(layout, o), math.prod(o.shape)
            ranks, all_ranks = whole / math.prod(division.shape), layout.tensor_ranks
            require(ranks in (1, all_ranks), f"{layout.name}: {o.label} is divided {ranks:g} ways, {division}")
            divided = division.around.columns or division.around.rows
            require(not divided or ranks == all_ranks, f"{layout.name}: {o.label} is not divided")

    def chain(self, layout: Layout, random: np.random.Generator) -> Chain:
        """A random chain of products between dimensions, divided and whole ones, of which each pair can be those of one product."""
        size = 2 * math.prod(n for _, n in layout.mesh)
        tokens = Dim("batch", size), Dim("sequence", size)
        whole = [Dim("one width", 3), Dim("another width", 5)]
        divided = [Dim(name, size) for name in sorted(self.strategy.dims)]
        dims = [whole[0]]
        for _ in range(int(random.integers(1, 5))):
            pool = whole if random.random() < 0.4 else divided
            others = [d for d in pool if d != dims[-1] and _multiplies(layout, tokens, dims[-1], d)]
            others = others or [d for d in whole if d != dims[-1]]
            dims.append(others[int(random.integers(len(others)))])
        tensors = tuple(Tensor(f"x{i}", (*tokens, d), 2.0) for i, d in enumerate(dims))
        weights = tuple(Tensor(f"w{i}", pair, 2.0, "weight") for i, pair in enumerate(itertools.pairwise(dims)))
        return Chain(tensors, weights)

    @staticmethod
    def check_numbers(layout: Layout, chain: Chain, random: np.random.Generator) -> None:
        """Run a chain forward and backward on ranks, with the derived collectives, and on one; both must find the same."""
        ranks, lies, agree = _places(layout)

        def drawn(tensor: Tensor) -> Array:
            return random.standard_normal([d.size for d in tensor.dims])

        whole = [drawn(chain.tensors[0])]
        on_ranks = [lies(chain.tensors[0], whole[0])]
        weights = [drawn(w) for w in chain.weights]
        placed = [lies(t, w) for t, w in zip(chain.weights, weights, strict=True)]
        for i, (x, w, y) in enumerate(zip(chain.tensors, chain.weights, chain.tensors[1:], strict=False)):
            dims, steps = (x.dims, w.dims, y.dims), product_steps(layout, x, w, y)[0]
            whole.append(einsum(whole[i], weights[i], dims))
            left, right = ranks.change(on_ranks[i], x.dims, steps.first), ranks.change(placed[i], w.dims, steps.second)
            on_ranks.append(ranks.change(ranks.einsum(left, right, dims), y.dims, steps.result))
            agree(y, on_ranks[-1], whole[-1], "")
        gradient = drawn(chain.tensors[-1])
        parts = lies(chain.tensors[-1], gradient)
        for i in reversed(range(len(chain.weights))):
            x, w, y = chain.tensors[i], chain.weights[i], chain.tensors[i + 1]
            _, to_x, to_w = product_steps(layout, x, w, y)
            dims = (x.dims, y.dims, w.dims)
            left, right = ranks.change(on_ranks[i], x.dims, to_w.first), ranks.change(parts, y.dims, to_w.second)
            found = ranks.change(ranks.einsum(left, right, dims), w.dims, to_w.result)
            agree(w, found, einsum(whole[i], gradient, dims), "gradient of ")
            dims = (y.dims, w.dims, x.dims)
            left, right = ranks.change(parts, y.dims, to_x.first), ranks.change(placed[i], w.dims, to_x.second)
            parts = ranks.change(ranks.einsum(left, right, dims), x.dims, to_x.result)
            gradient = einsum(gradient, weights[i], dims)
            agree(x, parts, gradient, "gradient of ")

    @staticmethod
    def check_look_up(layout: Layout, random: np.random.Generator) -> None:
        """Look words up in a table as it lies, and scatter gradients into it; both as one rank would."""
        ranks, lies, agree = _places(layout)
        size = 2 * layout.tensor_ranks
        batch, words, hidden = Dim("batch", size), Dim("vocabulary", size), Dim("hidden", size)
        rows = Tensor("one-hot rows", (batch, words), 2.0)
        table, out = Tensor("table", (words, hidden), 2.0, "weight"), Tensor("looked up", (batch, hidden), 2.0)
        along = look_up_along(layout, table, out)
        numbers = np.eye(size)[random.integers(size, size=size)]
        weights, gradient = random.standard_normal((size, size)), random.standard_normal((size, size))
        mine = ranks.place(numbers, rows.dims, wanted(along, rows))
        dims = rows.dims, table.dims, out.dims
        steps = redistribute(wanted(along, out, True), layout.placed(out))
        found = ranks.change(ranks.einsum(mine, lies(table, weights), dims), out.dims, steps)
        agree(out, found, einsum(numbers, weights, dims), "")
        dims = rows.dims, out.dims, table.dims
        whole = ranks.change(lies(out, gradient), out.dims, redistribute(layout.placed(out), wanted(along, out)))
        steps = redistribute(wanted(along, table, True), layout.placed(table))
        agree(
            table,
            ranks.change(ranks.einsum(mine, whole, dims), table.dims, steps),
            einsum(numbers, gradient, dims),
            "gradient of ",
        )


def _places(layout: Layout) -> tuple[SimulatedRanks, Callable[[Tensor, Array], Parts], Callable[..., None]]:
    """The ranks of a layout, what lays a tensor on them, and what compares one that lies there with what one rank computes."""
    ranks = SimulatedRanks(tuple((axis, size) for axis, size in layout.mesh if size > 1))

    def lies(tensor: Tensor, whole: Array) -> Parts:
        return ranks.place(whole, tensor.dims, layout.placed(tensor))

    def agree(tensor: Tensor, found: Parts, whole: Array, what: str) -> None:
        for at, part in lies(tensor, whole).items():
            same = part.shape == found[at].shape and np.allclose(part, found[at])
            require(same, f"{layout.name}: rank {at} has another {what}{tensor.name} than one rank computes")

    return ranks, lies, agree


def _multiplies(layout: Layout, tokens: tuple[Dim, ...], depth: Dim, columns: Dim) -> bool:
    """Whether a layout can divide a product of activations of these tokens."""
    x, y = Tensor("x", (*tokens, depth), 2.0), Tensor("y", (*tokens, columns), 2.0)
    try:
        product_steps(layout, x, Tensor("w", (depth, columns), 2.0, "weight"), y)
    except LayoutError:
        return False
    return True
