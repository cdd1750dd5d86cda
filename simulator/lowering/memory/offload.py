"""The part of the optimizer that lives on the host: gradients go there, the CPU updates, weights come back.

    GPU         norm --- update of what it keeps ------------------------ cast ---
    copy             to_host(gradients) |                               |
    host                                | host_update                   |
    copy back                                          | to_device(weights)

With overlap the three go layer by layer, so that copies hide beside the CPU's work (ZeRO-Offload, arXiv 2101.06840).  Under ZeRO-2
gradients have gone by then (`gradients_down`).  What lives on drives comes and goes layer by layer beside that, with its gradients,
which stand there, too (ZeRO-Infinity, arXiv 2104.07857, sections 4.1 and 5.2.2: 16 bytes a weight each way):

    nvme        from_nvme(states, gradients) |             |
    host                                     | host_update |
    nvme back                                              | to_nvme(states, and weights that live there)
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from simulator.lowering.layers.rows import Rows
from simulator.lowering.memory.host_shards import BUFFERS, at_home, returns_master, shard_bytes
from simulator.lowering.steps.parameters import Held, rank_held
from simulator.lowering.steps.state import State
from simulator.program.program import COMPUTE, COPY, OperatorTable, Segment, Tensor
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.optimizers import optimizer_cost

__all__ = [
    "COPY_BACK_LANE",
    "COPY_LANE",
    "NVME_BACK_LANE",
    "NVME_LANE",
    "add_copies",
    "add_host_update",
    "copy_link",
    "device_bytes",
    "host_tensors",
    "nvme_tensors",
]

COPY_LANE, HOST_LANE, COPY_BACK_LANE = "copy", "host", "copy-back"
NVME_LANE, NVME_BACK_LANE = "nvme", "nvme-back"
MASTER = float(BYTES_PER_ELEMENT["fp32"])
"""Bytes of a weight in full precision."""


def copy_link(state: State, what: str, name: str, size: float, dtype: str) -> int:
    """Add a copy or an update on the host; returns its item."""
    return state.link(what, name, size, dtype, (), kind=COPY, account="host")


def add_copies(
    state: State,
    items: np.ndarray,
    rank: np.ndarray,
    lane: str,
    after: np.ndarray | None = None,
    issued: np.ndarray | None = None,
) -> np.ndarray:
    """Add rows of copies in the order given; returns their numbers.

    Args:
        after: the row that each waits for; None: none yet.
        issued: the compute row after which each is issued, -1 = at the start, none later than any that it waits for; None: when all
            others are (`copy_order`).
    """
    rows = state.mine().on_lane(lane, items, rank, COPY)
    state.issued.append((rows, rows if issued is None else _in_turn(issued, rank)))
    if after is not None:
        state.wait(rows, after)
    return rows


def _in_turn(issued: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """No copy of a rank is issued before those that come before it."""
    out = issued.copy()
    for r in np.unique(rank).tolist():
        out[rank == r] = np.maximum.accumulate(issued[rank == r])
    return out


def device_bytes(state: State, optimizer: float, has_master: bool) -> float:
    """Bytes of optimizer state per parameter that stay on the GPU.

    Args:
        optimizer: bytes per parameter of all states.
        has_master: whether the fp32 weight is among them.
    """
    stays = MASTER if has_master and returns_master(state) else 0.0
    return optimizer - state.resolved.optimizer_offload * (optimizer - stays)


def host_tensors(state: State, rank: int, mine: float) -> list[Tensor]:
    """What the update on the CPU keeps in host memory for one GPU that updates `mine` parameters."""
    if state.resolved.optimizer_tier == "nvme":
        layers = _layers_of(state, rank)
        buffers = min(BUFFERS, layers) / layers * sum(t.bytes for t in _updated(state, mine, "on drives"))
        return [Tensor(name="buffers of states from drives", category="optimizer_states", bytes=buffers)]
    return _updated(state, mine, "on the host")


def nvme_tensors(state: State, mine: float) -> list[Tensor]:
    """What the update on the CPU keeps on drives for one GPU that updates `mine` parameters."""
    return _updated(state, mine, "on drives") if state.resolved.optimizer_tier == "nvme" else []


def _updated(state: State, mine: float, place: str) -> list[Tensor]:
    """What the CPU's update of so many parameters reads and writes."""
    part, numbers, resolved = state.resolved.optimizer_offload, state.workload.numbers, state.resolved
    if not part:
        return []
    cost = optimizer_cost(state.workload.optimizer, numbers.element, resolved.gradient_bytes, numbers.master_weights)
    weights = MASTER if numbers.master_weights else float(numbers.element)
    sizes = (
        (f"optimizer states {place}", "optimizer_states", cost.state),
        (f"weights {place}", "weights", weights),
        (f"gradients {place}", "gradients", float(resolved.gradient_bytes)),
    )
    return [Tensor(name=name, category=kind, bytes=part * mine * size) for name, kind, size in sizes]


def _layers_of(state: State, rank: int) -> int:
    """Layers of a rank, at least one: the pieces in which what lives on the host is updated one after the other."""
    held = np.flatnonzero((state.placement.rank_of == rank).any(axis=0))
    return max(1, sum(state.chunks[int(c)].layers for c in held))


def add_host_update(
    state: State, mine: Callable[[Held], float], rank: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add the rows of the update on the host.

    Args:
        mine: weights that a rank updates, of those it holds.
        rank, before: pairwise, the rows that each rank's gradients wait for.

    Returns:
        (pipeline rank, row): what must have ended before the weights of a rank are new.
    """
    resolved, numbers = state.resolved, state.workload.numbers
    if not resolved.optimizer_offload:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    cost = optimizer_cost(state.workload.optimizer, numbers.element, resolved.gradient_bytes, numbers.master_weights)
    moved = cost.host_bytes(resolved.framework.fused_host_optimizer)
    back = "fp32" if returns_master(state) else numbers.compute
    ends: list[int] = []
    returned: dict[Held, float] = {}
    for r in range(state.ranks):
        held = rank_held(state, r)
        count = resolved.optimizer_offload * mine(held)
        comes = count - at_home(state, held, count)
        stored, home = resolved.optimizer_tier == "nvme", at_home(state, held, count) * shard_bytes(state)
        written = home if resolved.parameter_tier == "nvme" else 0.0
        pieces = _layers_of(state, r) if resolved.optimizer_offload_overlap or stored or written else 1
        ranks, share = np.full(pieces, r), count / pieces

        def items(what: str, name: str, size: float, dtype: str, pieces: int = pieces) -> np.ndarray:
            return np.full(pieces, copy_link(state, what, name, size, dtype))

        there = len(state.down) > 0
        if not there:
            out = items("to_host", "gradients", share * resolved.gradient_bytes, resolved.gradient_dtype)
        work = items("host_update", state.workload.optimizer, share * moved, "fp32")
        into = items("to_device", "updated weights", comes / pieces * BYTES_PER_ELEMENT[back], back)
        causes = np.append(before[rank == r], state.down[r : r + 1])
        first = add_copies(state, *((work, ranks, HOST_LANE) if there else (out, ranks, COPY_LANE)))
        for cause in causes:
            state.wait(first, np.full(pieces, cause))
        second = first if there else add_copies(state, work, ranks, HOST_LANE, first)
        if stored or written:
            states = sum(t.bytes for t in _updated(state, mine(held), "")) if stored else 0.0
            _through_drives(
                state, ranks, first, second, states, share * resolved.gradient_bytes * pieces * stored, written
            )
        ends.append(int((add_copies(state, into, ranks, COPY_BACK_LANE, second) if comes else second)[-1]))
        returned[held] = comes
    casts = back != numbers.compute and any(returned.values())
    return np.arange(state.ranks), _cast(state, np.array(ends), returned) if casts else np.array(ends)


def _through_drives(
    state: State, ranks: np.ndarray, down: np.ndarray, work: np.ndarray, states: float, gradients: float, weights: float
) -> None:
    """Let pieces of an update read from drives what they update, and write it back.

    Args:
        ranks: of the pieces, one pipeline rank; `down`: the copies of their gradients; `work`: their updates.
        states: bytes of all that is read, `gradients` among them; `weights`: of those that are written beside it.
    """
    pieces = len(ranks)

    def rows(what: str, name: str, size: float, lane: str, after: np.ndarray) -> np.ndarray:
        return add_copies(
            state, np.full(pieces, copy_link(state, what, name, size / pieces, "fp32")), ranks, lane, after
        )

    if states:
        written = rows("to_nvme", "gradients", gradients, NVME_BACK_LANE, down)
        read = rows("from_nvme", "states and gradients", states, NVME_LANE, written)
        state.wait(work, read)
    back = rows("to_nvme", "updated states", states - gradients + weights, NVME_BACK_LANE, work)
    if states:
        state.wait(read[BUFFERS:], back[:-BUFFERS])


def _cast(state: State, after: np.ndarray, returned: dict[Held, float]) -> np.ndarray:
    """The kernel that writes the compute weights from those that came back in fp32, so many per rank."""
    known: dict[Held, int] = {}
    items = []
    for r in range(state.ranks):
        held = rank_held(state, r)
        if held not in known:
            table = _cast_of(returned[held], state.workload.numbers.element)
            known[held] = state.add_item(Segment(name="cast updated weights", pieces=((table, 1),), phase="optimizer"))
        items.append(known[held])
    added = state.mine().on_lane("compute", np.array(items), np.arange(state.ranks), COMPUTE, action=4)
    state.wait(added, after)
    return added


@functools.lru_cache(maxsize=1024)
def _cast_of(count: float, element: int) -> OperatorTable:
    """So many weights written in `element` bytes from fp32."""
    rows = Rows("cast of updated weights")
    rows.moves("cast updated weights", "fp32", MASTER * count, element * count, "optimizer")
    return rows.table()
