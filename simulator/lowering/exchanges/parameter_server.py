"""Parameter servers: workers push gradients layer by layer, servers add them up and update, workers pull the weights back.

    worker    backward of layers 3 2 1 | forward of layers 1 2 3        no barrier: a layer's forward waits for its own weights
    wires              3 2 1 pushed, updated, pulled

States of the optimizer live on the servers, and so does its work, in their memory.  What comes back is as wide as what was pushed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.lowering.exchanges.base import EVERY_STEP, GradientExchange, StepKind, Terms

__all__ = ["ParameterServer"]


class ParameterServer(GradientExchange):
    """Synchronous: servers update when all workers have pushed."""

    name = "parameter_server"
    aliases = ("ps",)
    source = "Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_servers": 0, "exchange_priority": False}
    whole = True
    algorithm = "parameter_server"
    on_servers = True
    optimizers = ("adam", "adam_fused", "sgd", "lion")
    unsaid = "what the servers' own memory holds, and their threads beside memory traffic"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return one kind."""
        return (EVERY_STEP,)
