"""What runs again where a layer keeps named values only, as a compiler works it out.

A traced program keeps the layer's input and the values that its policy names.  Before the backward pass it makes again what that
pass reads, and what this takes; of the repeated forward everything else falls away as dead code.  So the last product of a layer,
which only a sum reads, does not run again even where nothing is kept.  The operators of a layer are taken as a chain, with the
residual stream beside it:

    product, norm, activation, softmax    their backward reads what they read forward
    attention kernels                     and what they returned
    sums, rotations, masks                neither

Source: jax.checkpoint (jax.ad_checkpoint) and XLA's dead code elimination; the kernels of a profiled step of MaxText
(MaxText/configs/a3/llama_2_70b/bf16/pgle) hold neither the last product nor the saved ones a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.workload.graph import Dim, Product
from simulator.workload.operator import LayerPart, Operator

__all__ = ["KeptValue", "kept_values", "repeated"]

_PLACES = ("projection", "mlp_up", "mlp_down")
"""Values named after the role of the operator that makes them."""


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A value that is kept: its name, its bytes undivided, the dimensions by which it is divided, and whether it is of experts' rows."""

    name: str
    bytes: float
    dims: tuple[Dim, ...]
    of_experts: bool = False


def repeated(part: LayerPart, saves: tuple[str, ...]) -> set[int]:
    """Return the numbers of the operators that run again before the backward of a layer."""
    operators, kept = part.operators, _kept(part, saves)
    again: set[int] = set()
    stream_read = False  # whether a sum further on runs again, which reads the residual stream
    for i in reversed(range(len(operators))):
        o = operators[i]
        after = operators[i + 1] if i + 1 < len(operators) else None
        needed = o.work == "attention" or (after is not None and (_reads(after) or i + 1 in again))
        needed |= _is_sum(o) and stream_read
        if needed and i not in kept:
            again.add(i)
            stream_read |= _is_sum(o)
    return again


def kept_values(part: LayerPart, saves: tuple[str, ...], element: float) -> list[KeptValue]:
    """Return what is kept beside the layer's input; `element`: bytes of an activation."""
    out = []
    for i in sorted(_kept(part, saves)):
        o = part.operators[i]
        after = part.operators[i + 1] if i + 1 < len(part.operators) else None
        if after is not None and is_core(after) and not is_core(o):
            read = [s for other in part.operators for s in other.saved if s.role == "operand"]
            out += [KeptValue(s.name, s.bytes, s.dims) for s in read]
        elif o.work == "gemm":
            experts = isinstance(o.op, Product) and o.op.of_experts
            made = float(sum(t.elements for t in o.op.outputs)) * element
            out.append(KeptValue(f"{o.label} output", made, o.op.outputs[0].dims, experts))
        elif o.work == "attention":
            sequences, heads, length, width = o.shape
            out.append(
                KeptValue(
                    f"{o.label} output", float(sequences) * heads * length * width * element, o.op.outputs[0].dims
                )
            )
            out += [KeptValue(s.name, s.bytes, s.dims) for s in o.saved if s.role == "statistics"]
        else:
            out.append(KeptValue(f"{o.label} output", o.written, o.op.outputs[0].dims))
    return out


def _kept(part: LayerPart, saves: tuple[str, ...]) -> set[int]:
    """Numbers of the operators whose outputs are kept."""
    operators = part.operators
    core = [i for i, o in enumerate(operators) if is_core(o)]
    out = set()
    for name in saves:
        if name == "products":
            out |= {i for i, o in enumerate(operators) if o.work == "gemm"}
        elif name in _PLACES:
            out |= {i for i, o in enumerate(operators) if o.role == name}
        elif core and name == "context":
            out.add(max(core))
        elif core and min(core) > 0:
            out.add(min(core) - 1)
    return out


def is_core(o: Operator) -> bool:
    """Return whether an operator belongs to the core of attention."""
    return "core_attn" in o.modules


def _is_sum(o: Operator) -> bool:
    return o.role == "residual"


def _reads(o: Operator) -> bool:
    """Whether the backward of an operator reads what the operator read forward."""
    return o.work in ("gemm", "attention") or (bool(o.saved) and not _is_sum(o))
