"""Which weights each pipeline rank holds, and which ranks hold the same.

Experts may be held by other sets of ranks than the rest (expert parallelism), so a count of weights is a `Held`: all of them,
and how many belong to experts apart.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.lowering.exchanges.base import Part
from simulator.lowering.layers.holdings import Matrix
from simulator.lowering.resolve.resolved_plan import Holders, ResolvedPlan
from simulator.lowering.steps.assign import Chunk, Chunks
from simulator.lowering.steps.state import State
from simulator.partition.layout import MATRICES
from simulator.workload.graph import Dim
from simulator.workload.layer_kind import DECODER_EMBEDDING, MTP_HEAD, MTP_LAYER, is_layer
from simulator.workload.optimizers import OPTIMIZERS
from simulator.workload.precision import NF4_BYTES

__all__ = [
    "Held",
    "Matrices",
    "all_alike",
    "bucket_held",
    "chunk_held",
    "contents",
    "first_alike",
    "group_held",
    "in_full_width",
    "layer_counts",
    "rank_chunks",
    "rank_held",
    "summed_parameters",
    "table_copies",
    "table_size",
    "weights_elsewhere",
    "words",
]

Matrices = tuple[tuple[Matrix, int], ...]
"""Matrices of a rank, each with how many layers have it."""


class Held(NamedTuple):
    """Weights on one GPU before ZeRO [count]: all, those of experts that other sets of ranks hold than the rest, and those that the
    optimizer leaves to another (`Optimizer.others`).  Of all, and of those of experts, the ones that are frozen: they have neither
    gradients nor states; `narrow` and `narrow_experts` of these stand in fewer bits (`Model.frozen_format`)."""

    all: float
    experts: float = 0.0
    others: float = 0.0
    frozen: float = 0.0
    frozen_experts: float = 0.0
    narrow: float = 0.0
    narrow_experts: float = 0.0

    @property
    def trained(self) -> Held:
        """Those with gradients and states."""
        return Held(self.all - self.frozen, self.experts - self.frozen_experts, self.others) if self.frozen else self

    @classmethod
    def of_all(cls, some: Iterable[Held]) -> Held:
        """Return all of several together."""
        return cls(*map(sum, zip(*some, strict=True)))

    def sharded(self, resolved: ResolvedPlan) -> float:
        """Return what is left on each rank when optimizer states are sharded.

        With ZeRO-3 those of one lane of the schedule: each lane gathers its own.
        """
        share = (self.all - self.experts) / resolved.shard_size + self.experts / resolved.expert_shard_size
        return share if resolved.zero_stage == 3 else share / resolved.lanes

    def by_holders(self, resolved: ResolvedPlan) -> list[tuple[Holders, float]]:
        """Return the weights that are no experts [count], and those that are, if any, each with the ranks that hold the same."""
        rest, experts = resolved.holders
        return [(rest, self.all - self.experts), *([(experts, self.experts)] if self.experts else [])]

    def parts(self, resolved: ResolvedPlan) -> list[tuple[str, float, tuple[str, ...]]]:
        """Return (what they are, weights, mesh axes of the ranks that shard them or add their gradients) where several do."""
        away = resolved.parameter_offload > 0 and resolved.shard_size == 1  # a rank alone fetches what lies elsewhere
        some = [(h, count) for h, count in self.by_holders(resolved) if count and (h.shards > 1 or away)]
        return [(h.what, count, h.shard_axes) for h, count in some]

    def gathered(self, resolved: ResolvedPlan) -> list[tuple[str, float, tuple[str, ...]]]:
        """Return `parts` as they are gathered: in weights as wide as those that do not stand in 4 bits."""
        wide = functools.partial(in_full_width, element=resolved.gathered_bytes)
        of_experts, rest = self.narrow_experts, self.narrow - self.narrow_experts
        return [(what, wide(n, of_experts if what else rest), axes) for what, n, axes in self.parts(resolved)]

    def hops(self, resolved: ResolvedPlan) -> list[tuple[str, list[tuple[float, tuple[str, ...]]]]]:
        """Return (what they are, [(gradients, mesh axes), ...]): along which axes gradients are added, one after the other.

        One hop over all replicas; with copies of the sharded states a second one, of each rank's shard, between the copies, but in
        steps in which these are on their own.
        """
        adds = resolved.step_kind.adds
        out = []
        for h, count in self.by_holders(resolved):
            steps = [(count, h.shard_axes)] if h.shards > 1 and (adds or h.copies > 1) else []
            if h.copies > 1 and adds:
                steps.append((count / h.shards, h.copy_axes))
            if steps and count:
                out.append((h.what, steps))
        return out

    def exchanged(self, resolved: ResolvedPlan, matrices: Matrices = ()) -> tuple[Part, ...]:
        """Return what a GPU exchanges with the others that hold the same, of what is trained: shards between copies of the states, else
        all.

        Args:
            matrices: of all weights, where the exchange depends on them.
        """
        found = []
        for h, count in self.trained.by_holders(resolved):
            weights, ranks, axes = (
                (count / h.shards, h.copies, h.copy_axes) if h.copies > 1 else (count, h.ranks, h.axes)
            )
            if weights and ranks > 1:
                mine = tuple([(n * m.many, m.rows, m.columns) for m, n in matrices if m.experts == bool(h.what)])
                found.append(Part(what=h.what, weights=weights, group=axes, ranks=ranks, matrices=mine))
        return tuple(found)


def in_full_width(weights: float, narrow: float, element: float) -> float:
    """How many weights of `element` bytes are as large as some of which `narrow` stand in 4 bits [count]."""
    return weights - narrow * (1.0 - NF4_BYTES / element)


@dataclass(frozen=True, slots=True, eq=False)
class _Ranks:
    """What lies on each pipeline rank: (lane, chunk) pairs, the chunks, and the first rank with the same chunks."""

    held: tuple[tuple[tuple[int, int], ...], ...]
    contents: tuple[tuple[Chunk, ...], ...]
    alike: tuple[int, ...]


def _ranks(state: State) -> _Ranks:
    if state.on_ranks is None:
        rank_of = state.placement.rank_of
        state.on_ranks = _on_ranks(rank_of.tobytes(), len(rank_of), state.ranks, state.chunks)
    found: _Ranks = state.on_ranks
    return found


@functools.lru_cache(maxsize=1024)
def _on_ranks(rank_of: bytes, lanes: int, ranks: int, chunks: tuple[Chunk, ...]) -> _Ranks:
    """As `_ranks`; `rank_of`: the rank of every chunk of every lane."""
    held: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for lane, row in enumerate(np.frombuffer(rank_of, np.int32).reshape(lanes, -1).tolist()):
        for chunk, owner in enumerate(row):
            held[owner].append((lane, chunk))
    contents = tuple([Chunks(chunks[c] for _, c in mine) for mine in held])
    first: dict[tuple[Chunk, ...], int] = {}
    alike = tuple([first.setdefault(what, rank) for rank, what in enumerate(contents)])
    return _Ranks(tuple(map(tuple, held)), contents, alike)


def rank_chunks(state: State, rank: int) -> tuple[tuple[int, int], ...]:
    """(lane, chunk) pairs on a pipeline rank, lane by lane."""
    return _ranks(state).held[rank]


def contents(state: State, rank: int) -> tuple[Chunk, ...]:
    """What lies on a rank, chunk by chunk: ranks of equal contents hold the same weights."""
    return _ranks(state).contents[rank]


def all_alike(state: State) -> tuple[int, ...]:
    """Of every rank the first whose contents are its own."""
    return _ranks(state).alike


def first_alike(state: State, rank: int) -> int:
    """The first rank whose contents are those of this one."""
    return _ranks(state).alike[rank]


def group_held(state: State, kinds: Iterable[str]) -> Held:
    """Weights of a group of layers; a table that several of them share is held once."""
    kinds = tuple(kinds)
    known: Held | None = state.group_weights.get(kinds)
    if known is None:
        counts = layer_counts(kinds)
        total = sum(count * state.costs[kind].parameters for kind, count in counts) - _shared(state, kinds)
        experts = sum(count * state.costs[kind].expert_parameters for kind, count in counts)
        known = state.group_weights[kinds] = _with_frozen(state, Held(total, experts), dict(counts), kinds)
    return known


def bucket_held(state: State, chunk: Chunk, kinds: tuple[str, ...]) -> Held:
    """Weights of a bucket of a chunk's layers; a table that several of its buckets use belongs to the one whose backward ends last."""
    held, late = group_held(state, kinds), weights_elsewhere(state, chunk, kinds)
    return held._replace(all=held.all - late) if late else held


def weights_elsewhere(state: State, chunk: Chunk, kinds: tuple[str, ...]) -> float:
    """Weights of a bucket that are reduced with another one of its chunk [count]."""
    model = state.workload.model
    if model.lora_rank or not table_copies(kinds, model.tied_embeddings):
        return 0.0
    late = _tables_elsewhere(chunk.kinds, kinds, model.tied_embeddings)
    return late * table_size(state) if late else 0.0


@functools.lru_cache(maxsize=1024)
def _tables_elsewhere(chunk: tuple[str, ...], bucket: tuple[str, ...], tied: bool) -> int:
    """How many tables that a bucket uses are complete only with an earlier part of its chunk.

    >>> _tables_elsewhere(("embedding", "layer", "head"), ("head",), tied=True)
    1
    """
    first: dict[str, str] = {}
    for kind in chunk:
        for name in table_copies((kind,), tied):
            first.setdefault(name, kind)
    return sum(first.get(name, bucket[0]) not in bucket for name in set(table_copies(bucket, tied)))


def chunk_held(state: State, chunk: int) -> Held:
    """Weights of one chunk; tied embeddings on one chunk are held once."""
    return group_held(state, state.chunks[chunk].kinds)


def _with_frozen(state: State, held: Held, counts: Mapping[str, int], kinds: tuple[str, ...]) -> Held:
    """Weights with those among them that are frozen, or left to another optimizer; `counts`: layers of each kind."""
    if state.workload.model.lora_rank:
        some = [(count, state.costs[kind].frozen) for kind, count in counts.items()]
        held = held._replace(
            frozen=sum(count * frozen.all for count, frozen in some) - _shared(state, kinds),
            frozen_experts=sum(count * frozen.experts for count, frozen in some),
            narrow=sum(count * frozen.narrow for count, frozen in some),
            narrow_experts=sum(count * frozen.narrow_experts for count, frozen in some),
        )
    others = _others(state, counts, held.trained.all)
    return held._replace(others=others) if others else held


def _others(state: State, counts: Mapping[str, int], total: float) -> float:
    """Of so many weights those that are no matrices of layers, where the optimizer leaves these to another."""
    if not OPTIMIZERS.get(state.workload.optimizer).others:
        return 0.0
    matrices = ((count, m) for kind, count in counts.items() for m in state.costs[kind].matrices())
    return max(0.0, total - sum(count * m.many * m.rows * m.columns for count, m in matrices))


def _shared(state: State, kinds: tuple[str, ...]) -> float:
    """Weights of tables that some parts of the model count, but share with others of them."""
    copies = table_copies(kinds, state.workload.model.tied_embeddings)
    again = len(copies) - len(set(copies))
    return again * table_size(state) if again else 0.0


@functools.lru_cache(maxsize=1024)
def table_copies(kinds: tuple[str, ...], tied: bool) -> tuple[str, ...]:
    """Return the matrices of the vocabulary that parts of the model use, one entry per use: "input" or "output" (one if tied).

    >>> table_copies(("layer", "head", "mtp layer", "mtp head"), tied=False)
    ('output', 'input', 'output')
    """
    output = "input" if tied else "output"
    uses = {
        "embedding": ["input"],
        "head": [output],
        DECODER_EMBEDDING: ["input"],
        MTP_LAYER: ["input"],
        MTP_HEAD: [output],
    }
    return tuple(name for kind in kinds for name in uses.get(kind, []))


def table_size(state: State) -> float:
    """Weights of one matrix of the vocabulary on one GPU [count]."""
    resolved = state.resolved
    hidden = state.workload.model.hidden
    ways = resolved.layout.ways((Dim("vocabulary", resolved.vocabulary), Dim("hidden", hidden)), MATRICES)
    return resolved.vocabulary * hidden / ways


@functools.lru_cache(maxsize=1024)
def layer_counts(kinds: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return how many layers there are of each kind, the ends last."""
    counts = dict(Counter(kinds))
    ends = {kind: counts.pop(kind) for kind in ("embedding", "head") if kind in counts}
    return tuple((counts | ends).items())


def rank_held(state: State, rank: int) -> Held:
    """Weights of all chunks on a rank, copies in several lanes counted each."""
    what = first_alike(state, rank)
    if what not in state.rank_weights:
        held = [chunk_held(state, c) for _, c in rank_chunks(state, rank)]
        state.rank_weights[what] = Held.of_all(held)
    found: Held = state.rank_weights[what]
    return found


def summed_parameters(state: State, rank: int) -> tuple[tuple[str, tuple[str, ...], float], ...]:
    """(what, mesh axes, count) of weights of whose gradients the ranks that split layers have a term each (`LayerCost.summed`)."""
    return _summed(contents(state, rank), tuple(state.costs), tuple([cost.summed for cost in state.costs.values()]))


Summed = tuple[tuple[str, tuple[str, ...], float], ...]


@functools.lru_cache(maxsize=1024)
def _summed(chunks: tuple[Chunk, ...], kinds: tuple[str, ...], each: tuple[Summed, ...]) -> Summed:
    """As `summed_parameters`; `each`: of every kind of layer."""
    total: dict[tuple[str, tuple[str, ...]], float] = {}
    of_kind = dict(zip(kinds, each, strict=True))
    for chunk in chunks:
        for kind, count in layer_counts(chunk.kinds):
            for what, axes, held in of_kind[kind]:
                total[what, axes] = total.get((what, axes), 0.0) + count * held
    found = [(what, axes, held) for (what, axes), held in total.items()]
    return tuple(sorted(found, key=lambda found: found[0] == "key and value"))


@functools.lru_cache(maxsize=1024)
def words(group: tuple[str, ...]) -> str:
    """Name a group of layers: `3 layers + head`.

    >>> words(("layer", "moe layer", "head"))
    '2 layers, 1 with experts + head'
    >>> words(("embedding", "layer"))
    '1 layer + embedding'
    """
    sparse = sum(" moe " in f" {kind}" for kind in group)
    cut = sum(" part " in kind for kind in group)
    layers = sum(is_layer(kind) for kind in group) - cut
    parts: list[str] = [k for k in ("embedding", DECODER_EMBEDDING, "head") if k in group]
    parts += ["token prediction"] if MTP_LAYER in group or MTP_HEAD in group else []
    said = f"{layers} layer{'s' * (layers > 1)}" + (f", {sparse} with experts" if sparse else "")
    parts += [f"{cut} part{'s' * (cut > 1)} of layers"] if cut else []
    return " + ".join(([said] if layers else []) + parts)
