"""Pass 8: memory: what every row allocates and frees, and what stands through the whole step (design 5b E, J).

Activations of a microbatch stand from the START of its forward to the END of its backward (of W when the backward is split); where
both are cut in units, those of a unit from the START of its forward to the END of its backward.
Temporaries of a block are a mark above its entry level.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.memory.activation_copies import activations_on_host
from simulator.lowering.memory.host_shards import gathered_shard, shard_bytes, shards_on_drives, shards_on_host
from simulator.lowering.memory.offload import device_bytes, host_tensors, nvme_tensors
from simulator.lowering.memory.resident_memory import beside_states
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk, classes_of
from simulator.lowering.steps.cut import BUCKETS, UNBROKEN, UNITS, Cut, offloaded
from simulator.lowering.steps.exchange import kept_for_exchange
from simulator.lowering.steps.parameters import Held, all_alike, group_held, in_full_width, rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.structure import Structure
from simulator.lowering.steps.unit_parts import gradient_made, made_in_turn
from simulator.lowering.steps.update import gradients_dropped, optimizer_bytes, states_kept
from simulator.plan.zero import ModelStates, model_states
from simulator.program.program import Tensor
from simulator.workload.precision import FROZEN_BYTES

__all__ = ["add_memory", "kept_output", "largest_mark", "resident_tensors", "saved_by"]


def add_memory(state: State) -> None:
    """Give the compute rows their memory effects and the ranks their resident tensors."""
    classes, class_of = classes_of(state.chunks)
    found: list[_Stand] = []
    for number, chunk in enumerate(classes):
        for scale, costs in enumerate(state.scales):
            between = _between(state, costs, chunk)
            all_kept = saved_by(state, costs, chunk)
            whole = UNITS not in state.occurring.get((number, True, scale), ())
            loss = tuple(t for t in all_kept if t.category == "logits" and between and whole)
            saved = state.effect(tuple(t for t in all_kept if t not in loss))
            made = state.effect(
                (Tensor(name="gradients between", category="activations", bytes=between),) if between else ()
            )
            marks, pieces = [], []
            for direction, word in enumerate(("forward", "backward")):
                for variant in sorted(state.occurring.get((number, direction > 0, scale), ())):
                    cut = state.cuts[(number, word, variant)]
                    behind = _gathered_behind(state, cut) if variant == UNITS and direction else 0.0
                    held = _kept_at_last(costs, chunk)
                    largest = [largest_mark(state, costs, group, word, behind, held) for group in cut.different]
                    for kinds, less in _halves(between, chunk) if direction else (((0,), 0.0),):
                        effect = [state.effect(_less(tensors, less) if less else tensors) for tensors in largest]
                        marks.append((kinds, variant, tuple([effect[which] for which in cut.which])))
                    if variant == UNITS:
                        kept, of_group = _kept_by(state, costs, chunk, cut.pieces, backward=bool(direction))
                        numbers = {what: state.effect(tensors) for what, tensors in kept.items()}
                        pieces.append((direction, variant, tuple([numbers[what] for what in of_group])))
            found.append(_Stand(number, scale, saved, state.effect(loss), made, tuple(marks), tuple(pieces)))
    state.stand(_stand, class_of, tuple(found))
    resident_tensors(state)
    resolved = state.resolved
    if resolved.optimizer_offload or resolved.activation_offload or resolved.parameter_offload:
        state.host = [_on_host(state, rank) for rank in range(state.ranks)]
        state.drives = [_on_drives(state, rank) for rank in range(state.ranks)]


class _Stand(NamedTuple):
    """Effects of the actions on a kind of chunk at one size of them: what they keep from forward to backward, of that what the loss needs
    (where it goes before the rest), and what a split backward keeps between its halves; by kinds of actions and by direction (0 forward,
    1 backward), each by variant, what stands during each of their segments, and of those cut in units what each keeps, or lets go of it."""

    chunk: int
    scale: int
    saved: int
    loss: int
    between: int
    marks: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...]
    pieces: tuple[tuple[int, int, tuple[int, ...]], ...]


def _stand(rows: Structure, class_of: tuple[int, ...], found: tuple[_Stand, ...]) -> None:
    """Give the compute rows their effects; `class_of`: per chunk: its number among the different ones."""
    of = _actions(rows, class_of)
    edges = ("start", (0,), rows.first_row), ("end", _DONE, rows.last_row)
    for number, scale, saved, loss, between, marks, pieces in found:
        for way, (edge, kinds, row) in enumerate(edges):
            left = tuple([variant for variant in _VARIANTS if (way, variant) not in [piece[:2] for piece in pieces]])
            rows.touch(edge, row[of(number, scale, kinds, left)], saved)
            if loss >= 0:
                rows.touch(edge, row[of(number, scale, (1, 2) if way else kinds, left)], loss)
        if between >= 0:
            rows.touch("start", rows.first_row[of(number, scale, (2,), _VARIANTS)], between)
            rows.touch("end", rows.last_row[of(number, scale, (3,), _VARIANTS)], between)
        for way, variant, effects in pieces:
            edge, kinds, _ = edges[way]
            _touch_segments(rows, edge, of(number, scale, kinds, (variant,)), effects)
        for kinds, variant, effects in marks:
            _touch_segments(rows, "mark", of(number, scale, kinds, (variant,)), effects)


_DONE, _VARIANTS = (1, 3), (UNBROKEN, UNITS, BUCKETS)
"""Kinds of actions behind which nothing of a microbatch is needed any more, and how actions are cut."""


def _actions(
    rows: Structure, class_of: tuple[int, ...]
) -> Callable[[int, int, tuple[int, ...], tuple[int, ...]], np.ndarray]:
    """Return what finds the actions on a class of chunks at one size, of some kinds and cut in some ways."""
    scales = max(1, len(rows.sizes))
    code = ((np.array(class_of, np.int32) * scales)[rows.order.chunk] + rows.scale) * 4 + rows.order.kind
    code = code * len(_VARIANTS) + rows.variant
    ends = np.cumsum(np.bincount(code)).tolist()
    ordered = np.argsort(code, kind="stable")

    def some(number: int, scale: int, kinds: tuple[int, ...], variants: tuple[int, ...]) -> np.ndarray:
        codes = [((number * scales + scale) * 4 + kind) * len(_VARIANTS) + v for kind in kinds for v in variants]
        found = [ordered[ends[c - 1] if c else 0 : ends[c]] for c in codes if c < len(ends)]
        return found[0] if len(found) == 1 else np.concatenate([*found, _NO_ACTION])

    return some


_NO_ACTION = np.zeros(0, np.int64)


def _touch_segments(rows: Structure, edge: str, actions: np.ndarray, effects: tuple[int, ...]) -> None:
    """Give each segment of some actions its effect."""
    if len(effects) == 1:
        rows.touch(edge, rows.first_row[actions], effects[0])
        return
    segments = rows.first_row[actions][:, None] + np.arange(len(effects))
    rows.touch(edge, segments.reshape(-1), np.broadcast_to(np.array(effects, np.int64), segments.shape).reshape(-1))


def _between(state: State, costs: dict[str, LayerCost], chunk: Chunk) -> float:
    """Bytes that a split backward of a chunk keeps between its halves, beside what the forward kept: gradients of what operators with
    weights made, and that of its input; 0 where codes keep others, and of a chunk whose input has no gradient."""
    resolved = state.resolved
    if not (resolved.framework.split_keeps_graph and resolved.schedule.splits_backward) or chunk.embedding:
        return 0.0
    return costs[chunk.kinds[0]].input_bytes + sum(costs[kind].between for kind in chunk.kinds)


def _halves(between: float, chunk: Chunk) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return (kinds of backward actions, bytes that their temporaries hold less): where gradients are kept between the halves, the second
    has no temporaries, and the first of a chunk with the head makes the kept ones among its own."""
    if not between:
        return (((1, 2, 3), 0.0),)
    return ((1,), 0.0), ((2,), between if chunk.head else 0.0), ((3,), math.inf)


def saved_by(state: State, costs: dict[str, LayerCost], chunk: Chunk) -> tuple[Tensor, ...]:
    """Return what a chunk keeps from forward to backward on the GPU."""
    here = chunk.kinds
    if state.resolved.activation_offload:
        away = offloaded(chunk, state.resolved.activation_offload)
        here = tuple(kind for kind, goes in zip(here, away, strict=True) if not goes)
    saved = _saved_by(tuple(costs), tuple(costs.values()), here, kept_output(state, costs, chunk))
    return (*saved, *_weights_saved(state, costs, chunk.kinds))


def _weights_saved(state: State, costs: dict[str, LayerCost], kinds: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Gathered weights that products of layers keep until their backward; those of the head stand gathered when the loss runs."""
    resolved = state.resolved
    if not (resolved.framework.saves_gathered and resolved.zero_stage == 3) or resolved.recompute == "full":
        return ()
    layers = [costs[kind] for kind in kinds if kind not in ("embedding", "head")]
    count = sum(in_full_width(cost.parameters, cost.frozen.narrow, resolved.gathered_bytes) for cost in layers)
    size = count * resolved.gathered_bytes
    return (Tensor(name="weights that products keep", category="gathered", bytes=size),) if size else ()


def _kept_by(
    state: State, costs: dict[str, LayerCost], chunk: Chunk, groups: tuple[tuple[str, ...], ...], backward: bool
) -> tuple[dict[Kept, tuple[Tensor, ...]], list[Kept]]:
    """What a chunk keeps, by what a segment of its forward keeps of it, or of its backward lets go, and of each segment what that is; its
    output comes, and goes, with the last."""
    here = groups
    if state.resolved.activation_offload:
        away = iter(offloaded(chunk, state.resolved.activation_offload)[:: -1 if backward else 1])
        here = tuple([tuple([kind for kind in group if not next(away)]) for group in groups])
    outputs = [0.0] * (len(groups) - 1) + [kept_output(state, costs, chunk)]
    known, asked = (tuple(costs), tuple(costs.values())), list(zip(here, outputs, strict=True))
    found = {
        (kinds, output): (*_saved_by(*known, kinds, output), *_weights_saved(state, costs, kinds))
        for kinds, output in dict.fromkeys(asked)
    }
    return found, asked


Kept = tuple[tuple[str, ...], float]
"""Layers whose tensors come or go, and bytes of an output that does with them."""


def kept_output(state: State, costs: dict[str, LayerCost], chunk: Chunk) -> float:
    """Return bytes of the output that a chunk keeps; 0 = none."""
    keeps = state.resolved.framework.keeps_outputs and not chunk.head and bool(chunk.layers)
    return costs[chunk.kinds[-1]].input_bytes if keeps else 0.0


@functools.lru_cache(maxsize=4096)
def _saved_by(
    names: tuple[str, ...], layers: tuple[LayerCost, ...], kinds: tuple[str, ...], output: float
) -> tuple[Tensor, ...]:
    """What layers save, added up by name and category, and an output of so many bytes."""
    costs = dict(zip(names, layers, strict=True))
    total: dict[tuple[str, str], float] = {}
    if output:
        total[("chunk output", "activations")] = output
    for kind in kinds:
        for tensor in costs[kind].saved:
            key = (tensor.name, tensor.category)
            total[key] = total.get(key, 0) + tensor.bytes
    return tuple(Tensor(name=n, category=c, bytes=float(b)) for (n, c), b in total.items())


def _kept_at_last(costs: dict[str, LayerCost], chunk: Chunk) -> float:
    """Bytes that a chunk's last layer keeps whole, where layers run again one at a time behind it; 0 where they do not."""
    if not chunk.turns:
        return 0.0
    layer, ending = chunk.turns[0]
    return sum(t.bytes for t in costs[(chunk.names[layer] if chunk.names else "layer") + ending].saved)


def _gathered_behind(state: State, cut: Cut) -> float:
    """Return the bytes of units that are gathered while the head, a unit itself, runs backward, so that theirs can begin when it has.

    The host asks for them in the hook of the head's own backward (torch.distributed.fsdp: _pre_backward), behind the loss's.
    """
    resolved = state.resolved
    again = resolved.zero_stage == 3 and resolved.reshard_after_forward and resolved.fsdp_gather == "microbatch"
    if cut.groups[0] != ("head",) or not again:
        return 0.0
    ahead = resolved.fsdp_prefetch if resolved.framework.copies_gathered else max(1, resolved.fsdp_prefetch)
    units = [group_held(state, group[::-1]).gathered(resolved) for group in cut.groups[1 : 1 + ahead]]
    return resolved.gathered_bytes * sum(count for parts in units for _, count, _ in parts)


def largest_mark(
    state: State,
    costs: dict[str, LayerCost],
    group: tuple[str, ...],
    direction: str,
    behind: float = 0.0,
    held: float = 0.0,
) -> tuple[Tensor, ...]:
    """Return the largest set of temporaries among the layers of a segment.

    Args:
        behind: bytes that are counted from where the head's backward begins, but come after the loss's.
        held: bytes that the forward kept of a layer, in whose place the same of others may stand.
    """
    if group == ("head",) and direction == "backward" and state.resolved.zero_stage == 3:
        made = costs["head"].trained * gradient_made(state.resolved)
        return _less(costs["head"].backward_mark, made + behind)
    if direction == "backward" and made_in_turn(state.resolved, group):
        return _largest_of_unit(tuple([costs[kind] for kind in group]), gradient_made(state.resolved))
    return _largest(tuple([costs[kind] for kind in dict.fromkeys(group)]), direction, held)


@functools.lru_cache(maxsize=4096)
def _largest_of_unit(layers: tuple[LayerCost, ...], made: float) -> tuple[Tensor, ...]:
    """The largest set of temporaries among a unit's layers, with `made` bytes of each gradient: its own that are there, and all of the
    others'."""
    fullest = max(layers, key=lambda cost: sum(t.bytes for t in cost.unit_mark))
    others = (sum(cost.trained for cost in layers) - fullest.trained) * made
    whole = Tensor(name="unsharded gradients of other layers", category="gradients", bytes=others)
    return (*fullest.unit_mark, *((whole,) if others else ()))


@functools.lru_cache(maxsize=4096)
def _largest(layers: tuple[LayerCost, ...], direction: str, held: float) -> tuple[Tensor, ...]:
    """The largest set of temporaries among these layers, what they make again above what is held among them."""
    marks: list[tuple[Tensor, ...]] = [getattr(cost, f"{direction}_mark") for cost in layers]
    if direction == "backward" and any(cost.again for cost in layers):
        above = [max(0.0, sum(t.bytes for t in cost.again) - held) for cost in layers]
        more = [(Tensor(name="made again", category="activations", bytes=size),) if size else () for size in above]
        marks = [one + two for one, two in zip(more, marks, strict=True)]
    return max(marks, key=lambda tensors: sum(t.bytes for t in tensors), default=())


def _less(tensors: tuple[Tensor, ...], later: float) -> tuple[Tensor, ...]:
    """Temporaries, less so many bytes: of the loss what comes after it but is counted from the segment's start."""
    out = []
    for tensor in tensors:
        left = max(0.0, tensor.bytes - later)
        later -= tensor.bytes - left
        if left:
            out.append(Tensor(name=tensor.name, category=tensor.category, bytes=left))
    return tuple(out)


def resident_tensors(state: State) -> list[list[Tensor]]:
    """Return what stands on each rank through the whole step: made once for ranks whose chunks are alike."""
    if state.resident:
        return state.resident
    versions: list[int] = state.resolved.schedule.weight_versions(state.resolved.shape).tolist()
    first = all_alike(state)
    known: dict[tuple[int, int], list[Tensor]] = {}
    for rank, version in enumerate(versions):
        alike = version, first[rank]
        if alike not in known:
            known[alike] = _resident(state, rank, version - 1)
        state.resident.append(known[alike])
    return state.resident


def _resident(state: State, rank: int, older: int) -> list[Tensor]:
    """What stands on a rank through the whole step, with `older` versions of the weights."""
    resolved = state.resolved
    held = rank_held(state, rank)
    has_master = state.workload.numbers.master_weights
    weight, gradient = float(resolved.precision.element), float(resolved.gradient_bytes)
    alone = shard_bytes(state) > resolved.precision.element
    if alone:
        weight, gradient, has_master = 4.0, 4.0, False

    def optimizer(others: float) -> float:
        whole = optimizer_bytes(state, others) - (4.0 if alone else 0.0)
        return device_bytes(state, whole, has_master)

    trained = held.trained
    dense = trained.all - trained.experts
    parts = [(dense, resolved.shard_size, optimizer(held.others / dense if held.others else 0.0))]
    parts += [(trained.experts, resolved.expert_shard_size, optimizer(0.0))] if trained.experts else []
    states = [
        model_states(
            parameters,
            weight=weight,
            gradient=gradient,
            optimizer=moments,
            zero_stage=resolved.zero_stage,
            replicas=replicas,
            lanes=resolved.lanes,
        )
        for parameters, replicas, moments in parts
    ]
    states += _frozen(held, resolved, FROZEN_BYTES.get(state.workload.model.frozen_format, 0.0))
    stashed = older * held.all * float(resolved.precision.element)
    # with narrow GEMMs the operand and its transpose (a byte each) stand in place of the 16-bit weight
    out = [
        Tensor(
            name="weights",
            category="weights",
            bytes=sum([part.weights for part in states]) - weight * gathered_shard(state, held),
        ),
        Tensor(name="older versions of the weights", category="weights", bytes=stashed),
        Tensor(
            name="gradient buffers",
            category="gradients",
            bytes=0.0
            if gradients_dropped(resolved)
            else sum([part.gradients for part in states]) * resolved.gradients_kept,
        ),
        Tensor(
            name="optimizer states",
            category="optimizer_states",
            bytes=sum([part.optimizer_states for part in states]),
        ),
        Tensor(name="states of the exchange", category="optimizer_states", bytes=kept_for_exchange(held, resolved)),
        Tensor(name="secondary weight shards", category="weights", bytes=_secondary(held, resolved)),
        *beside_states(state, rank),
    ]
    return [t for t in out if t.bytes]


def _frozen(held: Held, resolved: ResolvedPlan, narrow: float) -> list[ModelStates]:
    """Frozen weights: in the compute format, or in `narrow` bytes each; sharded where trained ones are."""
    wide, of_experts = held.frozen - held.narrow, held.frozen_experts - held.narrow_experts
    element, shards = float(resolved.precision.element), (resolved.shard_size, resolved.expert_shard_size)
    found = [
        (wide - of_experts, element, shards[0]),
        (of_experts, element, shards[1]),
        (held.narrow - held.narrow_experts, narrow, shards[0]),
        (held.narrow_experts, narrow, shards[1]),
    ]
    return [
        model_states(n, weight=size, gradient=0.0, optimizer=0.0, zero_stage=resolved.zero_stage, replicas=ways)
        for n, size, ways in found
        if n
    ]


def _on_host(state: State, rank: int) -> list[Tensor]:
    """What stands in the host's memory for one GPU of a rank, at most."""
    mine = states_kept(state, rank_held(state, rank))
    shards = shards_on_host(state, rank, state.resolved.optimizer_offload * mine)
    return [*host_tensors(state, rank, mine), *shards, *activations_on_host(state, rank)]


def _on_drives(state: State, rank: int) -> list[Tensor]:
    """What stands on the host's drives for one GPU of a rank, at most."""
    mine = states_kept(state, rank_held(state, rank))
    return [*nvme_tensors(state, mine), *shards_on_drives(state, rank, state.resolved.optimizer_offload * mine)]


def _secondary(held: Held, resolved: ResolvedPlan) -> float:
    """Bytes of a rank's part of the second copy of the weights (ZeRO++ hpZ)."""
    size = resolved.secondary_shard_size
    if not size:
        return 0.0
    outer = resolved.replicas // size
    shared = (held.all - held.experts) / size + held.experts * outer / resolved.expert_replicas
    return shared * resolved.precision.element
