"""Flat copies of gradients that an update makes on its way, where a code's optimizer works on flat tensors (DeepSpeed's ZeRO)."""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.lowering.steps.parameters import Held
from simulator.lowering.steps.state import State

__all__ = ["FlatCopies", "flat_copies"]


class FlatCopies(NamedTuple):
    """Bytes of the joined gradients, of their copy as wide as the updated weights, and of gradients that were dropped before."""

    joined: float = 0.0
    wide: float = 0.0
    dropped: float = 0.0

    @property
    def stand(self) -> float:
        """What the copies take, less what is gone by then."""
        return max(0.0, self.joined + self.wide - self.dropped)


def flat_copies(state: State, held: Held) -> FlatCopies:
    """Return what an update makes of a rank's trained weights; nothing where gradients are in fp32 and updated in place.

    DeepSpeed joins the gradients of its share and casts them to fp32 (runtime/zero/stage_1_and_2.py, step, where the gradients of all
    other weights are dropped first), under ZeRO-3 those of a sub-group after the other (runtime/zero/stage3.py,
    _prepare_fp32_grad_for_sub_group); without ZeRO fp32 copies of all are made, then joined (runtime/fp16/fused_optimizer.py).
    """
    resolved, framework = state.resolved, state.resolved.framework
    if not framework.flattens_gradients or resolved.gradient_bytes > resolved.precision.element or resolved.on_servers:
        return FlatCopies()
    updated = 1.0 - resolved.optimizer_offload
    if not (resolved.zero_stage or resolved.replicas == 1):
        return FlatCopies(4.0 * held.all * updated, 4.0 * held.all * updated)
    count = held.sharded(resolved) * updated
    if resolved.zero_stage == 3:
        count = min(count, framework.sub_group_size or math.inf)
    others = held.all - held.sharded(resolved) if resolved.zero_stage == 1 else 0.0
    wide = 4.0 if state.workload.numbers.master_weights else 0.0  # of one format they are one
    return FlatCopies(resolved.gradient_bytes * count, wide * count, resolved.gradient_bytes * others)
