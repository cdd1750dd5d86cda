"""What every layout must keep, whatever its rules: the program that follows from it computes what one rank computes.

Checked on a small transformer, a look-up at its beginning and a loss at its end, forward and backward, on simulated ranks.
"""

from __future__ import annotations

from simulator.partition.derive import derive
from simulator.partition.layout import Layout
from simulator.partition.placements import lay_out
from simulator.testing.mesh_interpreter import differences
from simulator.workload.graph import Dim, Kernel, LayerGraph, Lookup, Op, Product, Tensor

__all__ = ["check_layout", "small_transformer"]


def check_layout(layout: Layout, size: int = 8, seed: int = 0) -> None:
    """Refuse a layout under which some rank finds other numbers.

    Args:
        size: of every dimension that axes may divide.

    Raises:
        AssertionError: values or gradients differ; they are named.
        LayoutError: the layout cannot lay the tensors.
    """
    graph = small_transformer(size)
    wrong = differences(graph, lay_out(graph, layout), derive(graph, layout), seed)
    if wrong:
        raise AssertionError(
            f"layout {layout.name!r} on {dict(layout.mesh)}: {'; '.join(wrong)} differ from one rank's"
        )


def small_transformer(size: int = 8) -> LayerGraph:
    """Return the graph of a transformer with one layer: products in place of attention, for what attention divides they divide.

    Args:
        size: of batch, sequence, hidden, heads, inner width and vocabulary.
    """
    b, s, h, n, f, v = (Dim(d, size) for d in ("batch", "sequence", "hidden", "heads", "ffn", "vocabulary"))
    d = Dim("head_dim", 2)
    ops: list[Op] = []
    weights: list[Tensor] = []

    def weight(name: str, *dims: Dim, role: str = "weight") -> Tensor:
        weights.append(Tensor(name, dims, 2.0, role))
        return weights[-1]

    def kernel(name: str, *given: Tensor, dims: tuple[Dim, ...] = (), **more: object) -> Tensor:
        out = Tensor(name, dims or given[0].dims, 2.0)
        ops.append(Kernel(label=name, inputs=given, outputs=(out,), moves=(), **more))  # type: ignore[arg-type]
        return out

    def norm(name: str, x: Tensor) -> Tensor:
        return kernel(name, x, weights=(weight(f"{name} scale", h, role="vector"),), reduces=(h,), role="norm")

    def product(name: str, x: Tensor, summed: tuple[Dim, ...], made: tuple[Dim, ...], bias: bool = True) -> Tensor:
        out = Tensor(name, (b, s, *made), 2.0)
        mine = [weight(f"{name} weight", *summed, *made)]
        if bias:
            mine.append(weight(f"{name} bias", *made, role="bias"))
        ops.append(Product(label=name, inputs=(x,), weights=tuple(mine), outputs=(out,)))
        return out

    ids, x = Tensor("ids", (b, s), 8.0), Tensor("embedded", (b, s, h), 2.0)
    ops.append(Lookup(label="embedding", inputs=(ids,), weights=(weight("table", v, h),), outputs=(x,), moves=()))
    heads = kernel("attention", product("queries", norm("attention norm", x), (h,), (n, d)))
    x = kernel("attention residual", product("projection", heads, (n, d), (h,)), x)
    inner = kernel("gelu", product("up", norm("mlp norm", x), (h,), (f,)))
    x = kernel("mlp residual", product("down", inner, (f,), (h,)), x)
    logits = product("logits", norm("final norm", x), (h,), (v,), bias=False)
    loss = kernel("loss", logits, dims=(b, s), reduces=(v,), role="loss")
    return LayerGraph(kind="transformer", inputs=(ids,), ops=tuple(ops), outputs=(loss,), weights=tuple(weights))
