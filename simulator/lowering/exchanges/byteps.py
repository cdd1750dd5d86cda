"""BytePS: nodes add up inside, push to spare machines and to each other, whose processors add up, and pull sums; GPUs update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.lowering.exchanges.base import EVERY_STEP, GradientExchange, StepKind, Terms

__all__ = ["BytePs"]


class BytePs(GradientExchange):
    """Gradients through servers in BytePS's optimal shares, each bucket as it is made; the step ends when all sums are back."""

    name = "byteps"
    source = "Jiang et al., A Unified Architecture for Accelerating Distributed DNN Training, OSDI 2020, section 4"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_servers": 0}
    whole = True
    algorithm = "byteps"
    unsaid = (
        "copies between GPUs and their host's memory, and connections of servers, beyond what cards and memory carry"
    )

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return one kind."""
        return (EVERY_STEP,)
