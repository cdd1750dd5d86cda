"""Shards of ZeRO-3's weights that live in host memory (ZeRO-Infinity, arXiv 2104.07857, section 5.1).

    copy back           to_device(shard u) | to_device(shard u + 1) | ...
    gathers                                | all_gather u           | all_gather u + 1
    compute                                                         | unit u

Each GPU copies its own shard of a unit over its own link; a copy may start when its gather may (`fsdp_prefetch`), and the shard stands
on the GPU until the gather has ended.  Weights that no rank shares are not gathered, so they stay.  After the update new shards go
down; where the CPU has updated them they are there already, and do not come up.

From drives they are read into host memory first, up to three units ahead of their copies (section 6.2, the dynamic prefetcher):

    nvme                from_nvme(shard u + 1) | from_nvme(shard u + 2) | ...
"""

from __future__ import annotations

import numpy as np

from simulator.lowering.memory.host_shards import BUFFERS, at_home, gathered_shard, shard_bytes
from simulator.lowering.memory.offload import (
    COPY_BACK_LANE,
    COPY_LANE,
    NVME_BACK_LANE,
    NVME_LANE,
    add_copies,
    copy_link,
)
from simulator.lowering.steps.parameters import rank_held
from simulator.lowering.steps.state import State
from simulator.program.program import Tensor
from simulator.program.ragged import turns_before

__all__ = ["add_shard_copies", "add_shards_down"]


def add_shard_copies(
    state: State, gathers: np.ndarray, gate: np.ndarray, rank: np.ndarray, name: list[str], shard: np.ndarray
) -> None:
    """Let each of these gathers wait for its shard.

    Args:
        gathers: rows; `gate`: what each waits for, -1 = nothing; `rank`: its pipeline rank.
        name: what is gathered; `shard`: weights of a rank's part of it [count].
    """
    resolved = state.resolved
    if not len(gathers):
        return
    dtype = "fp32" if shard_bytes(state) > resolved.precision.element else resolved.precision.compute
    sizes = resolved.parameter_offload * shard * shard_bytes(state)
    known: dict[tuple[str, float], tuple[int, int]] = {}
    for key in zip(name, sizes.tolist(), strict=True):
        if key not in known:
            tensor = Tensor(name=f"shard of {key[0]}", category="gathered", bytes=key[1])
            known[key] = (copy_link(state, "to_device", f"shard of {key[0]}", key[1], dtype), state.effect((tensor,)))
    found = np.array([known[key] for key in zip(name, sizes.tolist(), strict=True)], np.int64)
    turn = np.argsort(gathers, kind="stable")
    item, effect = found[turn].T
    copies = add_copies(state, item, rank[turn], COPY_BACK_LANE, issued=gate[turn])
    if resolved.parameter_tier == "nvme":
        _read_ahead(state, copies, rank[turn], gate[turn], [name[n] for n in turn.tolist()], sizes[turn], dtype)
    state.wait(gathers[turn], copies)
    gated = gate[turn] >= 0
    state.wait(copies[gated], gate[turn][gated])
    state.touch("start", copies, effect)
    state.touch("end", gathers[turn], effect)


def _read_ahead(
    state: State, copies: np.ndarray, rank: np.ndarray, gate: np.ndarray, name: list[str], sizes: np.ndarray, dtype: str
) -> None:
    """Let each of these copies wait until its shard has been read from the drives, into a buffer that an earlier copy has left."""
    keys = list(zip(name, sizes.tolist(), strict=True))
    known = {key: copy_link(state, "from_nvme", f"shard of {key[0]}", key[1], dtype) for key in dict.fromkeys(keys)}
    left = turns_before(rank, BUFFERS)  # the copy whose buffer it takes
    for r in np.unique(rank).tolist():
        state.fetched[r] = float(sizes[rank == r].max())
    issued = np.where(left >= 0, gate[left], -1)
    reads = add_copies(state, np.array([known[key] for key in keys]), rank, NVME_LANE, issued=issued)
    state.wait(reads[left >= 0], copies[left[left >= 0]])
    state.wait(copies, reads)


def add_shards_down(state: State, updated: list[np.ndarray], mine: list[float]) -> None:
    """Add the copies of new shards that the GPU has made, one per rank.

    Args:
        updated: for each of some causes, the row [ranks] after which they are new.
        mine: [ranks] weights that the CPU updates for one GPU [count].
    """
    resolved = state.resolved
    dtype = "fp32" if shard_bytes(state) > resolved.precision.element else resolved.precision.compute
    held = [rank_held(state, r) for r in range(state.ranks)]
    counts = [gathered_shard(state, h) - at_home(state, h, m) for h, m in zip(held, mine, strict=True)]
    ranks = np.flatnonzero(counts)
    items = [
        copy_link(state, "to_host", "updated shards", counts[r] * shard_bytes(state), dtype) for r in ranks.tolist()
    ]
    if items:
        down = add_copies(state, np.array(items), ranks, COPY_LANE)
        for rows in updated:
            state.wait(down, rows[ranks])
        if resolved.parameter_tier == "nvme":
            sizes = [counts[r] * shard_bytes(state) for r in ranks.tolist()]
            written = [copy_link(state, "to_nvme", "updated shards", size, dtype) for size in sizes]
            add_copies(state, np.array(written), ranks, NVME_BACK_LANE, down)
