"""Number formats of a training run: what weights, gradients and optimizer states are kept in."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import UnknownNameError

__all__ = ["BYTES_PER_ELEMENT", "PRECISIONS", "Precision", "precision_named"]

BYTES_PER_ELEMENT = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of one element of each number format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a run computes and keeps.

    Args:
        name: as users write it.
        compute: dtype of the GEMMs, the weights they read and the activations.
        master_weights: whether an fp32 copy of the weights is kept beside the compute weights.
        loss_scaling: whether gradients are checked for overflow each step (fp16).
    """

    name: str
    compute: str
    master_weights: bool
    loss_scaling: bool

    @property
    def element(self) -> int:
        """Bytes of one weight or activation."""
        return BYTES_PER_ELEMENT[self.compute]


PRECISIONS = {
    "fp32": Precision(name="fp32", compute="fp32", master_weights=False, loss_scaling=False),
    "tf32": Precision(name="tf32", compute="tf32", master_weights=False, loss_scaling=False),
    "fp16": Precision(name="fp16", compute="fp16", master_weights=True, loss_scaling=True),
    "bf16": Precision(name="bf16", compute="bf16", master_weights=True, loss_scaling=False),
}


def precision_named(name: str) -> Precision:
    """Return the precision with this name.

    >>> precision_named("bf16").element
    2
    """
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]
