"""PowerSGD: of every gradient matrix M (n x m) two factors of rank r, P (n x r) and Q (m x r), after some dense steps.

    M = gradient + left out | P = M Q, all_reduce P | P orthogonal | Q = M^T P, all_reduce Q | gradient = P Q^T, left out = M - P Q^T

Sent: r (n + m) numbers of a matrix in two all_reduces, in place of n m; vectors, and matrices that would not shrink to half, as they are.
It follows the backward: the paper's code compresses when all gradients are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.lowering.exchanges.base import (
    GradientExchange,
    Part,
    StepKind,
    Terms,
    compressed_steps,
    kernel,
    send,
)
from simulator.lowering.layers.rows import Rows
from simulator.units import FP32

__all__ = ["PowerSgd"]

_LEAST = 2.0
"""How many times smaller a matrix must become (epfml/powersgd and torch's powerSGD_hook.py: min_compression_rate)."""


class PowerSgd(GradientExchange):
    """One power iteration a step from the last step's Q, with error feedback."""

    name = "power_sgd"
    source = "Vogels et al., PowerSGD, arXiv 1905.13727, algorithms 1 and 2; pytorch/pytorch powerSGD_hook.py"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_rank": None, "exchange_warmup": 0.0}
    whole = True
    by_matrix = True
    unsaid = "what gradients of low rank cost in steps to an accuracy"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """See `compressed_steps`."""
        return compressed_steps(terms.warmup)

    def before(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """See `GradientExchange.before`."""
        r = terms.rank
        shrinks = [(many, n, m) for many, n, m in part.matrices if n * m > _LEAST * r * (n + m)]
        count = sum(many for many, _, _ in shrinks)
        inside = sum(many * n * m for many, n, m in shrinks)
        left = r * sum(many * n for many, n, _ in shrinks)
        right = r * sum(many * m for many, _, m in shrinks)
        if part.weights > inside:
            send(rows, "whole gradients", part, "all_reduce", terms.gradient * (part.weights - inside), "fp32")
        if not shrinks:
            return
        share, thin = inside / part.weights, left / part.weights
        kernel(rows, "add what was left out", part, (FP32 + terms.gradient) * share, FP32 * share, count)
        kernel(rows, "M Q", part, FP32 * share, FP32 * thin, count)
        send(rows, "P", part, "all_reduce", FP32 * left, "fp32")
        kernel(rows, "P orthogonal", part, (r + 1) * FP32 * thin, (r + 1) / 2 * FP32 * thin, r * count)
        kernel(rows, "M^T P", part, FP32 * share, FP32 * right / part.weights, count)
        send(rows, "Q", part, "all_reduce", FP32 * right, "fp32")
        kernel(rows, "P Q^T", part, FP32 * thin, terms.gradient * share, count)
        kernel(rows, "what is left out", part, (FP32 + terms.gradient) * share, FP32 * share, count)

    def state(self, part: Part, terms: Terms) -> float:
        """Return the bytes of what was left out."""
        return FP32 * part.weights
