"""What runs on a GPU for a layer's graph: one operator per operation, in the same order, with the words by which lowering divides it.

The words follow from dimensions alone, by `region` and `_split`:

    heads, ffn, vocabulary, ...        divided by tensor parallelism
    expert_rows                        dealt out over experts; with ffn, the inner width of an expert
    sequence, copies                   divided under sequence parallelism
    none of these                      whole on every rank
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.workload.graph import (
    Attention,
    Dim,
    Exchange,
    HostWait,
    Keep,
    Kernel,
    LayerGraph,
    Lookup,
    Op,
    Product,
    count,
)
from simulator.workload.operator import Operator, Saved

__all__ = ["TENSOR_DIMS", "operators", "region"]

TENSOR_DIMS = frozenset(
    (
        "heads",
        "kv_heads",
        "ffn",
        "vocabulary",
        "projected",
        "state_heads",
        "state_groups",
        "state_channels",
        "state_inner",
        "convolved",
    )
)
"""Dimensions that tensor parallelism divides."""
_SEQUENCE_DIMS = frozenset(("sequence", "source_sequence", "copies"))


def region(dims: tuple[Dim, ...], whole: bool = False) -> str:
    """Return how a tensor of these dimensions is divided: a region of `Saved`.

    >>> region((Dim("batch", 2), Dim("sequence", 8), Dim("heads", 4))), region((Dim("sequence", 8), Dim("hidden", 64)))
    ('tensor', 'sequence')
    """
    names = {d.name for d in dims}
    if whole:
        return "whole"
    if "expert_rows" in names:
        return "expert" if names & TENSOR_DIMS else "copies"
    if names & TENSOR_DIMS:
        return "tensor"
    return "sequence" if names & _SEQUENCE_DIMS else "whole"


def operators(graph: LayerGraph) -> tuple[Operator, ...]:
    """Return the operators of a layer, in the order of its graph."""
    made = {t.name: op for op in graph.ops for t in op.outputs}
    out = []
    for op in graph.ops:
        common: dict[str, object] = {
            "label": op.label,
            "role": op.role,
            "modules": op.modules,
            "captured": op.captured,
            "absorbed": op.absorbed,
            "launches": op.launches,
            "backward_launches": op.backward_launches,
            "per_expert": op.per_expert,
            "saved": tuple(_saved(keep, op, made) for keep in op.keeps),
            "again": _again(op),
            "parameters": sum(w.elements for w in op.weights),
        }
        out.append(Operator(**common | _own(op, graph.peers)))  # type: ignore[arg-type]
    return tuple(out)


def _own(op: Op, peers: int) -> dict[str, object]:
    """The columns of an operator that depend on what kind of operation it is."""
    if isinstance(op, Product):
        return _product(op, peers)
    if isinstance(op, Attention):
        q, k, v = op.inputs[:3]
        size = {d.name: d.size for d in q.dims}
        shape = (size["batch"], size["heads"], size["sequence"], (q.dims[-1].size + v.dims[-1].size) // 2)
        return {
            "work": "attention",
            "split": "heads",
            "shape": shape,
            "kv_heads": k.dims[-2].size,
            "keys": op.keys,
            "peers": peers,
            "kernel": op.kernel,
            "causal": op.causal,
            "window": op.window,
            "chunked": op.chunked,
        }
    if isinstance(op, Exchange):
        size_of = op.inputs[0].bytes
        work = "dispatch" if op.outward else "combine"
        return {"work": work, "split": "copies", "read": size_of, "copies": op.copies, "reach": op.reach}
    if isinstance(op, HostWait):
        return {"work": "counts" if op.counts else "wait", "split": "sequence", "read": op.read}
    if isinstance(op, Kernel):
        return _kernel(op)
    raise TypeError(f"operation {op.label!r} is of no known kind: {type(op).__name__}")


def _kernel(op: Kernel) -> dict[str, object]:
    split = region(op.moves[0].dims, op.whole)
    fields = ("read", "written", "backward_read", "backward_written", "sums_read")
    out: dict[str, object] = {field: sum(moved.bytes(field) for moved in op.moves) for field in fields}
    out |= {"work": "sort" if op.after_exchange else "memory_bound", "split": split, "access": op.access}
    out["small_parameters"] = sum(w.elements for w in op.weights if w.role != "weight")
    if isinstance(op, Lookup):
        out |= {"work": "lookup", "split": "lookup"}
        if op.by_product:
            made, table = op.outputs[0].dims, op.weights[0].dims
            out["shape"] = (1, count(made[:-1]), made[-1].size, table[0].size)
    elif op.role == "loss":
        logits = op.inputs[0].dims
        out["shape"] = (1, count(logits[:-1]), logits[-1].size, 1)
    return out


def _product(op: Product, peers: int) -> dict[str, object]:
    shape = op.shape
    out: dict[str, object] = {"work": "gemm", "shape": shape, "columns": op.columns}
    if not op.matrices:
        keys = op.reads_keys
        return out | {
            "split": "heads",
            "has_weight": False,
            "kv_heads": keys,
            "peers": peers if keys else 1,
        }
    split = _split(op)
    biases = [w for w in op.weights if w.role == "bias"]
    return out | {
        "split": split,
        "gathers": op.gathers,
        "small_parameters": sum(w.elements for w in biases) if split == "row" else 0,
        "backward_read": shape[1] * shape[2] * op.inputs[0].element if biases and op.sums_bias else 0.0,
    }


def _split(op: Product) -> str:
    """How a product with weights is divided, from the dimensions of its first one."""
    left, right, made = next(op.pairs)
    here, there = {d.name for d in left.dims}, {d.name for d in made.dims}
    names = {d.name for d in right.dims}
    depth, free = names & here, names & there - here
    if names - here - there:
        return "expert column" if free & TENSOR_DIMS else "expert row"
    if "vocabulary" in free:
        return "vocabulary"
    if free & TENSOR_DIMS:
        return "column"
    if depth & TENSOR_DIMS:
        return "row"
    return "replicated" if op.quantised else "router"


def _again(op: Op) -> float:
    """The share of an operation that per-operator recompute runs again; of a product by its columns."""
    if isinstance(op, Product) and op.again:
        outputs = [t for _, _, t in op.pairs]
        width = {t.name: t.elements for t in outputs}
        return sum(width[name] for name in op.again) / sum(width.values())
    return 1.0 if op.again else 0.0


def _saved(keep: Keep, op: Op, made: Mapping[str, Op]) -> Saved:
    """A tensor that stands from forward to backward; its flags from who makes it, where the graph does not say."""
    tensor = keep.tensor
    maker = made.get(tensor.name)
    inside = maker is not None and "core_attn" in maker.modules and "core_attn" in op.modules
    again = maker is not None and tensor.name in maker.again and tensor.role != "mask"
    return Saved(
        name=keep.name or tensor.name,
        bytes=keep.bytes,
        region=region(tensor.dims, keep.whole),
        category="logits" if tensor.role == "logits" else "activations",
        droppable=inside if keep.droppable is None else keep.droppable,
        cheap=again if keep.cheap is None else keep.cheap,
        idle=keep.idle,
        role=keep.role,
        of_experts=any(d.name in ("copies", "expert_rows") for d in tensor.dims),
    )
