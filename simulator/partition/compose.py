"""The layout of a plan: a strategy of tensor parallelism, experts, and sequence parallelism behind them."""

from __future__ import annotations

import functools

from simulator.errors import LayoutError
from simulator.partition.layout import Layout
from simulator.partition.strategies import STRATEGIES
from simulator.partition.strategies.base import TENSOR
from simulator.partition.strategies.experts import EXPERT, EXPERT_ROWS, EXPERT_TENSOR, ROWS, RULES
from simulator.partition.strategies.sequence import TOKENS

__all__ = ["compose"]


@functools.lru_cache(maxsize=256)
def compose(
    strategy: str = "megatron",
    tensor: int = 1,
    sequence_parallel: bool = False,
    expert: int = 1,
    expert_tensor: int = 1,
    imbalance: float = 1.0,
    shape: tuple[int, ...] | None = None,
    pads: bool = False,
) -> Layout:
    """Return a layout; equal arguments give the same one.

    Args:
        strategy: name of a member of `STRATEGIES`.
        tensor, expert, expert_tensor: ranks that split layers, over which experts are dealt out, and that split each expert (1, or
            all of `tensor`).
        sequence_parallel: whether what is left whole is divided by its tokens.
        imbalance: rows of the rank with the most popular experts over the mean of all.
        shape: of the mesh of the `tensor` ranks; None = as the strategy has it.
        pads: whether parts of sequences are padded where `sequence_parallel` does not divide them.

    Raises:
        UnknownNameError: no strategy has this name.
        LayoutError: the strategy needs another shape, or leaves nothing whole that tokens could divide.

    >>> compose("megatron", tensor=8, sequence_parallel=True).mesh[0]
    ('tensor', 8)
    """
    member = STRATEGIES.get(strategy)
    if sequence_parallel and TENSOR not in member.axes:
        raise LayoutError(
            "sequence_parallel divides by tokens what a layout leaves whole on the tensor-parallel ranks, but layout "
            f"{member.name!r} divides all: sequences and widths lie on axes of their own. Way out: sequence_parallel = false."
        )
    mesh = (
        *member.mesh(tensor, shape),
        (EXPERT, expert),
        (EXPERT_TENSOR, expert_tensor),
        (EXPERT_ROWS, tensor // expert_tensor),
    )
    return Layout(
        name=member.name,
        mesh=mesh,
        rules=(*member.rules(), *RULES, *((TOKENS,) if sequence_parallel else ())),
        excess=((ROWS, imbalance),),
        output_stationary=member.output_stationary,
        tensor=member.axes,
        panels=member.panels,
        keeps_gathered=member.keeps_gathered,
        pads=TOKENS.dims if pads and sequence_parallel else frozenset(),
    )
