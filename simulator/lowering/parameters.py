"""Which weights each pipeline rank holds, and which ranks hold the same.

Experts may be held by other sets of ranks than the rest (expert parallelism), so a count of weights is a `Held`: all of them,
and how many belong to experts apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.lowering.settled import Settled
from simulator.lowering.state import State

__all__ = ["Held", "chunk_held", "group_held", "rank_chunks", "rank_held", "small_parameters", "words"]


@dataclass(frozen=True, slots=True)
class Held:
    """Weights on one GPU before ZeRO [count]: all, and those of experts that other sets of ranks hold than the rest."""

    all: float
    experts: float = 0.0

    def sharded(self, settled: Settled) -> float:
        """Return what is left on each rank when states are sharded."""
        return (self.all - self.experts) / settled.shard_size + self.experts / settled.expert_shard_size

    def parts(self, settled: Settled) -> list[tuple[str, float, tuple[str, ...]]]:
        """Return (what they are, weights, mesh axes of the ranks that shard them or add their gradients) where several do."""
        out = []
        if settled.shard_size > 1 and self.all > self.experts:
            out.append(("", self.all - self.experts, settled.groups.shards))
        if self.experts and settled.expert_shard_size > 1:
            out.append((" (experts)", self.experts, settled.groups.expert_shards))
        return out

    def hops(self, settled: Settled) -> list[tuple[str, list[tuple[float, tuple[str, ...]]]]]:
        """Return (what they are, [(gradients, mesh axes), ...]): along which axes gradients are added, one after the other.

        One hop over all replicas; with copies of the sharded states a second one, of each rank's shard, between the copies.
        """
        sizes = [("", self.all - self.experts, settled.shard_size, settled.groups.shards)]
        if self.experts:
            sizes.append((" (experts)", self.experts, settled.expert_shard_size, settled.groups.expert_shards))
        out = []
        for what, count, ranks, axes in sizes:
            steps = [(count, axes)] if ranks > 1 else []
            if settled.copies > 1:
                steps.append((count / ranks, settled.groups.copies))
            if steps and count:
                out.append((what, steps))
        return out


def rank_chunks(state: State, rank: int) -> list[tuple[int, int]]:
    """(lane, chunk) pairs on a pipeline rank, lane by lane."""
    if not state.held:
        state.held = [[] for _ in range(state.ranks)]
        for lane, row in enumerate(state.placement.rank_of.tolist()):
            for chunk, owner in enumerate(row):
                state.held[owner].append((lane, chunk))
    return state.held[rank]


def group_held(state: State, kinds: Iterable[str]) -> Held:
    """Weights of a group of layers."""
    costs = [state.costs[kind] for kind in kinds]
    return Held(sum(c.parameters for c in costs), sum(c.expert_parameters for c in costs))


def chunk_held(state: State, chunk: int) -> Held:
    """Weights of one chunk; tied embeddings on one chunk are held once."""
    what = state.chunks[chunk]
    costs = state.costs
    total = experts = 0.0
    for kind, count in _counts(what.kinds).items():
        total += count * costs[kind].parameters
        experts += count * costs[kind].expert_parameters
    if what.head and what.embedding and state.workload.model.tied_embeddings:
        total -= costs["head"].parameters - costs["head"].small_parameters
    return Held(total, experts)


def _counts(kinds: list[str]) -> dict[str, int]:
    """How many layers of each kind, the ends last."""
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    ends = {kind: counts.pop(kind) for kind in ("embedding", "head") if kind in counts}
    return counts | ends


def rank_held(state: State, rank: int) -> Held:
    """Weights of all chunks on a rank, copies in several lanes counted each."""
    held = [chunk_held(state, c) for _, c in rank_chunks(state, rank)]
    return Held(sum(h.all for h in held), sum(h.experts for h in held))


def small_parameters(state: State, rank: int) -> float:
    """Weights that every tensor-parallel rank holds in full (norms, row biases) [count]."""
    total = 0.0
    for _, c in rank_chunks(state, rank):
        for kind, count in _counts(state.chunks[c].kinds).items():
            total += count * state.costs[kind].small_parameters
    return total


def words(group: tuple[str, ...]) -> str:
    """Name a group of layers: `3 layers + head`.

    >>> words(("layer", "moe layer", "head"))
    '2 layers, 1 with experts + head'
    """
    sparse = sum(kind.startswith("moe layer") for kind in group)
    layers = sum(kind.startswith("layer") for kind in group) + sparse
    parts: list[str] = [k for k in ("embedding", "head") if k in group]
    said = f"{layers} layers" + (f", {sparse} with experts" if sparse else "")
    return " + ".join(([said] if layers else []) + parts)
