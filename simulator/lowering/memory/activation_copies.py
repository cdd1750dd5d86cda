"""Activations that wait in host memory between forward and backward, layer by layer.

    compute     F0 | F1 | F2 | ...            ... B2 | B1 | B0
    copy         to_host 0 | to_host 1 ...
    copy back                                 to_device 1 | to_device 0

Two layers' activations of a rank may be under way in each direction (a double buffer): a forward of an offloaded layer waits until
the copy of the one two before it has ended, and a copy back starts when the backward of the one two before it has.  A copy that is
slower than the layers beside it therefore holds the compute up.

Source: Transformer Engine's offload of layers (double buffering; one layer's copy beside the next layer's compute).
"""

from __future__ import annotations

import numpy as np

from simulator.errors import PlanError
from simulator.lowering.memory.offload import COPY_BACK_LANE, COPY_LANE, add_copies, copy_link
from simulator.lowering.steps.assign import classes_of
from simulator.lowering.steps.cut import offloaded
from simulator.lowering.steps.state import State
from simulator.program.program import Tensor
from simulator.program.ragged import turns_before

__all__ = ["activations_on_host", "add_activation_copies"]

BUFFERS = 2
"""Layers that may stand on the GPU because their copy has not ended."""


def add_activation_copies(state: State) -> None:
    """Add the copies of the layers that the plan offloads, and what waits for them.

    Raises:
        PlanError: more layers than any chunk has, or actions that are not one whole microbatch.
    """
    resolved, order = state.resolved, state.order
    if not resolved.activation_offload:
        return
    _check(state)
    forward, backward = _layers(state, order.kind == 0), _layers(state, (order.kind == 1) | (order.kind == 2))
    frees = _layers(state, order.completes)
    held = _effects(state)
    links = {
        (what, kind): copy_link(state, what, f"activations of {kind}", size, resolved.precision.compute)
        for what in ("to_host", "to_device")
        for kind, (_, size) in held.items()
    }
    kinds = list(held)

    def column(layers: np.ndarray, what: str) -> np.ndarray:
        of_kind: np.ndarray = np.array([links[(what, kind)] for kind in kinds], np.int64)
        return of_kind.take(layers[:, 2])

    effect = np.array([held[kind][0] for kind in kinds], np.int64)
    f_rank, b_rank = state.pattern.rank[forward[:, 0]], state.pattern.rank[backward[:, 0]]
    out = add_copies(state, column(forward, "to_host"), f_rank, COPY_LANE, forward[:, 1], issued=forward[:, 1])
    slow = turns_before(f_rank, BUFFERS)
    state.wait(forward[slow >= 0, 1], out[slow[slow >= 0]])
    state.touch("start", forward[:, 1], effect[forward[:, 2]])
    state.touch("end", out, effect[forward[:, 2]])
    copied = dict(zip(_keys(state, forward), out.tolist(), strict=True))
    there = np.array([copied[key] for key in _keys(state, backward)], np.int64)
    gate = turns_before(b_rank, BUFFERS)
    issued = np.maximum(forward[there - out[0], 1], np.where(gate >= 0, backward[gate, 1], -1))
    back = add_copies(state, column(backward, "to_device"), b_rank, COPY_BACK_LANE, there, issued)
    state.wait(back[gate >= 0], backward[gate[gate >= 0], 1])
    state.wait(backward[:, 1], back)
    state.touch("start", back, effect[backward[:, 2]])
    state.touch("end", frees[:, 1], effect[frees[:, 2]])


def activations_on_host(state: State, rank: int) -> list[Tensor]:
    """The most that waits in host memory for one GPU of a rank at any place of its order."""
    if not state.resolved.activation_offload:
        return []
    order = state.order
    mine = slice(int(order.rank_offsets[rank]), int(order.rank_offsets[rank + 1]))
    sizes = np.array(
        [sum(t.bytes for kind in _away(state, c) for t in state.costs[kind].saved) for c in _chunks(state)]
    )
    sign = np.where(order.kind[mine] == 0, 1.0, np.where(order.kind[mine] == 2, 0.0, -1.0))
    level = np.cumsum(sign * sizes[order.chunk[mine]])
    most = float(level.max(initial=0.0))
    return [Tensor(name="activations on the host", category="activations", bytes=most)] if most else []


def _chunks(state: State) -> range:
    return range(len(state.chunks))


def _away(state: State, chunk: int) -> list[str]:
    """Kinds of the layers of a chunk that are offloaded."""
    what = state.chunks[chunk]
    return [
        kind for kind, away in zip(what.kinds, offloaded(what, state.resolved.activation_offload), strict=True) if away
    ]


def _check(state: State) -> None:
    order, wanted = state.order, state.resolved.activation_offload
    most = max(chunk.layers for chunk in state.chunks)
    if wanted > most:
        raise PlanError(
            f"activation_offload counts layers of a chunk, but it is {wanted} and the largest chunk has {most}. Nearest: "
            f"activation_offload = {most}."
        )
    if (order.pair >= 0).any() or (order.count != 1).any() or (order.parts != 1).any():
        raise PlanError(
            "activations go to the host layer by layer of one whole microbatch, but schedule "
            f"{state.resolved.schedule.name!r} pairs, joins or slices microbatches. Way out: schedule = 'one_f_one_b'."
        )


def _effects(state: State) -> dict[str, tuple[int, float]]:
    """Per kind of layer that is offloaded: its saved tensors as a memory effect, and their bytes."""
    kinds = dict.fromkeys(kind for c in _chunks(state) for kind in _away(state, c))
    return {
        kind: (state.effect(state.costs[kind].saved), sum(t.bytes for t in state.costs[kind].saved)) for kind in kinds
    }


def _layers(state: State, wanted: np.ndarray) -> np.ndarray:
    """(action, row, kind, layer) of every offloaded layer in the wanted actions, in the order of rows."""
    kinds = list(_effects(state))
    found = []
    classes, numbers = classes_of(state.chunks)
    class_of = np.array(numbers)[state.order.chunk]
    for number, chunk in enumerate(classes):
        apart = offloaded(chunk, state.resolved.activation_offload)
        for kind in (0, 1, 2, 3):
            word = "forward" if kind == 0 else "backward"
            for variant in range(3):
                actions = np.flatnonzero(
                    wanted & (class_of == number) & (state.order.kind == kind) & (state.structure.variant == variant)
                )
                if len(actions):
                    places = _places(state.cuts[(number, word, variant)].pieces, apart, word)
                    for layer, place in places:
                        what = np.full(len(actions), kinds.index(chunk.kinds[layer]))
                        rows = state.first_row[actions] + place
                        found.append(np.stack([actions, rows, what, np.full(len(actions), layer)], axis=1))
    table: np.ndarray = np.concatenate(found) if found else np.zeros((0, 4), np.int64)
    in_order: np.ndarray = table[np.argsort(table[:, 1], kind="stable")]
    return in_order


def _places(pieces: tuple[tuple[str, ...], ...], apart: list[bool], word: str) -> list[tuple[int, int]]:
    """(layer, segment) of every layer that is offloaded."""
    order = range(len(apart)) if word == "forward" else range(len(apart) - 1, -1, -1)
    segment = [place for place, piece in enumerate(pieces) for _ in piece]
    return [(layer, place) for layer, place in zip(order, segment, strict=True) if apart[layer]]


def _keys(state: State, layers: np.ndarray) -> list[tuple[int, int, int]]:
    """(chunk, microbatch, layer) of each."""
    action = layers[:, 0]
    chunk, microbatch = state.order.chunk[action].tolist(), state.order.microbatch[action].tolist()
    return list(zip(chunk, microbatch, layers[:, 3].tolist(), strict=True))
