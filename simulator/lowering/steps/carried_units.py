"""What is done to the weights of an FSDP unit around its segment: copies of what was gathered, and narrow ones.

PyTorch's FSDP2 gathers into a buffer of its own and copies each weight from there before the unit runs, forward and, where it was
dropped, backward; the copies run in the compute stream.  So do those of its gradients to where they are reduced from,
which replace their accumulation.

Where layers are turns of one loop and collectives run a turn ahead or behind, what they take or give is carried by the loop: the
gathered weights of a layer, and a layer's gradients before their reduction.  A loop keeps what it carries in one place, so each is
copied there once per turn, unless the compiler unrolls the loop by two.

Narrow copies of the weights of 8-bit products are made once per step where the weights stay.  A compiled loop that gathers them
anew for the backward pass makes its narrow copies anew too.

Sources: PyTorch torch/distributed/fsdp/_fully_shard, _fsdp_param_group.py (wait_for_unshard) and _fsdp_collectives.py
(foreach_all_gather_copy_out, foreach_reduce: its copy comes before the stream of reductions waits); openxla/xla
xla/service/gpu/gpu_compiler.cc, AddDoubleBufferingPasses: loops with collectives are unrolled mostly to get rid of copies on the
device.
"""

from __future__ import annotations

import functools

from simulator.lowering.layers.casts import add_casts
from simulator.lowering.layers.rows import Rows
from simulator.lowering.memory.host_shards import shard_bytes
from simulator.lowering.steps.parameters import group_held
from simulator.lowering.steps.state import State
from simulator.program.program import OperatorTable
from simulator.units import BYTES_PER_ELEMENT, FP32
from simulator.workload.precision import Precision

__all__ = ["carried"]

_BACKWARD, _WEIGHTS_APART = (1, 2), (1, 3)
"""Actions whose backward reads weights, and those that make their gradients: 1 B, 2 I, 3 W."""


def carried(state: State, group: tuple[str, ...], kind: int) -> tuple[OperatorTable | None, OperatorTable | None]:
    """Return what runs before and after a unit's segment; nothing in frameworks that copy nothing; what a loop carries, inside loops only.

    Args:
        group: the unit's layers.
        kind: of the action: 0 F, 1 B, 2 I, 3 W.
    """
    resolved, habits = state.resolved, state.resolved.framework
    ends = bool({"head", "embedding"} & set(group))
    in_loop = not ends and (habits.carries_gathered or habits.casts_gathered)
    narrows = shard_bytes(state) > resolved.precision.element and not resolved.style.autocast
    casts = narrows and resolved.zero_stage == 3
    if not (in_loop or habits.copies_gathered or casts or habits.flat_units):
        return None, None
    held = group_held(state, group)
    trained = held.trained
    again = kind in _BACKWARD and resolved.reshard_after_forward
    stays = "head" in group or (ends and habits.fsdp_root_unit)
    gathers = kind == 0 or (again and not stays)
    copies, casts = habits.copies_gathered and gathers, casts and gathers
    comes, goes = in_loop and (kind == 0 or again), in_loop and kind in _WEIGHTS_APART
    flat = habits.flat_units and resolved.zero_stage == 3
    reduces = (habits.copies_gathered or flat) and resolved.fsdp_reduce == "microbatch" and kind in _WEIGHTS_APART
    parts = sum(size for _, size, _ in held.gathered(resolved))
    return _tables(
        kind,
        held.all,
        parts if copies else 0.0,
        sum(size for _, size, _ in trained.parts(resolved)) if reduces else 0.0,
        trained.sharded(resolved) if casts else 0.0,
        trained.sharded(resolved) if flat and reduces else 0.0,
        trained.sharded(resolved) if narrows and reduces else 0.0,
        comes and habits.carries_gathered,
        comes and habits.casts_gathered,
        resolved.gradient_bytes * trained.all if goes and habits.carries_gathered else 0.0,
        resolved.gradient_dtype,
        resolved.precision,
    )


@functools.lru_cache(maxsize=1024)
def _tables(
    kind: int,
    count: float,
    gathered: float,
    reduced: float,
    shards: float,
    divided: float,
    widened: float,
    carries: bool,
    casts: bool,
    gradients: float,
    gradient_dtype: str,
    precision: Precision,
) -> tuple[OperatorTable | None, OperatorTable | None]:
    """As `carried`.

    Args:
        count: weights of the unit; `gathered`: of those that are copied from where they were gathered; `reduced`: of those whose
            gradients are copied to where they are reduced from; `shards`: of the rank's fp32 shards; `divided`: of those
            whose gradients were divided in place, and are again; `widened`: of those whose gradients become fp32.
        carries, casts: whether the weights go to the next turn, and narrow copies are made of them.
        gradients: bytes of the gradients that go to the next turn.
    """
    phase, part = "backward" if kind else "forward", ("", "input", "input", "weight")[kind]
    before, after = Rows("weights of a unit"), Rows("gradients of a unit")
    compute, element = precision.compute, precision.element
    into = functools.partial(before.moves, phase=phase, part=part)
    out_of = functools.partial(after.moves, phase=phase, part=part)
    if shards:
        into("shards cast", compute, FP32 * shards, element * shards)
    if shards and gathered:
        into("shards copied in", compute, element * shards, element * shards)
    if gathered:
        into("gathered weights copied out", compute, element * gathered, element * gathered)
    if carries:
        into("gathered weights to the next turn", compute, element * count, element * count)
    if casts:
        add_casts(before, "weights", count, precision, phase=phase, part=part)
    wide = BYTES_PER_ELEMENT[gradient_dtype]
    if reduced:
        out_of("gradients copied to be reduced", compute, element * reduced, wide * reduced)
    if divided:  # by a part of the ranks before their sum, by the rest behind it, then widened
        size = wide * (reduced + divided)
        out_of("gradients divided", gradient_dtype, size, size, launches=2)
    if widened and wide < FP32:
        out_of("gradients widened", gradient_dtype, wide * widened, FP32 * widened)
    if gradients:
        out_of("gradients to the next turn", gradient_dtype, gradients, gradients)
    return before.table() if before.rows else None, after.table() if after.rows else None
