"""What is done to the weights of an FSDP unit around its segment: copies from turn to turn of a loop, and narrow copies.

Where layers are turns of one loop and collectives run a turn ahead or behind, what they take or give is carried by the loop: the
gathered weights of a layer, and a layer's gradients before their reduction.  A loop keeps what it carries in one place, so each is
copied there once per turn, unless the compiler unrolls the loop by two.

Narrow copies of the weights of 8-bit products are made once per step where the weights stay.  A compiled loop that gathers them
anew for the backward pass makes its narrow copies anew too.

Source: openxla/xla xla/service/gpu/gpu_compiler.cc, AddDoubleBufferingPasses: loops with collectives are unrolled mostly to get rid
of copies on the device.
"""

from __future__ import annotations

from typing import Any

from simulator.lowering.layers.casts import add_casts
from simulator.lowering.layers.rows import Rows
from simulator.lowering.steps.parameters import group_held
from simulator.lowering.steps.state import State
from simulator.program.program import OperatorTable

__all__ = ["carried"]

_BACKWARD, _WEIGHTS_APART = (1, 2), (1, 3)
"""Actions whose backward reads weights, and those that make their gradients: 1 B, 2 I, 3 W."""


def carried(state: State, group: tuple[str, ...], kind: int) -> tuple[OperatorTable | None, OperatorTable | None]:
    """Return what runs before and after a unit's segment; nothing in frameworks whose loops carry nothing, or outside loops.

    Args:
        group: the unit's layers.
        kind: of the action: 0 F, 1 B, 2 I, 3 W.
    """
    resolved, habits = state.resolved, state.resolved.framework
    if {"head", "embedding"} & set(group) or not (habits.carries_gathered or habits.casts_gathered):
        return None, None
    count = group_held(state, group).all
    part = ("", "input", "input", "weight")[kind]
    common: dict[str, Any] = {"phase": "backward" if kind else "forward", "part": part}
    before, after = Rows("weights of a turn"), Rows("gradients of a turn")
    if kind == 0 or (kind in _BACKWARD and resolved.reshard_after_forward):
        if habits.carries_gathered:
            _copy(before, "gathered weights", resolved.precision.element * count, resolved.precision.compute, common)
        if habits.casts_gathered:
            add_casts(before, "weights", count, resolved.precision, **common)
    if kind in _WEIGHTS_APART and habits.carries_gathered:
        _copy(after, "gradients", resolved.gradient_bytes * count, resolved.gradient_dtype, common)
    return before.table() if before.rows else None, after.table() if after.rows else None


def _copy(rows: Rows, what: str, size: float, dtype: str, common: dict[str, Any]) -> None:
    rows.add(label=f"{what} to the next turn", work="memory_bound", dtype=dtype, read=size, written=size, **common)
