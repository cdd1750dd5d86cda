"""What an FSDP unit is gathered and reduced as: its links, and the memory it takes while it stands unsharded.

One part, two where experts are sharded over other ranks than the rest; one for every weight tensor in a framework that gathers by
tensor (experts of one layer stay together), or for as many as fit a bucket (XLA's combiners of collectives).  Of those, small ones
may stay gathered, and what a recomputed forward leaves to a backward that follows soon is not fetched again (DeepSpeed:
stage3_param_persistence_threshold, stage3_max_reuse_distance).

ZeRO++ (arXiv 2306.10209) makes messages smaller:

    qwZ   weights travel as 8-bit integers in blocks                          1 byte per weight in place of 2
    hpZ   the second gather, in the backward pass, stays inside a node        a second copy of the weights per node
    qgZ   gradients travel as 4-bit integers, by all_to_all inside the node, added up, then between nodes      half a byte
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.layers.rows import Rows
from simulator.lowering.resolve.resolved_plan import EXPERTS, ResolvedPlan
from simulator.lowering.resolve.shard_rules import COPIES
from simulator.lowering.steps.hops import Chain, links_of
from simulator.lowering.steps.parameters import Held, group_held, words
from simulator.lowering.steps.state import State
from simulator.program.program import OperatorTable, Tensor
from simulator.units import BYTES_PER_ELEMENT

__all__ = [
    "UnitPart",
    "gather_links",
    "gradient_made",
    "kept_tensors",
    "listed",
    "made_in_turn",
    "quantising",
    "root_gradients",
    "unit_parts",
]

WEIGHT_BYTES, GRADIENT_BYTES = 1.0, 0.5
"""Bytes of a quantised weight and gradient on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPart:
    """Weights of a unit that one set of ranks shards.

    Args:
        unit: which unit.
        gather, gather_again: items of the gathers forward and backward; -1 where it stays gathered.
        twice: whether its backward gathers it twice, for the forward that is run again and for itself.
        name: what is gathered; `shard`: a rank's share of it [count].
        reduce: items of the reduction, hop by hop.
        weights, gradients: effects of standing unsharded (of gradients -1 where they are counted as they are made); `reducing`: of the
            copy in the format in which gradients are added, -1 where they are made in it; `shards`: of the gradients that are left on a
            rank; `idle`: of the place that those of the last step have left in the memory of the stream that reduces, -1 = none.
    """

    unit: int
    gather: int
    gather_again: int
    twice: bool
    name: str
    shard: float
    reduce: Chain
    weights: int
    gradients: int
    reducing: int
    shards: int
    idle: int


def listed(resolved: ResolvedPlan, group: tuple[str, ...]) -> int:
    """Return into how many tensors of a list a collective over these mesh axes is cut; 0 where it is one tensor."""
    sizes = dict(resolved.axes)
    return math.prod(sizes[axis] for axis in group) if resolved.framework.slice_time else 0


def gradient_made(resolved: ResolvedPlan) -> float:
    """Bytes of a weight's gradient before it is reduced: the format of the product that makes it, unless that adds it into a buffer of
    a wider one, or several are added up before."""
    if resolved.style.fused_wgrad_accumulation or resolved.fsdp_reduce != "microbatch":
        return resolved.added_bytes
    return float(min(resolved.gathered_bytes, resolved.gradient_bytes))


def made_in_turn(resolved: ResolvedPlan, kinds: Iterable[str]) -> bool:
    """Whether gradients of a unit of these layers stand from where each is made until all are copied into a buffer: what its backward
    holds says how many stand when it is fullest."""
    if resolved.zero_stage != 3 or not resolved.framework.copies_gathered:
        return False
    each_time = resolved.fsdp_reduce == "microbatch"
    whole = resolved.schedule.splits_backward or resolved.activation_offload or resolved.style.fused_wgrad_accumulation
    ends = {"head", "embedding"} & set(kinds)
    return each_time and not whole and not ends


def root_gradients(state: State, kinds: tuple[str, ...]) -> int:
    """Return the effect of the gradients of one segment of FSDP's root while they stand as they are made."""
    size = sum(count for _, count, _ in group_held(state, kinds).trained.parts(state.resolved)) * gradient_made(
        state.resolved
    )
    return _stands(state, f"unsharded gradients of {words(kinds)}", "gradients", size)


def unit_parts(
    state: State, units: Mapping[int, tuple[str, ...]], roots: frozenset[int], kept: float
) -> list[UnitPart]:
    """Return the parts of every unit, in order.

    Args:
        units: their layers by number; `roots`: those of several segments, each of whose gradients stand since it ran (`root_gradients`)
            until they are copied to be reduced, or reduced as they are.
        kept: bytes of a gradient on the rank that keeps it.
    """
    resolved, found = state.resolved, []
    for unit, kinds in units.items():
        whole = kinds[0] if len(kinds) == 1 else words(kinds)
        for piece, held, twice in _pieces(state, kinds):
            name = whole + piece
            trained = {what: count for what, count, _ in held.trained.parts(resolved)}
            chains = _reductions(state, name, held)
            stays = bool(piece) and held.all < resolved.framework.keeps_tensors_below
            fetched = [(*part, stays) for part in held.gathered(resolved)]
            if EXPERTS in chains and EXPERTS not in trained:
                # they lie whole on their ranks, and are added up between copies of the states alone
                trained[EXPERTS] = held.trained.experts
                fetched.append((EXPERTS, held.trained.experts, (), True))
            for what, gathered, group, there in fetched:
                gather, again = (-1, -1) if there else gather_links(state, f"weights of {name}{what}", gathered, group)
                count = trained.get(what, 0.0)
                weights, sent = gathered * resolved.gathered_bytes, max(resolved.gradient_bytes, resolved.reduce_bytes)
                made, share = gradient_made(resolved), resolved.expert_shard_size if what else resolved.shard_size
                found.append(
                    UnitPart(
                        unit=unit,
                        gather=gather,
                        gather_again=again,
                        twice=twice,
                        name=f"weights of {name}{what}",
                        shard=gathered / share,
                        reduce=chains.get(what, ()),
                        weights=_stands(state, f"gathered weights of {name}{what}", "gathered", weights),
                        gradients=-1
                        if unit in roots or made_in_turn(resolved, kinds)
                        else _stands(state, f"unsharded gradients of {name}{what}", "gradients", count * made),
                        reducing=_stands(state, f"gradients of {name}{what} to reduce", "communication", count * sent)
                        if unit in roots or made < sent
                        else -1,
                        shards=_stands(state, "gradients", "gradients", count / share * kept),
                        idle=_stands(state, "shards of gradients, place idle", "fragmentation", count / share * kept)
                        if resolved.framework.copies_gathered
                        else -1,
                    )
                )
    return found


def _pieces(state: State, kinds: tuple[str, ...]) -> list[tuple[str, Held, bool]]:
    """(what it is, weights, whether a backward fetches it twice) of everything in a unit that is gathered apart from the rest.

    Hooks drop what the repeated forward of a layer fetched, unless few weights are used between this use and the next: those of the
    modules behind, forward and backward.
    """
    held, habits = group_held(state, kinds), state.resolved.framework
    if not (habits.gather_bucket or habits.gathers_by_tensor):
        return [("", held, False)]
    tensors = [_tensors(state.costs[kind]) for kind in kinds]
    repeats = habits.gathers_by_tensor and state.resolved.recompute == "full" and state.resolved.reshard_after_forward
    repeats = repeats and not {"head", "embedding"} & set(kinds)
    if habits.gather_bucket:
        return _bucketed(held, list(itertools.chain(*tensors)), habits.gather_bucket / state.resolved.precision.element)
    if sum(map(len, tensors)) < 2:
        return [("", held, repeats and not habits.reuse_distance)]
    pieces: list[tuple[str, Held, bool]] = []
    for kind, some in zip(kinds, tensors, strict=True):
        cost = state.costs[kind]
        behind = sum(cost.tensors) + cost.expert_parameters
        for tensor in some:
            behind -= tensor.all
            twice = repeats and 2 * behind >= habits.reuse_distance
            pieces.append((f", tensor {len(pieces) + 1}", tensor, twice))
    if held.experts:
        pieces.append(("", _experts(held), repeats and not habits.reuse_distance))
    return pieces


def _tensors(cost: LayerCost) -> list[Held]:
    """The weight tensors of a layer, each as the weights that it is."""
    return [Held(size, frozen=size * frozen, narrow=size * narrow) for size, frozen, narrow in cost.weights]


def _experts(held: Held) -> Held:
    """Of some weights those of experts."""
    frozen, narrow = held.frozen_experts, held.narrow_experts
    return Held(held.experts, held.experts, 0.0, frozen, frozen, narrow, narrow)


def _bucketed(held: Held, tensors: list[Held], most: float) -> list[tuple[str, Held, bool]]:
    """The weight tensors of a unit, put together while no more than `most` weights come together; experts of a layer as one."""
    groups: list[Held] = []
    for tensor in tensors:
        if groups and groups[-1].all + tensor.all <= most:
            groups[-1] = Held.of_all((groups[-1], tensor))
        else:
            groups.append(tensor)
    found = [(f", part {number + 1}", group, False) for number, group in enumerate(groups)]
    return [*found, *([("", _experts(held), False)] if held.experts else [])]


def kept_tensors(state: State, kinds: Iterable[str], trained: bool = False) -> list[float]:
    """Return the sizes of the tensors of some layers that stay gathered, because they are small; or those that are `trained` [count]."""
    habits = state.resolved.framework
    if not habits.gathers_by_tensor:
        return []
    found = [_tensors(state.costs[kind]) for kind in kinds]
    small = (t for some in found if len(some) > 1 for t in some if t.all < habits.keeps_tensors_below)
    return [t.all for t in small if not (trained and t.frozen)]


def _stands(state: State, name: str, category: str, size: float) -> int:
    return state.effect((Tensor(name=name, category=category, bytes=size),))


def gather_links(state: State, what: str, count: float, group: tuple[str, ...]) -> tuple[int, int]:
    """Add the links that gather some weights before a forward and before a backward; returns their items."""
    resolved = state.resolved
    narrow = resolved.quantized_weights
    message = count * (WEIGHT_BYTES if narrow else resolved.gathered_bytes)
    dtype = "int8" if narrow else resolved.precision.compute
    first = state.link("all_gather", what, message, dtype, group, slices=listed(resolved, group))
    if not resolved.secondary_shard_size:
        return first, first
    inner = tuple(axis for axis in group if axis != COPIES)
    name = f"{what} from the secondary shards"
    return first, state.link("all_gather", name, message, dtype, inner, slices=listed(resolved, inner))


def _reductions(state: State, name: str, held: Held) -> dict[str, Chain]:
    resolved = state.resolved
    if not resolved.quantized_gradients:
        added = [what for what, _ in held.trained.hops(resolved)]
        links = links_of(state, f"gradients of {name}", held, listed(resolved, resolved.groups.shards))
        return dict(zip(added, links, strict=True))
    chains: dict[str, Chain] = {}
    for what, count, group in held.trained.parts(resolved):
        inner = tuple(axis for axis in group if axis != COPIES)
        ranks = resolved.secondary_shard_size if not what else resolved.expert_inner_size
        size = count * GRADIENT_BYTES
        title, dtype = f"quantised gradients of {name}{what}", resolved.reduce_dtype
        inside = state.link("all_to_all", f"{title} inside", size, dtype, inner)
        between = state.link("all_to_all", f"{title} between", size / ranks, dtype, (COPIES,))
        chains[what] = (inside, between)
    return chains


def quantising(state: State, group: tuple[str, ...], kind: int) -> tuple[OperatorTable | None, OperatorTable | None]:
    """Return the kernels before and after a unit's segment: weights widened again, gradients narrowed and added up.

    Args:
        group: the unit's layers.
        kind: of the action: 0 F, 1 B, 2 I, 3 W.
    """
    resolved = state.resolved
    before = after = None
    if not (resolved.quantized_weights or resolved.quantized_gradients):
        return before, after
    held, wide = group_held(state, group), float(resolved.precision.element)
    stays = "head" in group or ("embedding" in group and resolved.framework.fsdp_root_unit)
    again = resolved.reshard_after_forward and not stays
    if resolved.quantized_weights and (kind == 0 or (kind < 3 and again)):
        before = _widened(held.all, wide, resolved.precision.compute, "forward" if kind == 0 else "backward")
    if resolved.quantized_gradients and kind in (1, 3):
        after = _narrowed(held.trained.all, resolved.gradient_dtype, resolved.secondary_shard_size)
    return before, after


@functools.lru_cache(maxsize=1024)
def _widened(count: float, wide: float, dtype: str, phase: str) -> OperatorTable:
    """So many gathered weights made `wide` bytes wide again."""
    rows = Rows("weights from int8")
    rows.moves("widen gathered weights", dtype, WEIGHT_BYTES * count, wide * count, phase, part="")
    return rows.table()


@functools.lru_cache(maxsize=1024)
def _narrowed(count: float, dtype: str, ranks: int) -> OperatorTable:
    """So many gradients made narrow, and added up between the ranks of a secondary group."""
    rows = Rows("gradients to int4")
    narrow, grad = GRADIENT_BYTES * count, BYTES_PER_ELEMENT[dtype]
    rows.moves("quantise gradients", dtype, grad * count, narrow, "backward", part="weight")
    rows.moves("add quantised gradients", dtype, narrow, narrow / ranks, "backward", part="weight")
    return rows.table()
