"""What every block must keep: an attention, a mixer, or a whole family of models, whoever wrote it.

A block is tried inside a small model that names it, under the kernels of several frameworks: its graph must fit together, own all of the
model's weights once, cost twice its forward products backward, keep nothing that nobody makes, and divide evenly over tensor-parallel
ranks.  Nothing that is predicted may depend on what its operations are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from simulator.lowering import resolve
from simulator.lowering.layers.expand import layer_costs, layer_kinds
from simulator.partition.compose import compose
from simulator.plan.plan import Plan
from simulator.program.program import OperatorTable
from simulator.specs import validate_spec
from simulator.testing import require
from simulator.workload.blocks.attention import ATTENTIONS
from simulator.workload.blocks.attention.base import Attention
from simulator.workload.blocks.mixer import MIXERS
from simulator.workload.blocks.mixer.base import Mixer
from simulator.workload.families import FAMILIES
from simulator.workload.graph import LayerGraph, Product
from simulator.workload.layer_case import LayerCase
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle
from simulator.workload.operators import operators
from simulator.workload.precision import precision_named
from simulator.workload.workload import Workload

__all__ = ["SMALL", "STYLES", "BlockContract", "small_model", "trying"]

SMALL: dict[str, object] = {
    "name": "small",
    "family": "contract",
    "layers": 2,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 256,
    "gated_mlp": True,
    "norm": "rms_norm",
    "positions": "rotary",
    "tied_embeddings": False,
    "vocabulary": 512,
    "sequence_length": 128,
    "linear_bias": False,
    "qkv_bias": False,
}
"""Fields of a model in which a block is tried; a block that needs others names them."""

STYLES = (
    KernelStyle(),
    KernelStyle(attention="unfused", dropout=True, fused_softmax=False),
    KernelStyle(
        attention="chunked",
        fused_norm=False,
        fused_rotary=False,
        joined_qkv=False,
        joined_gate=False,
        repeats_keys=True,
    ),
    KernelStyle(attention="te", copies_attention_output=True, keeps_gathered_inputs=True, splits_qkv=True),
)
"""Kernels of frameworks that differ most."""

_TENSOR = (1, 2, 4)
"""Ways in which tensor parallelism divides it."""


def small_model(**fields: object) -> Model:
    """A model of `SMALL` with other fields, such as `attention="mine"` or `mixers=["mine"]`."""
    return validate_spec(SMALL | fields, Model, "block contract")


@contextlib.contextmanager
def trying(member: Attention | Mixer) -> Iterator[None]:
    """A block that is not saved in its family's folder is known by its name inside.

    Raises:
        AssertionError: it has no source.
    """
    require(bool(getattr(member, "source", "")), f"{member.name}: no source")
    with ATTENTIONS.trying(member) if isinstance(member, Attention) else MIXERS.trying(member):
        yield


class BlockContract:
    """Checks for the blocks of one model."""

    def check_all(self, model: Model) -> None:
        """Run all checks."""
        for graph in self.graphs(model):
            self.check_weights(graph)
            self.check_products(graph)
            self.check_kept(graph)
        self.check_division(model)

    @staticmethod
    def graphs(model: Model, sequences: int = 2) -> Iterator[LayerGraph]:
        """Yield the graphs of all kinds of layers of a model under every style; each is verified as it is made."""
        family, length = FAMILIES.get(model.architecture), model.sequence_length
        for style in STYLES:
            for kind in layer_kinds(model):
                case = LayerCase(
                    model=model,
                    kind=kind,
                    sequences=sequences,
                    length=length,
                    precision=precision_named("bf16"),
                    style=style,
                    vocabulary=model.vocabulary,
                    source=length if model.encoder_layers else 0,
                )
                yield family.graph(case)

    @staticmethod
    def check_weights(graph: LayerGraph) -> None:
        """Operators own the weights of the graph, no more and no less."""
        owned = sum(o.parameters for o in operators(graph))
        made = sum(w.elements for w in graph.weights)
        require(owned == made, f"{graph.kind}: operators own {owned} weights, the graph has {made}")

    @staticmethod
    def check_products(graph: LayerGraph) -> None:
        """A product multiplies as many numbers as its output and its depth say; both of its gradients do the same."""
        for op, operator in zip(graph.ops, operators(graph), strict=True):
            if isinstance(op, Product):
                b, m, n, k = operator.shape
                rows = sum(out.elements for _, _, out in op.pairs)
                require(
                    m * n * (b if not op.matrices else 1) == rows, f"{op.label}: {m} x {n} is not its output, {rows}"
                )
                require(b * m * n * k > 0, f"{op.label}: a product of nothing: {operator.shape}")
                require(sum(operator.widths) == n, f"{op.label}: products of {operator.widths} columns make {n}")

    @staticmethod
    def check_kept(graph: LayerGraph) -> None:
        """What is kept has bytes, and a flag that selective recompute can keep: who makes it again stands in the layer."""
        given = {t.name for t in graph.inputs}
        for op in graph.ops:
            for keep in op.keeps:
                require(keep.bytes > 0, f"{op.label} keeps {keep.tensor.name!r}, which is empty")
                outside = keep.tensor.name in given and keep.droppable
                require(
                    not outside, f"{op.label}: {keep.tensor.name!r} comes from outside, so no recompute makes it again"
                )

    def check_division(self, model: Model) -> None:
        """A tensor-parallel rank holds its part of what is divided and all of the rest, and its two gradients of every product are as
        much work as the product twice."""
        work = Workload(model=model, sequence_length=model.sequence_length, global_batch_size=8)
        weights = {graph.kind: graph.weights for graph in self.graphs(model)}
        for t in (t for t in _TENSOR if model.heads % t == 0 and model.kv_heads % t == 0):
            plan = Plan(tensor_parallel=t, framework="megatron_core", microbatch_size=1, recompute="none")
            for kind, cost in layer_costs(work, resolve(work, plan, 8)).items():
                if model.experts and "moe" in kind:
                    continue
                layout = compose("megatron", t)
                split = sum(w.elements for w in weights[kind] if layout.along(w.dims))
                held = split / t + sum(w.elements for w in weights[kind]) - split
                require(cost.parameters == held, f"{kind}: a rank of {t} holds {cost.parameters} weights, not {held}")
                once, twice = (_product_flops(table) for table in (cost.forward, cost.backward))
                require(twice == 2 * once, f"{kind}: products are {once} FLOP forward and {twice} backward")

    @staticmethod
    def renamed(graph: LayerGraph) -> LayerGraph:
        """The same graph, its operations called by numbers: nothing that is predicted may change."""
        return replace(graph, ops=tuple(replace(op, label=f"operation {i}") for i, op in enumerate(graph.ops)))


def _product_flops(table: OperatorTable) -> float:
    """FLOPs of a table's products, without those that are made again."""
    rows = zip(table.work, table.phase, table.flops, strict=True)
    return float(sum(flops for work, phase, flops in rows if work == "gemm" and phase != "recompute"))
