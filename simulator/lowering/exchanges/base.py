"""The contract of a gradient exchange: which kinds of steps a run has, and what replicas send around the update in each.

Where replicas add gradients in the usual way (`StepKind.adds`), the pass `reduce` adds these reductions, bucket by bucket; what a
member does beyond that is kernels and collectives before and behind the optimizer, one after the other:

    backward | before (momentum packed, sent, unpacked) | optimizer | behind (weights averaged)

A kind of step is a program of its own, and a prediction is the mean over all kinds.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simulator.lowering.layers.rows import Rows
from simulator.remembered import hashed_once
from simulator.units import FP32
from simulator.workload.optimizers.base import OptimizerCost

__all__ = [
    "EVERY_STEP",
    "GradientExchange",
    "Part",
    "StepKind",
    "Terms",
    "compressed_steps",
    "kernel",
    "send",
    "through_owners",
]


@dataclass(frozen=True, slots=True)
class StepKind:
    """A kind of step.

    Args:
        name: in one word or two.
        share: of all steps; those of all kinds add up to 1.
        adds: whether replicas add their gradients in it, as they are made.
        exchanges: whether anything is exchanged around its update.
    """

    name: str
    share: float = 1.0
    adds: bool = True
    exchanges: bool = False


EVERY_STEP = StepKind("every step")
"""Of a run whose steps are alike."""


def compressed_steps(warmup: float) -> tuple[StepKind, ...]:
    """Return the steps in which something smaller takes the place of gradients, and the dense ones before the first of them.

    >>> [(kind.name, kind.share) for kind in compressed_steps(0.25)]
    [('compressed', 0.75), ('dense', 0.25)]
    """
    dense = (StepKind("dense", warmup),) if warmup else ()
    return (StepKind("compressed", 1.0 - warmup, adds=False, exchanges=True), *dense)


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a plan and its numbers say of an exchange.

    Args:
        every: steps from one exchange to the next.
        warmup: share of the steps before the first compressed one.
        bits: of a number on its way.
        parts: of the weights, exchanged in turn.
        rank: of what stands for a matrix.
        servers: machines without GPUs; 0 = the nodes themselves serve.
        priority: whether of the layers that are ready the one goes first that is needed first.
        staleness: steps that a worker may be ahead of the slowest.
        updated: bytes of the weight that the optimizer changes, `updated_dtype`: its format; `rewritten`: bytes of the copy for the
            products, 0 = there is none.
        gradient: bytes of a gradient.
        tokens: of a microbatch on a GPU.
    """

    every: int = 1
    warmup: float = 0.0
    bits: int = 32
    parts: int = 1
    rank: int = 1
    servers: int = 0
    priority: bool = False
    staleness: float = math.inf
    updated: float = 4.0
    updated_dtype: str = "fp32"
    rewritten: float = 2.0
    gradient: float = 4.0
    tokens: float = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Weights that one group of ranks exchanges.

    Args:
        what: "" or which.
        weights: on a GPU of the group [count].
        group: its mesh axes; `ranks`: how many there are.
        matrices: of these weights (how many alike, rows, columns), where the exchange asks for them (`by_matrix`).
    """

    what: str = ""
    weights: float
    group: tuple[str, ...] = ("dp",)
    ranks: int
    matrices: tuple[tuple[int, int, int], ...] = ()


class GradientExchange(abc.ABC):
    """What replicas exchange, and when.

    `usual`: that of gradients alone, in every step.  `options`: choices of a plan that it takes, each with what it is where it is left
    out, or None where it must be given.  `drifts`: replicas have different weights between exchanges.  `whole`: every replica keeps
    whole states and gradients.  `overlaps`: what is sent behind the update goes beside the next step.  `one_process`: one GPU has what
    all others need, and one thread launches the kernels of all.  `algorithm`: the collective through which gradients are added, with
    servers; "" = the library chooses.  `on_servers`: these keep the optimizer's states and update, and the next forward of a layer
    waits for its weights alone; `stale`: and for no other worker.  `waves`: a replica changes its own weights after every backward, and
    servers add up what a step of its changed.  `by_matrix`: what is sent depends on the shapes of
    matrices.  `optimizers`: those it belongs to; () = all.  `unsaid`: what a
    prediction does not tell of it.
    """

    name: str
    aliases: tuple[str, ...] = ()
    source: str
    options: ClassVar[Mapping[str, float | None]] = {}
    usual: bool = False
    drifts: bool = False
    whole: bool = False
    overlaps: bool = False
    one_process: bool = False
    algorithm: str = ""
    on_servers: bool = False
    stale: bool = False
    waves: bool = False
    by_matrix: bool = False
    optimizers: tuple[str, ...] = ()
    unsaid: str = ""

    @abc.abstractmethod
    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return the kinds of steps, the one with least to send first."""

    def before(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """Add what stands between backward and optimizer in a step of this kind, in which something is exchanged."""
        return

    def behind(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """Add what stands behind the optimizer, as `before`."""
        return

    def state(self, part: Part, terms: Terms) -> float:
        """Return bytes that a GPU keeps from step to step for it."""
        return 0.0

    def update(self, kind: StepKind, cost: OptimizerCost, terms: Terms) -> OptimizerCost:
        """Return what the optimizer moves in a step of this kind, of what it usually does."""
        return cost


def kernel(rows: Rows, label: str, part: Part, read: float, written: float, launches: int = 1) -> None:
    """Add memory-bound kernels.

    Args:
        read, written: bytes per weight of the part, of all launches together.
    """
    rows.moves(
        f"{label}{part.what}",
        "fp32",
        read * part.weights,
        written * part.weights,
        "optimizer",
        flops=part.weights * launches,
        launches=launches,
    )


def send(rows: Rows, label: str, part: Part, collective: str, message: float, dtype: str) -> None:
    """Add a collective of the part's group; `message` as of the column of an operator table [B]."""
    rows.sends(f"{label}{part.what}", collective, message, part.group, dtype, "optimizer")


def through_owners(rows: Rows, label: str, part: Part, bits: int) -> None:
    """Add up numbers of a few bits, which no reduction adds on its way: a rank owns an n-th, gets all ranks' of it, and sends the sum.

    Args:
        bits: of a number both ways; it is packed from fp32 and unpacked to it, a pass each.
    """
    narrow, owned = bits / 8.0, 1.0 / part.ranks
    kernel(rows, f"pack {label}", part, FP32, narrow)
    send(rows, label, part, "all_to_all", narrow * part.weights, "int8")
    kernel(rows, f"add {label}", part, narrow, FP32 * owned)
    kernel(rows, f"pack sums of {label}", part, FP32 * owned, narrow * owned)
    send(rows, f"sums of {label}", part, "all_gather", narrow * part.weights, "int8")
    kernel(rows, f"unpack {label}", part, narrow, FP32)
