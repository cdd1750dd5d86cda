"""One process for all GPUs of a node: torch's DataParallel, in which GPU 0 has what all others need.

    GPU 0     weights and inputs go | forward | outputs come | loss of all | gradients go | backward | sum comes | update
    others    come                  | forward | go           | wait        | come         | backward | goes      | wait

GPU 0 does all that any other does, and more, so that a step is as long as its own: figures, memory among them, are of GPU 0.  What
precedes the forward stands behind the update of the step before.  One thread launches the kernels of all GPUs, in turn.
"""

from __future__ import annotations

from simulator.lowering.exchanges.base import GradientExchange, Part, StepKind, Terms, send
from simulator.lowering.layers.rows import Rows

__all__ = ["OneProcess"]

_TOKEN = 8.0
"""Bytes of a token's number (torch.int64)."""


class OneProcess(GradientExchange):
    """Broadcast, scatter, gather, scatter and reduce through one GPU's port, none of them beside compute."""

    name = "one_process"
    aliases = ("data_parallel",)
    source = "pytorch/pytorch torch/nn/parallel/data_parallel.py, replicate.py, scatter_gather.py and comm.py"
    whole = True
    one_process = True
    unsaid = "memory and power of the GPUs beside GPU 0, which keep no optimizer states and no outputs of others"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return one kind."""
        return (StepKind("every step", adds=False, exchanges=True),)

    def before(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """Add up gradients on GPU 0."""
        send(rows, "gradients", part, "reduce", terms.gradient * part.weights, terms.updated_dtype)

    def behind(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """Give everyone the weights, and their part of the next batch."""
        send(rows, "weights", part, "broadcast", terms.updated * part.weights, terms.updated_dtype)
        send(rows, "inputs", part, "scatter", _TOKEN * terms.tokens * part.ranks, "int8")
