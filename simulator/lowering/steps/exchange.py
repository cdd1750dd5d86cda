"""What stands around the optimizer of a rank where replicas exchange more than gradients (`plan.gradient_exchange`)."""

from __future__ import annotations

import functools

from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms
from simulator.lowering.layers.rows import Rows
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.parameters import Held
from simulator.program.program import OperatorTable

__all__ = ["exchange_pieces", "kept_for_exchange"]

Pieces = tuple[tuple[OperatorTable, int], ...]


def exchange_pieces(parts: tuple[Part, ...], resolved: ResolvedPlan) -> tuple[Pieces, Pieces]:
    """Return (operators, how often) before and behind the optimizer, in the plan's kind of step."""
    return _pieces(resolved.exchange, resolved.step_kind, parts, resolved.exchange_terms)


@functools.lru_cache(maxsize=1024)
def _pieces(exchange: GradientExchange, kind: StepKind, parts: tuple[Part, ...], terms: Terms) -> tuple[Pieces, Pieces]:
    """As `exchange_pieces`."""
    before, behind = Rows("exchange before the update"), Rows("exchange behind the update")
    for part in parts if kind.exchanges else ():
        exchange.before(before, kind, part, terms)
        exchange.behind(behind, kind, part, terms)
    first, second = (((rows.table(), 1),) if rows.rows else () for rows in (before, behind))
    return first, second


def kept_for_exchange(held: Held, resolved: ResolvedPlan) -> float:
    """Bytes that a GPU keeps from step to step for its exchange."""
    return sum(resolved.exchange.state(part, resolved.exchange_terms) for part in held.exchanged(resolved))
