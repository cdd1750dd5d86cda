"""Gradients of all replicas, in every step: all_reduce, or reduce_scatter where states are sharded."""

from __future__ import annotations

from simulator.lowering.exchanges.base import EVERY_STEP, GradientExchange, StepKind, Terms

__all__ = ["AllReduce"]


class AllReduce(GradientExchange):
    """Synchronous data parallelism as DistributedDataParallel, ZeRO and FSDP have it."""

    name = "all_reduce"
    aliases = ("ddp",)
    usual = True
    source = "Li et al., arXiv 2006.15704; Rajbhandari et al., arXiv 1910.02054"

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return one kind."""
        return (EVERY_STEP,)
