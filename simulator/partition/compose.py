"""The layout of a plan: a strategy of tensor parallelism, experts, and sequence parallelism behind them."""

from __future__ import annotations

import functools

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
) -> Layout:
    """Return a layout; equal arguments give the same one.

    Args:
        strategy: name of a member of `STRATEGIES`.
        tensor, expert, expert_tensor: ranks that split layers, over which experts are dealt out, and that split each expert (1, or
            all of `tensor`).
        sequence_parallel: whether what is left whole is divided by its tokens.
        imbalance: rows of the rank with the most popular experts over the mean of all.

    Raises:
        UnknownNameError: no strategy has this name.

    >>> compose("megatron", tensor=8, sequence_parallel=True).mesh[0]
    ('tensor', 8)
    """
    member = STRATEGIES.get(strategy)
    mesh = ((TENSOR, tensor), (EXPERT, expert), (EXPERT_TENSOR, expert_tensor), (EXPERT_ROWS, tensor // expert_tensor))
    return Layout(
        name=member.name,
        mesh=mesh,
        rules=(*member.rules(), *RULES, *((TOKENS,) if sequence_parallel else ())),
        excess=((ROWS, imbalance),),
    )
