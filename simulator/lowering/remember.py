"""Pass 8: memory: what every row allocates and frees, and what stands through the whole step (design 5b E, J).

Activations of a microbatch stand from the START of its forward to the END of its backward (of W when the backward is split).
Temporaries of a block are a mark above its entry level.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from simulator.lowering.assign import Chunk
from simulator.lowering.expand import LayerCost
from simulator.lowering.instances import layers_of
from simulator.lowering.parameters import rank_held
from simulator.lowering.state import State
from simulator.lowering.update import optimizer_bytes
from simulator.plan.zero import model_states
from simulator.program.program import Tensor

__all__ = ["add_memory"]


def add_memory(state: State) -> None:
    """Give the compute rows their memory effects and the ranks their resident tensors."""
    classes = list(dict.fromkeys(state.chunks))
    class_of = np.array([classes.index(c) for c in state.chunks])[state.order.chunk]
    kind = state.order.kind
    forward, frees = kind == 0, (kind == 1) | (kind == 3)
    cut = bool(state.variant.any())
    for number, chunk in enumerate(classes):
        for scale, costs in enumerate(state.scales):
            mine = (class_of == number) & (state.scale == scale) if len(state.scales) > 1 else class_of == number
            saved = state.effect(_saved(costs, chunk))
            state.touch("start", state.first_row[mine & forward], saved)
            state.touch("end", state.last_row[mine & frees], saved)
            for direction, chosen in (("forward", mine & forward), ("backward", mine & ~forward)):
                for variant in np.unique(state.variant[chosen]) if cut else (0,):
                    actions = np.flatnonzero(chosen & (state.variant == variant) if cut else chosen)
                    groups = state.cuts.get((chunk, direction, int(variant)), ())
                    for place, group in enumerate(groups if len(actions) else ()):
                        mark = state.effect(_mark(costs, group, direction))
                        state.touch("mark", state.first_row[actions] + place, mark)
    state.resident = [_resident(state, rank) for rank in range(state.ranks)]


def _saved(costs: dict[str, LayerCost], chunk: Chunk) -> tuple[Tensor, ...]:
    total: Counter[tuple[str, str]] = Counter()
    for kind in layers_of(chunk, "forward"):
        for tensor in costs[kind].saved:
            total[(tensor.name, tensor.category)] += tensor.bytes  # type: ignore[assignment]
    return tuple(Tensor(name=n, category=c, bytes=float(b)) for (n, c), b in total.items())


def _mark(costs: dict[str, LayerCost], group: tuple[str, ...], direction: str) -> tuple[Tensor, ...]:
    """The largest set of temporaries among the layers of a segment."""
    marks = [getattr(costs[kind], f"{direction}_mark") for kind in dict.fromkeys(group)]
    return max(marks, key=lambda tensors: sum(t.bytes for t in tensors), default=())


def _resident(state: State, rank: int) -> list[Tensor]:
    settled, framework = state.settled, state.settled.framework
    held = rank_held(state, rank)
    weight, gradient, optimizer = (
        float(settled.precision.element),
        float(settled.gradient_bytes),
        optimizer_bytes(state),
    )
    if settled.zero_stage == 3 and framework.shards_in_master_precision and state.workload.numbers.master_weights:
        weight, gradient, optimizer = 4.0, 4.0, optimizer - 4.0
    states, experts = (
        model_states(
            parameters,
            weight=weight,
            gradient=gradient,
            optimizer=optimizer,
            zero_stage=settled.zero_stage,
            replicas=replicas,
            lanes=settled.lanes,
        )
        for parameters, replicas in (
            (held.all - held.experts, settled.replicas),
            (held.experts, settled.expert_replicas),
        )
    )
    versions = int(settled.schedule.weight_versions(settled.shape)[rank]) - 1
    stashed = versions * held.all * float(settled.precision.element)
    # with narrow GEMMs the operand and its transpose (a byte each) stand in place of the 16-bit weight
    out = [
        Tensor(name="weights", category="weights", bytes=states.weights + experts.weights),
        Tensor(name="older versions of the weights", category="weights", bytes=stashed),
        Tensor(name="gradient buffers", category="gradients", bytes=states.gradients + experts.gradients),
        Tensor(
            name="optimizer states",
            category="optimizer_states",
            bytes=states.optimizer_states + experts.optimizer_states,
        ),
        Tensor(name="GEMM workspace", category="workspace", bytes=framework.workspace),
        Tensor(name="driver context and kernels", category="context", bytes=framework.context),
    ]
    groups = sum(size > 1 for _, size in settled.axes)
    if groups:
        out.append(Tensor(name="communicator buffers", category="context", bytes=groups * framework.communicator))
    return [t for t in out if t.bytes]
