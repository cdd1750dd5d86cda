"""DiLoCo: replicas train on their own for k steps; the mean of their changes is the gradient of an outer optimizer (Nesterov momentum)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.lowering.exchanges.base import (
    GradientExchange,
    Part,
    StepKind,
    Terms,
    kernel,
    send,
    through_owners,
)
from simulator.lowering.exchanges.local_sgd import local_steps
from simulator.lowering.layers.rows import Rows
from simulator.units import FP32

__all__ = ["DiLoCo"]


class DiLoCo(GradientExchange):
    """Changes since the last exchange in fp32, bf16, or 8 or 4 bits, which their owners add up in fp32, as Streaming DiLoCo adds 4 bits."""

    name = "diloco"
    source = "Douillard et al., DiLoCo, arXiv 2311.08105, algorithm 1"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_every": 500, "exchange_bits": 32}  # H = 500, fp32
    drifts = True
    unsaid = "what replicas that differ for some steps cost in steps to an accuracy"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """See `local_steps`."""
        return local_steps(terms.every)

    def behind(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """See `GradientExchange.behind`."""
        kernel(rows, "change since the last exchange", part, FP32 + terms.updated, FP32)
        if terms.bits < 16:
            through_owners(rows, "changes", part, terms.bits)
        elif terms.bits == 16:
            kernel(rows, "narrow changes", part, FP32, FP32 / 2)
            send(rows, "changes", part, "all_reduce", FP32 / 2 * part.weights, "bf16")
            kernel(rows, "widen changes", part, FP32 / 2, FP32)
        else:
            send(rows, "changes", part, "all_reduce", FP32 * part.weights, "fp32")
        written = (
            2 * FP32 + terms.updated + terms.rewritten
        )  # momentum and weights of the last exchange; the optimizer's, the products'
        kernel(rows, "outer update", part, 3 * FP32, written)

    def state(self, part: Part, terms: Terms) -> float:
        """Return the bytes of the weights of the last exchange, and of the outer momentum."""
        return 2 * FP32 * part.weights
