"""Flat copies of gradients that an update makes on its way, where a code's optimizer works on flat tensors (DeepSpeed's ZeRO)."""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.lowering.steps.parameters import Held
from simulator.lowering.steps.state import State
from simulator.workload.optimizers import OPTIMIZERS

__all__ = ["FlatCopies", "flat_copies"]


class FlatCopies(NamedTuple):
    """Bytes of the joined gradients, of their copy as wide as the updated weights, of what the update makes of it on its way, and of
    gradients that were dropped before they are copied, and before they are used."""

    joined: float = 0.0
    wide: float = 0.0
    results: float = 0.0
    dropped: float = 0.0
    gone: float = 0.0

    @property
    def stand(self) -> float:
        """What the copies take, less what is gone by then."""
        used = (self.wide or self.joined) + self.results
        return max(0.0, self.joined + self.wide - self.dropped, used - self.gone)


def flat_copies(state: State, held: Held) -> FlatCopies:
    """Return what an update makes of a rank's trained weights; nothing where gradients are in fp32 and updated in place.

    DeepSpeed joins the gradients of its share and casts them to fp32 (runtime/zero/stage_1_and_2.py, step, where the gradients of all
    other weights are dropped first), under ZeRO-3 those of a sub-group after the other (runtime/zero/stage3.py,
    _prepare_fp32_grad_for_sub_group); without ZeRO fp32 copies of all are made, then joined (runtime/fp16/fused_optimizer.py).
    """
    resolved, framework = state.resolved, state.resolved.framework
    if not framework.flattens_gradients or resolved.gradient_bytes > resolved.precision.element or resolved.on_servers:
        return FlatCopies()
    numbers, stage = state.workload.numbers, resolved.zero_stage
    updated, sharded = 1.0 - resolved.optimizer_offload, held.sharded(resolved)
    width = 4.0 if numbers.master_weights else float(numbers.element)
    results = OPTIMIZERS.get(state.workload.optimizer).looped_results * width
    kept = resolved.gradient_bytes * (sharded if stage == 2 else held.all) if stage < 3 else 0.0
    if not (stage or resolved.replicas == 1):
        count = held.all * updated
        return FlatCopies(4.0 * count, 4.0 * count, results * count, gone=kept)
    count = sharded * updated
    if stage == 3:
        count = min(count, framework.sub_group_size or math.inf)
    others = resolved.gradient_bytes * (held.all - sharded) if stage == 1 else 0.0
    wide = width if numbers.master_weights else 0.0  # of one format they are one
    return FlatCopies(resolved.gradient_bytes * count, wide * count, results * count, others, kept)
