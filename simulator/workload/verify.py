"""What every layer's graph must keep; what is wrong is said with the operation, the tensor and the dimension."""

from __future__ import annotations

from simulator.errors import GraphError
from simulator.workload.graph import Dim, LayerGraph, Op, Product, Tensor
from simulator.workload.windows import Windowed

__all__ = ["verify"]


def verify(graph: LayerGraph) -> None:
    """Refuse a graph whose tensors do not fit together.

    Raises:
        GraphError: a tensor read before it is made, made twice or read by nobody; dimensions that disagree; a product that sums over a
            dimension that one side lacks; a weight that no operation owns.
    """
    known = {t.name: t for t in graph.inputs}
    for op in graph.ops:
        for tensor in op.inputs:
            if tensor.name not in known:
                raise _error(graph, op, f"reads {tensor.name!r}, which nothing before it makes")
            _same_sizes(graph, op, known[tensor.name], tensor)
        for tensor in op.outputs:
            if tensor.name in known:
                raise _error(graph, op, f"makes {tensor.name!r}, which is made before")
            known[tensor.name] = tensor
        for keep in op.keeps:
            if keep.tensor.name not in known:
                raise _error(graph, op, f"keeps {keep.tensor.name!r}, which nothing before it makes")
            if keep.tensor.turns > 1:
                raise _error(graph, op, f"keeps {keep.tensor.name!r}, of which a part stands at a time")
        _agree(graph, op)
        if isinstance(op, Product):
            _check_product(graph, op)
    _check_ends(graph, known)


def _check_ends(graph: LayerGraph, known: dict[str, Tensor]) -> None:
    """Every tensor and every weight is of use to somebody."""
    read = {t.name for op in graph.ops for t in op.inputs} | {k.tensor.name for op in graph.ops for k in op.keeps}
    for tensor in graph.outputs:
        if tensor.name not in known:
            raise GraphError(f"graph of {graph.kind!r}: its output {tensor.name!r} is made by no operation")
        read.add(tensor.name)
    for op in graph.ops:
        for tensor in op.outputs:
            if tensor.name not in read:
                raise _error(graph, op, f"makes {tensor.name!r}, which nobody reads or keeps")
    owned = [w.name for op in graph.ops for w in op.weights]
    for weight in graph.weights:
        if owned.count(weight.name) != 1:
            times = f"{owned.count(weight.name)} operations own" if owned.count(weight.name) else "no operation reads"
            raise GraphError(f"graph of {graph.kind!r}: {times} weight {weight.name!r}")
    for name in set(owned) - {w.name for w in graph.weights}:
        raise GraphError(f"graph of {graph.kind!r}: weight {name!r} is none of the graph's own")


def _same_sizes(graph: LayerGraph, op: Op, made: Tensor, seen: Tensor) -> None:
    """A tensor is seen with the sizes with which it was made, in the dimensions that it had then."""
    sizes = {d.name: d.size for d in made.dims}
    for dim in seen.dims:
        if sizes.get(dim.name, dim.size) != dim.size:
            raise _error(
                graph, op, f"reads {seen.name!r} with {dim.name} = {dim.size}, but it is made with {sizes[dim.name]}"
            )


def _agree(graph: LayerGraph, op: Op) -> None:
    """Dimensions of one name have one size in all tensors of an operation; of outputs of windows as many rows as their stride leaves."""
    strides = {w.dim: w.stride for w in op.windows} if isinstance(op, Windowed) else {}
    sizes: dict[str, tuple[Dim, Tensor]] = {}
    for tensor in (*op.inputs, *op.outputs):
        for dim in tensor.dims:
            first, other = sizes.setdefault(dim.name, (dim, tensor))
            stride = strides[dim.name] if dim.name in strides and tensor in op.outputs else 1
            if first.size != dim.size * stride:
                behind = f" behind a stride of {stride}" if stride > 1 else ""
                raise _error(
                    graph,
                    op,
                    f"joins {other.name!r} with {dim.name} = {first.size} and {tensor.name!r} with {dim.name} = {dim.size}{behind}",
                )


def _check_product(graph: LayerGraph, op: Product) -> None:
    pairs = list(op.pairs)
    if not pairs or len(pairs) != len(op.outputs):
        raise _error(
            graph, op, f"has {len(op.outputs)} outputs for {len(op.matrices) or len(op.inputs) - 1} right operands"
        )
    if sum(op.kernels) not in (0, len(pairs)):
        raise _error(graph, op, f"shares out {sum(op.kernels)} of its {len(pairs)} products over kernels")
    for left, right, out in pairs:
        sides = [{d.serves or d.name: d for d in t.dims} for t in (left, right, out)]
        of_left, of_right, of_out = sides
        for name in of_left.keys() - of_right.keys() - of_out.keys():
            raise _error(graph, op, f"sums over {name} of {left.name!r}, which {right.name!r} lacks")
        for name in of_right.keys() - of_left.keys() - of_out.keys():
            if right.role != "weight" or name != "experts":
                raise _error(graph, op, f"sums over {name} of {right.name!r}, which {left.name!r} lacks")
        for name in of_out.keys() - of_left.keys() - of_right.keys():
            raise _error(
                graph, op, f"makes {out.name!r} with {name}, which neither {left.name!r} nor {right.name!r} has"
            )
        if not (of_left.keys() & of_right.keys()) - of_out.keys():
            raise _error(graph, op, f"sums over no dimension of {left.name!r} and {right.name!r}")
        for name in of_left.keys() & of_right.keys():
            a, b = of_left[name], of_right[name]
            if a.size != b.size and not (a.serves or b.serves):
                raise _error(
                    graph, op, f"joins {left.name!r} with {name} = {a.size} and {right.name!r} with {name} = {b.size}"
                )


def _error(graph: LayerGraph, op: Op, what: str) -> GraphError:
    return GraphError(f"graph of {graph.kind!r}: operation {op.label!r} {what}")
