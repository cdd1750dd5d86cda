"""As many layers from one input as need least memory (`recompute_layers = "auto"`).

With n layers from one input, one input of n stands for every microbatch in flight, and of one group all that its backwards read:

    k (L / n) A_in + n A_int,  least for n = sqrt(k L A_in / A_int)

(Chen et al., arXiv 1604.06174; Narayanan et al., arXiv 2104.04473, section 3.5).  Layers are whole, ranks differ and stages hold other
things too, so every n is counted, in the tensors that a program of it has, and the fullest rank decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from simulator.lowering.layers.recompute import AUTOMATIC
from simulator.lowering.memory.remember import largest_mark, resident_tensors, saved_by
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.state import State
from simulator.program.program import Tensor

__all__ = ["bytes_of", "with_groups"]


def with_groups(resolved: ResolvedPlan, begun: Callable[[ResolvedPlan], State]) -> ResolvedPlan:
    """Return the plan with a number of layers where it leaves that to memory; the fewest of those that need least.

    Args:
        begun: returns what lowering begins with.
    """
    if resolved.recomputes.layers != AUTOMATIC:
        return resolved
    most = max(chunk.layers for chunk in begun(resolved).chunks)
    plans = [replace(resolved, recomputes=replace(resolved.recomputes, layers=n)) for n in range(1, most + 1)]
    return min(plans, key=lambda plan: _fullest(begun(plan)))


def _fullest(state: State) -> float:
    """Bytes of the fullest rank in its fullest action: what stands in any case, tensors of microbatches in flight, temporaries."""
    order, chunks, costs = state.order, state.chunks, state.costs
    saved = np.array([bytes_of(saved_by(state, costs, chunk)) for chunk in chunks])
    ways = (("forward", [chunk.kinds for chunk in chunks]), ("backward", [chunk.backward for chunk in chunks]))
    marks = np.array([[bytes_of(largest_mark(state, costs, kinds, way)) for kinds in group] for way, group in ways])
    starts, frees = order.kind == 0, order.completes
    size = saved[order.chunk] * order.weight
    after = np.cumsum(size * starts - size * frees)  # of all ranks, one behind the other; each ends with nothing
    level = after + size * frees + marks[(~starts).astype(np.int64), order.chunk]
    stands = np.array([bytes_of(tensors) for tensors in resident_tensors(state)])
    return float((stands + np.maximum.reduceat(level, order.rank_offsets[:-1])).max())


def bytes_of(tensors: Iterable[Tensor]) -> float:
    """Return the bytes of tensors, without what the allocator loses between them."""
    return sum(tensor.bytes for tensor in tensors if tensor.category != "fragmentation")
