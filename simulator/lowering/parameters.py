"""Which weights each pipeline rank holds."""

from __future__ import annotations

from simulator.lowering.state import State

__all__ = ["chunk_parameters", "rank_chunks", "rank_parameters", "small_parameters", "words"]


def rank_chunks(state: State, rank: int) -> list[tuple[int, int]]:
    """(lane, chunk) pairs on a pipeline rank, lane by lane."""
    if not state.held:
        state.held = [[] for _ in range(state.ranks)]
        for lane, row in enumerate(state.placement.rank_of.tolist()):
            for chunk, owner in enumerate(row):
                state.held[owner].append((lane, chunk))
    return state.held[rank]


def chunk_parameters(state: State, chunk: int) -> float:
    """Weights of one chunk on one GPU before ZeRO [count]; tied embeddings on one chunk are held once."""
    what = state.chunks[chunk]
    costs = state.costs
    total = what.layers * costs["layer"].parameters
    total += costs["embedding"].parameters if what.embedding else 0.0
    if what.head:
        total += costs["head"].parameters
        if what.embedding and state.workload.model.tied_embeddings:
            total -= costs["head"].parameters - costs["head"].small_parameters
    return total


def rank_parameters(state: State, rank: int) -> float:
    """Weights of all chunks on a rank, copies in several lanes counted each [count]."""
    return sum(chunk_parameters(state, c) for _, c in rank_chunks(state, rank))


def small_parameters(state: State, rank: int) -> float:
    """Weights that every tensor-parallel rank holds in full (norms, row biases) [count]."""
    total = 0.0
    for _, c in rank_chunks(state, rank):
        what = state.chunks[c]
        total += what.layers * state.costs["layer"].small_parameters
        total += state.costs["embedding"].small_parameters if what.embedding else 0.0
        total += state.costs["head"].small_parameters if what.head else 0.0
    return total


def words(group: tuple[str, ...]) -> str:
    """Name a group of layers: `3 layers + head`."""
    layers = group.count("layer")
    parts: list[str] = [k for k in ("embedding", "head") if k in group]
    return " + ".join(([f"{layers} layers"] if layers else []) + parts)
