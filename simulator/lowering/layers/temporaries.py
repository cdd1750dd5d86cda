"""What a layer's backward pass holds beside what was saved for it: gradients of activations on their way, operation by operation.

The operations of a layer run backward one by one.  While one runs there stand the gradient of what it made, those of what it read, and
those that wait for an operation further on (the residual stream's); when it has run, the gradient of what it made goes, and so does what
was saved for it.  The temporaries are the most that this comes to, above all that was saved.

    sums                 hand the gradient of their output on: both operands' are the same tensor
    products             their output's gradient gathered, their input's whole before it is scattered, and, where the product does not add
                         it into its buffer, the weight's
    norms                in plain operations: three fp32 numbers per element
    softmax, weights     of experts' rows, in plain operations: two, three fp32 numbers per element, in place of the gradients of what
                         they made and read
    what runs in turns   what one turn made, which it makes again
    fused attention      the gradient of queries is added up in fp32 (Dao-AILab/flash-attention csrc/flash_attn/flash_api.cpp: dq_accum)

Weights' gradients that stay, each from the operation that makes it to the end of the layer, stand beside.

Source: the order of autograd, as recordings of eager codes show it (tests/conformance/test_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.lowering.layers.holdings import trained_by
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.ring_scores import goes_round
from simulator.units import FP32
from simulator.workload.graph import Attention, Lookup, Product, Tensor
from simulator.workload.operator import LayerPart, Operator

__all__ = ["backward_temporaries", "passed_on", "scratch"]

_NO_GRADIENT = ("mask", "statistics")
_PLAIN_NORM = 3.0
_WIDE = {"softmax": 2.0, "row weights": 3.0}
"""Numbers in fp32 per element."""


def backward_temporaries(
    ctx: LayerContext, part: LayerPart, stream: float, plain_norm: bool, stay: bool = False
) -> tuple[float, float]:
    """Return the most that stands beside what was saved [B]: temporaries, and weights' gradients that are there by then.

    Args:
        stream: bytes of the gradient that arrives, and of the one that leaves.
        plain_norm: whether norms run as plain operations.
        stay: whether weights' gradients stay until the layer has run; else what becomes of them is counted elsewhere.
    """
    gradients = _Gradients()
    last = next((o for o in reversed(part.operators) if o.op.outputs), None)
    if last is None:
        return stream, 0.0
    gradients.add(last.op.outputs[0].name, stream)
    most, there = (stream, 0.0), 0.0
    remade = {t.name for o in part.operators if o.op.remade for t in o.op.outputs}
    for o in reversed(part.operators):
        made = [t.name for t in o.op.outputs if gradients.has(t.name)]
        if not made:
            continue
        if passed_on(ctx, o):
            gradients.alias(made[0], (t.name for t in o.op.inputs))
            gradients.freed += _saved(ctx, o)
            continue
        given = () if isinstance(o.op, Lookup) else o.sources
        read = {t.name: t.standing / ctx.ways(t.dims) for t in given if t.role not in _NO_GRADIENT}
        new = sum(read.values())
        if o.role == "norm" and plain_norm:
            new = _PLAIN_NORM * FP32 * sum(_elements(ctx, t) for t in o.sources)
        elif o.role in _WIDE and not (o.role == "softmax" and ctx.style.fused_softmax):
            out = o.op.outputs[0]
            new = max(new, _WIDE[o.role] * FP32 * _elements(ctx, out) - out.bytes / ctx.ways(out.dims))
        there += trained_by(ctx, o) * ctx.e if stay else 0.0
        again = sum(
            t.standing / ctx.ways(t.dims) for t in (*o.sources, *o.op.outputs) if t.turns > 1 or t.name in remade
        )
        most = max(most, (gradients.level + new + again + scratch(ctx, o, stay), there), key=sum)
        gradients.drop(made)
        gradients.freed += _saved(ctx, o)
        for name, size in read.items():
            gradients.add(name, size)
    temporaries, weights = most
    return max(0.0, temporaries), weights + min(0.0, temporaries)  # what was saved goes as gradients come


class _Gradients:
    """Gradients by the names of their tensors; several names may mean one tensor."""

    def __init__(self) -> None:
        self.freed = 0.0
        """Bytes that were saved and are gone."""
        self._size: list[float] = []
        self._of: dict[str, int] = {}

    @property
    def level(self) -> float:
        """Bytes that stand, less those that are gone."""
        return sum(self._size[number] for number in set(self._of.values())) - self.freed

    def has(self, name: str) -> bool:
        return name in self._of

    def add(self, name: str, size: float) -> None:
        """Note a gradient; one that is there already is added to."""
        if name not in self._of:
            self._of[name] = len(self._size)
            self._size.append(size)

    def alias(self, name: str, others: Iterable[str]) -> None:
        """Let what a sum read have the gradient of what it made."""
        number = self._of.pop(name)
        for other in others:
            self._of.setdefault(other, number)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._of.pop(name)


def _saved(ctx: LayerContext, o: Operator) -> float:
    return sum(s.bytes / ctx.ways(s.dims, s.joined) for s in o.saved if not (s.idle or s.gathered))


def _elements(ctx: LayerContext, tensor: Tensor) -> float:
    return float(tensor.elements) / ctx.ways(tensor.dims)


def passed_on(ctx: LayerContext, o: Operator) -> bool:
    """Whether an operation hands the gradient of what it made on to what it read."""
    return o.role == "residual" and not ctx.style.dropout


def scratch(ctx: LayerContext, o: Operator, stay: bool = False) -> float:
    """Bytes that an operation's backward needs for itself; but for weights' gradients that `stay`."""
    op = o.op
    if isinstance(op, Product):
        d = ctx.division(o)
        b, m, n, k = d.shape
        one_axis = len(ctx.layout.tensor) <= 1  # on meshes of several `gathered_bytes` has what is put together
        size = b * m * n * ctx.e if d.around.gathers_back and one_axis else 0.0
        size += b * m * k * ctx.e if d.around.gathers and one_axis else 0.0
        if goes_round(ctx, o, op):
            size += b * n * k * ctx.e
        added = stay or ctx.style.fused_wgrad_accumulation
        if op.frozen:  # of its weights a wide copy stands, where they are narrow
            return size + n * k * ctx.e * (op.matrices[0].element < 1)
        return size + (n * k * ctx.e if o.has_weight and not added else 0.0)
    if isinstance(op, Attention):
        return FP32 * _elements(ctx, o.sources[0])
    return 0.0
