"""How much of a plan's weights lives in host memory: counts of the shards that ZeRO-3 keeps there."""

from __future__ import annotations

from simulator.lowering.steps.parameters import Held, rank_held
from simulator.lowering.steps.state import State
from simulator.program.program import Tensor

__all__ = [
    "BUFFERS",
    "at_home",
    "gathered_shard",
    "returns_master",
    "shard_bytes",
    "shards_on_drives",
    "shards_on_host",
]

BUFFERS = 3
"""Pieces of what lives on drives that stand in host memory: one is read, one used, one written (ZeRO-Infinity, section 6.2)."""


def returns_master(state: State) -> bool:
    """Whether the GPU keeps fp32 weights and gets the CPU's back in fp32."""
    return state.workload.numbers.master_weights and not state.resolved.framework.offloads_master_weights


def shard_bytes(state: State) -> float:
    """Bytes of a weight in a rank's shard, or whole where nothing is sharded: fp32 where that is the only copy, as under autocast."""
    resolved, numbers = state.resolved, state.workload.numbers
    whole = resolved.framework.shards_in_master_precision and not resolved.splits_master_weights
    alone = resolved.zero_stage == 3 and whole and numbers.master_weights
    return 4.0 if alone else resolved.gathered_bytes


def gathered_shard(state: State, held: Held) -> float:
    """Weights of a rank's shards that live on the host [count]."""
    resolved = state.resolved
    if not resolved.parameter_offload:
        return 0.0
    shards = {holders.what: holders.shards for holders in resolved.holders}
    return resolved.parameter_offload * sum(count / shards[what] for what, count, _ in held.parts(resolved))


def at_home(state: State, held: Held, updated: float) -> float:
    """Weights that the CPU updates where they live [count].

    None where the GPU keeps fp32 weights beside the shards: it gets the CPU's first.

    Args:
        updated: weights that the CPU updates for one GPU.
    """
    alone = shard_bytes(state) > state.resolved.precision.element
    return 0.0 if returns_master(state) and not alone else min(updated, gathered_shard(state, held))


def shards_on_host(state: State, rank: int, updated: float) -> list[Tensor]:
    """What the shards of one GPU take in host memory, beside the fp32 weights that its CPU updates: of those on drives buffers.

    Args:
        updated: weights that the CPU updates for one GPU.
    """
    if state.resolved.parameter_tier == "nvme":
        size = BUFFERS * state.fetched.get(rank, 0.0)
        return [Tensor(name="buffers of weight shards from drives", category="weights", bytes=size)] if size else []
    return _shards(state, rank, updated, "on the host")


def shards_on_drives(state: State, rank: int, updated: float) -> list[Tensor]:
    """What the shards of one GPU take on drives; as `shards_on_host`."""
    return _shards(state, rank, updated, "on drives") if state.resolved.parameter_tier == "nvme" else []


def _shards(state: State, rank: int, updated: float, place: str) -> list[Tensor]:
    held = rank_held(state, rank)
    count = gathered_shard(state, held)
    if shard_bytes(state) > state.resolved.precision.element:  # these are the fp32 weights
        count -= at_home(state, held, updated)
    size = count * shard_bytes(state)
    return [Tensor(name=f"weight shards {place}", category="weights", bytes=size)] if size else []
