"""Wave-synchronous parallelism: pipelines change their own weights after every minibatch, and push what a whole wave of these changed.

    a worker     minibatches of wave c | of wave c + 1 ...         each changes the worker's own weights
    wires                              [push c, pull]              once a wave, whatever its length
    waits for it                                    |              the last minibatch of wave c + 1 + D, and for that of all other workers

A wave is a step.  With m minibatches in it and n under way in a pipeline, minibatch (c + 1 + D) m + n - 1 (from 0) is the first that must
see wave c of every worker.  So the weights of a minibatch may lack the changes of (D + 1) m + n - 2 minibatches before it, which with
m = n = s_local + 1 is the paper's s_global = (D + 1) (s_local + 1) + s_local - 1.

Servers add what they get to their weights; the optimizer's states are the workers' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms
from simulator.workload.optimizers.base import OptimizerCost

__all__ = ["WaveSynchronous"]


class WaveSynchronous(GradientExchange):
    """A worker may be D waves ahead of the slowest (`exchange_staleness`; left out: 0)."""

    name = "wave_synchronous"
    aliases = ("wsp",)
    source = "Park et al., HetPipe, ATC 2020, arXiv:2005.14038, section 5 (the bound from memory, derived above)"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_servers": 0, "exchange_staleness": 0}
    whole = True
    algorithm = "parameter_server"
    stale = True
    waves = True
    unsaid = "what changes of older weights cost in steps to an accuracy, and the pass over a GPU's memory that adds what was pulled"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return one kind, in which nobody adds gradients."""
        return (StepKind("wave", adds=False),)

    def state(self, part: Part, terms: Terms) -> float:
        """Return the bytes of what the wave has changed so far."""
        return terms.updated * part.weights

    def update(self, kind: StepKind, cost: OptimizerCost, terms: Terms) -> OptimizerCost:
        """Return what the optimizer moves, and the change added to those of the wave: read and written."""
        read, written = cost.listed
        listed = (read + terms.updated, written + terms.updated) if read + written else cost.listed
        return replace(cost, read=cost.read + terms.updated, written=cost.written + terms.updated, listed=listed)
