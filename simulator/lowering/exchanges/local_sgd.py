"""Local SGD: replicas train on their own for k steps, and then average their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms, kernel, send
from simulator.lowering.layers.rows import Rows

__all__ = ["LocalSgd", "local_steps"]


def local_steps(every: int) -> tuple[StepKind, ...]:
    """Return the steps in which replicas are on their own, and those that end with an exchange.

    >>> [(kind.name, kind.share) for kind in local_steps(4)]
    [('local', 0.75), ('with exchange', 0.25)]
    """
    exchange = StepKind("with exchange", 1.0 / every, adds=False, exchanges=True)
    return (StepKind("local", 1.0 - 1.0 / every, adds=False), exchange) if every > 1 else (exchange,)


class LocalSgd(GradientExchange):
    """An all_reduce of the weights, as wide as the optimizer changes them, behind every k-th update."""

    name = "local_sgd"
    aliases = ("post_local_sgd",)
    source = "Stich, arXiv 1805.09767; Lin et al., arXiv 1808.07217"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_every": None}
    drifts = True
    unsaid = "what replicas that differ for some steps cost in steps to an accuracy"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """See `local_steps`."""
        return local_steps(terms.every)

    def behind(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """See `GradientExchange.behind`."""
        send(rows, "weights", part, "all_reduce", terms.updated * part.weights, terms.updated_dtype)
        if terms.rewritten:
            kernel(rows, "weights for the products", part, terms.updated, terms.rewritten)
