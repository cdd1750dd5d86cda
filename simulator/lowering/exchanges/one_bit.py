"""Signs of the momentum in place of gradients (1-bit Adam, 1-bit LAMB): after a dense warm-up every rank sends one bit a weight.

A rank adds its gradient to its momentum, adds what compression left out the last time (worker error), and sends signs, with one scale a
rank, to the owners of the n parts; an owner adds them up, adds its own error (server error, Psi / n) and sends the signs of its sum, with
one scale a part.  The second moment stays as the warm-up left it.  Sent: an all_to_all and an all_gather of Psi / 8 bytes, 1/16 of an
all_reduce in 16 bits.  Nothing of it overlaps the backward: it begins with the whole momentum.

Passes over memory are those of DeepSpeed's code (runtime/comm/nccl.py, compressed_allreduce), one kernel an operation on fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms, compressed_steps, kernel, send
from simulator.lowering.layers.rows import Rows
from simulator.units import FP32
from simulator.workload.optimizers.base import OptimizerCost

__all__ = ["OneBit"]

_F, _B, _P = FP32, 1.0, 0.125
"""Bytes of an fp32 number, of a truth value, and of a packed sign."""
_Pass = tuple[float, float]
_IN_PLACE: _Pass = (_F, _F)
_SIGNS: tuple[_Pass, ...] = (_IN_PLACE, _IN_PLACE, (_F, _B), (_B, _P), (_P, _P))
"""Signs in place, plus 1, as truths, packed, stacked."""
_ERROR: tuple[_Pass, ...] = (
    (2 * _F, _F),  # the error is added
    (_F, 0.0),  # norm, which makes the scale
    _IN_PLACE, _IN_PLACE, (_F, _B), (_B, _F), _IN_PLACE, _IN_PLACE,  # signs as numbers: sign, + 1, bool, float, - 1/2, x 2
    _IN_PLACE, (2 * _F, _F),  # times the scale, and what is left
)  # fmt: skip
_NUMBERS: tuple[_Pass, ...] = ((_P, _B), (_B, _F), _IN_PLACE, _IN_PLACE, _IN_PLACE)
"""Signs unpacked, as numbers: - 1/2, x 2, x scale."""


def _passes(rows: Rows, label: str, part: Part, *passes: _Pass) -> None:
    kernel(rows, label, part, sum(read for read, _ in passes), sum(written for _, written in passes), len(passes))


class OneBit(GradientExchange):
    """1-bit Adam; of 1-bit LAMB all but the fresh second moment that it keeps beside."""

    name = "one_bit"
    aliases = ("onebit", "1bit_adam", "1bit_lamb")
    source = "Tang et al., 1-bit Adam, arXiv 2102.02888, algorithm 1; Li et al., 1-bit LAMB, arXiv 2104.06069"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_warmup": 0.15}  # 23,000 of 152,000 steps of BERT-large
    whole = True
    optimizers = ("adam", "lamb")
    unsaid = "what signs in place of gradients cost in steps to an accuracy"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """See `compressed_steps`."""
        return compressed_steps(terms.warmup)

    def before(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """See `GradientExchange.before`."""
        owned = replace(part, weights=part.weights / part.ranks)
        _passes(rows, "add gradient to momentum", part, _IN_PLACE, (_F + terms.gradient, _F))
        _passes(rows, "sign of momentum, and worker error", part, *_ERROR, *_SIGNS)
        self._send(rows, "signs", part, "all_to_all")
        _passes(rows, "add signs", part, *_NUMBERS, (_F, _F / part.ranks))
        _passes(rows, "sign of sum, and server error", owned, *_ERROR, *_SIGNS[:-1])
        self._send(rows, "signs of sums", part, "all_gather")
        _passes(rows, "momentum of signs", part, *_NUMBERS, _IN_PLACE)

    def _send(self, rows: Rows, label: str, part: Part, collective: str) -> None:
        send(rows, label, part, collective, _P * part.weights, "int8")
        send(rows, "scales", part, "all_gather", _F * part.ranks, "fp32")

    def state(self, part: Part, terms: Terms) -> float:
        """Return the bytes of both errors."""
        return _F * part.weights * (1.0 + 1.0 / part.ranks)

    def update(self, kind: StepKind, cost: OptimizerCost, terms: Terms) -> OptimizerCost:
        """Return the cost without the gradient, and without states that change: the momentum has, the second moment does not."""
        if not kind.exchanges:
            return cost
        return replace(cost, read=cost.read - terms.gradient, written=cost.written - cost.state, listed=(0.0, 0.0))
