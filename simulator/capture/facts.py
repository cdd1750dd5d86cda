"""A tensor as prices see it, without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Facts", "tensors_in"]


@dataclass(frozen=True, slots=True)
class Facts:
    """A tensor: its shape, strides (in elements), number format as we name it, and bytes of an element."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    element: int

    @property
    def bytes(self) -> float:
        """Memory that reading it touches: an expanded dimension is read once."""
        return float(self.element * math.prod(n for n, s in zip(self.shape, self.stride, strict=True) if s))


def tensors_in(value: Any) -> Iterator[Facts]:
    """Yield the tensors of arguments, in order."""
    if isinstance(value, Facts):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from tensors_in(inner)
