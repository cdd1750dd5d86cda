"""Measured kernels that only move data: copies, elementwise operations, norms, softmax, casts, optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.costs.memory_bound import memory_bound_seconds, memory_bound_sigma
from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
from simulator.hardware.gpu import Gpu
from simulator.importers.table.row_framework import row_precision
from simulator.importers.table.rows import CannotPlace, Row, count, number, text
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.precision import precision_named

__all__ = ["STREAMS", "stream_seconds"]

_LARGE = 2.0**30
"""Bytes of a copy whose table gives a rate and no size."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """What a kernel moves: tensors of the row's m x n read and written forward and backward, and how it reads them."""

    forward: float
    backward: float = 0.0
    access: str = ""
    backward_access: str = ""


_LAYER = {"access": "layer", "backward_access": "layer backward"}
STREAMS = {
    "copy": _Stream(2),
    "triad": _Stream(3),
    "add": _Stream(3, 2),
    "relu": _Stream(2, 3),
    "gelu": _Stream(2, 3),
    "silu": _Stream(2, 3),
    "swiglu": _Stream(3, 5),
    "layer_norm": _Stream(2, 3, **_LAYER),
    "rms_norm": _Stream(2, 3, **_LAYER),
    "softmax": _Stream(2, 3, "layer", "layer"),
    "permute": _Stream(2, 2, "gather", "gather"),
    "quantize": _Stream(1, 0, "cast"),
    "adamw": _Stream(7),
}
"""By op: a norm's backward pass reads its input and the gradient; swiglu reads two tensors of the size of its output; quantize
writes `out_dtype`, once more where its notes say row-wise and column-wise; adamw reads parameter, gradient and two moments."""


def stream_seconds(row: Row, gpu: Gpu) -> tuple[float, float, float, tuple[str, ...]]:
    """Return (seconds, bytes moved, sigma, what was assumed) of a row whose op is one of `STREAMS`.

    Raises:
        CannotPlace: sizes are missing, or the direction is none that the kernel has.
    """
    op, direction = text(row, "op"), text(row, "direction").lower() or "fwd"
    stream = STREAMS[op]
    if not direction.startswith(("fwd", "bwd", "forward", "backward")) or (
        direction.startswith("b") and not stream.backward
    ):
        raise CannotPlace(f"direction {direction[:20]!r} of {op}")
    parts = [(stream.forward, stream.access)] if direction.startswith("f") else []
    if direction.startswith("b") or "+" in direction:
        parts.append((stream.backward, stream.backward_access))
    sizes, assumed = [count(row, name) for name in ("m", "n")], list[str]()
    if None in sizes and number(row, "gbps") is None:
        raise CannotPlace("the row gives no m or n", counts=False)
    precision, said = row_precision({"precision": text(row, "dtype")})
    element = float(BYTES_PER_ELEMENT[precision_named(precision).compute])
    tensor = element * (count(row, "batch") or 1) * float(sizes[0] or 0) * float(sizes[1] or 0)
    if not tensor:
        tensor, assumed = _LARGE, ["a kernel of more than a gigabyte"]
    moved = [tensor * passes for passes, _ in parts]
    if op == "quantize":
        narrow = text(row, "out_dtype").lower()
        copies = 2.0 if "column" in text(row, "notes").lower() else 1.0
        moved = [tensor + tensor / element * copies * (0.5 if "fp4" in narrow else 1.0)]
    numbers = load_memory_bound_coefficients(gpu)
    seconds = memory_bound_seconds(moved, [0.0] * len(moved), gpu, numbers, [access for _, access in parts]).sum()
    return float(seconds), sum(moved), memory_bound_sigma(gpu, numbers), (*said, *assumed)
