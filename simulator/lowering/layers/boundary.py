"""What a pass over a chunk begins with where tensor-parallel ranks share the sending of activations: these are put together.

Megatron-LM (mpu.gather_split_1d_tensor) gathers what it receives: activations before a forward, gradients before a backward.
DeepSpeed's PartitionedTensor does so too, and gathers the chunk's own output once more before its backward, because only the
parts were kept.
"""

from __future__ import annotations

import functools

from simulator.lowering.layers.joins import gather_pieces
from simulator.lowering.layers.rows import Rows
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.state import State
from simulator.program.program import OperatorTable

__all__ = ["received"]

_RECEIVED = ("received", "own output")
"""What is put together: what arrives, and the output that is kept in parts."""

_FORWARD, _WEIGHT_GRADIENT = 0, 3
"""Numbers of the actions that begin with activations, and with nothing that was received."""


def received(state: State, chunk: Chunk, kind: int, scale: int) -> list[tuple[OperatorTable, int]]:
    """Return what an action of this kind runs before its first layer; [] where whole activations arrive or none do."""
    resolved, framework, forward = state.resolved, state.resolved.framework, kind == _FORWARD
    if kind == _WEIGHT_GRADIENT or (chunk.embedding if forward else chunk.head) or not framework.scatters_p2p:
        return []
    if resolved.tensor_parallel == 1 or resolved.pipeline_parallel == 1 or resolved.divides_stream:
        return []
    size = max((c.input_bytes for k, c in state.scales[scale].items() if k != "embedding"), default=0.0)
    twice = framework.partitions_activations and not forward
    table = _gathers(
        size,
        2 if twice else 1,
        framework.partitions_activations,
        resolved.groups.tensor,
        resolved.precision.compute,
        "forward" if forward else "backward",
    )
    return [(table, 1)]


@functools.lru_cache(maxsize=256)
def _gathers(
    size: float, times: int, partitioned: bool, group: tuple[str, ...], dtype: str, phase: str
) -> OperatorTable:
    rows = Rows(f"received {phase}")
    for what in _RECEIVED[:times]:
        gather_pieces(rows, what, size, group, dtype, phase, partitioned)
    return rows.table()
