"""What runs on a GPU for a layer's graph: one operator per operation, in the same order, with its sizes."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.workload.graph import (
    Attention,
    Exchange,
    HostWait,
    Keep,
    Kernel,
    LayerGraph,
    Lookup,
    Measured,
    Op,
    Product,
    Tensor,
    count,
)
from simulator.workload.operator import Operator, Saved

__all__ = ["operators"]


def operators(graph: LayerGraph) -> tuple[Operator, ...]:
    """Return the operators of a layer, in the order of its graph."""
    makers = {t.name: op for op in graph.ops for t in op.outputs}
    made = {t.name: t for t in (*graph.inputs, *(t for op in graph.ops for t in op.outputs))}
    return tuple(
        Operator(
            op=op,
            sources=tuple(_source(t, made, makers) for t in op.inputs),
            peers=graph.peers,
            saved=tuple(_saved(keep, op, makers) for keep in op.keeps),
            again=_again(op),
            parameters=sum(w.elements for w in op.weights),
            **_own(op),  # type: ignore[arg-type]
        )
        for op in graph.ops
    )


def _source(tensor: Tensor, made: Mapping[str, Tensor], makers: Mapping[str, Op]) -> Tensor:
    """A tensor as it was made; as it is seen, where its maker has gathered it."""
    maker = makers.get(tensor.name)
    return tensor if isinstance(maker, Product) and maker.gathers else made[tensor.name]


def _own(op: Op) -> dict[str, object]:
    """The fields of an operator that depend on what kind of operation it is."""
    if isinstance(op, Product):
        biases = any(w.role == "bias" and not w.frozen for w in op.weights)
        shape = op.shape
        read = shape[1] * shape[2] * op.inputs[0].element if biases and op.sums_bias else 0.0
        return {"work": "gemm", "shape": shape, "columns": op.columns, "backward_read": read}
    if isinstance(op, Attention):
        q, v = op.inputs[0], op.inputs[2]
        size = {d.name: d.size for d in q.dims}
        shape = (size["batch"], size["heads"], size["sequence"], (q.dims[-1].size + v.dims[-1].size) // 2)
        return {"work": "attention", "shape": shape}
    if isinstance(op, Exchange):
        return {"work": "dispatch" if op.outward else "combine", "read": op.inputs[0].bytes}
    if isinstance(op, HostWait):
        return {"work": "counts" if op.counts else "wait", "read": op.read}
    if isinstance(op, Measured):
        return {"work": "measured"}
    if isinstance(op, Kernel):
        return _kernel(op)
    raise TypeError(f"operation {op.label!r} is of no known kind: {type(op).__name__}")


def _kernel(op: Kernel) -> dict[str, object]:
    fields = ("read", "written", "backward_read", "backward_written", "sums_read")
    out: dict[str, object] = {field: sum(moved.bytes(field) for moved in op.moves) for field in fields}
    out["work"] = "sort" if op.after_exchange else "memory_bound"
    if isinstance(op, Lookup):
        out["work"] = "lookup"
        if op.by_product:
            made, table = op.outputs[0].dims, op.weights[0].dims
            out["shape"] = (1, count(made[:-1]), made[-1].size, table[0].size)
    elif op.role == "loss":
        logits = op.inputs[0].dims
        out["shape"] = (1, count(logits[:-1]), logits[-1].size, 1)
    return out


def _again(op: Op) -> float:
    """The share of an operation that per-operator recompute runs again; of a product by its columns."""
    if isinstance(op, Product) and op.again:
        outputs = [t for _, _, t in op.pairs]
        width = {t.name: t.elements for t in outputs}
        return sum(width[name] for name in op.again) / sum(width.values())
    return 1.0 if op.again else 0.0


def _saved(keep: Keep, op: Op, makers: Mapping[str, Op]) -> Saved:
    """A tensor that stands from forward to backward; its flags from who makes it, where the graph does not say."""
    tensor = keep.tensor
    maker = makers.get(tensor.name)
    inside = maker is not None and "core_attn" in maker.modules and "core_attn" in op.modules
    again = maker is not None and tensor.name in maker.again and tensor.role != "mask"
    return Saved(
        name=keep.name or tensor.name,
        bytes=keep.bytes,
        dims=() if keep.whole else tensor.dims,
        category="logits" if tensor.role == "logits" else "activations",
        droppable=inside if keep.droppable is None else keep.droppable,
        cheap=again if keep.cheap is None else keep.cheap,
        idle=keep.idle,
        sent=keep.sent,
        gathered=keep.gathered,
        joined=keep.joined,
        role=keep.role,
    )
