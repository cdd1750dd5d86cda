"""A compute order in the form that torch.distributed.pipelining runs: messages, gathers and reductions between the compute.

The rules are PyTorch's own, so that a file written here holds what PyTorch would add itself:

* A rank keeps the weights of up to three stages gathered: those that its next actions use.  What falls out of these is freed
  (RESHARD) before what comes in is gathered (UNSHARD); at the end everything is freed.
* The gradients of a stage are reduced (REDUCE_GRAD) right behind its last B or W.
* Ranks take turns, rank 0 first, one cell each; a turn passes while an input is missing.  The sender of a message puts SEND
  behind its action, and at the same moment RECV at the end of what the receiver has so far.  Both sides of a pair of ranks
  thus name their messages in one order.  Stages on the same rank exchange nothing.

Source: PyTorch 2.13.0, torch.distributed.pipelining (_PipelineScheduleRuntime, format compute_comms), read and observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from simulator.errors import DeadlockError, PlanError, ProgramError
from simulator.schedules.action import KINDS
from simulator.schedules.base import Schedule, Shape
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement

__all__ = ["TorchCell", "TorchOp", "lower_for_torch", "torch_cell_text", "torch_file", "torch_text"]

GATHERED = 3
"""Stages that a rank keeps gathered at once: PyTorch's own number."""


class TorchOp(NamedTuple):
    """One operation of PyTorch's runtime; `microbatch` is None for UNSHARD, RESHARD and REDUCE_GRAD.

    >>> print(TorchOp(2, "SEND_F", 1), TorchOp(2, "UNSHARD"))
    2SEND_F1 2UNSHARD
    """

    stage: int
    kind: str
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"


TorchCell: TypeAlias = tuple[TorchOp, ...]
"""One operation, or the two of a fused pair."""


def torch_cell_text(cell: TorchCell) -> str:
    """Return the text of a cell as PyTorch reads it.

    >>> torch_cell_text((TorchOp(2, "F", 4), TorchOp(5, "B", 1)))
    '(2F4;5B1)OVERLAP_F_B'
    """
    return str(cell[0]) if len(cell) == 1 else f"({';'.join(map(str, cell))})OVERLAP_F_B"


def torch_file(schedule: Schedule, shape: Shape, comms: bool = False) -> str:
    """Return the order of a schedule as a file for PyTorch; see `torch_text`.

    Raises:
        PlanError: the schedule has no order for this shape, updates weights without a flush, or has several lanes.
        ProgramError: its order has groups, parts or weights.

    >>> from simulator.schedules.one_f_one_b import OneFOneB
    >>> print(torch_file(OneFOneB(), Shape(2, 2)), end="")
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    if not schedule.flush:
        raise PlanError(
            f"PyTorch ends every step with a flush, but schedule {schedule.name} updates weights without one. "
            "Write it as --format json, or use schedule one_f_one_b"
        )
    schedule.check(shape)
    placement = schedule.placement(shape)
    return torch_text(schedule.order(shape, placement), placement, comms)


def torch_text(order: PipelineOrder, placement: Placement, comms: bool = False) -> str:
    """Return an order as a file for PyTorch: compute only, or with everything that PyTorch adds.

    Args:
        comms: write the form compute_comms instead of compute_only.

    Raises:
        PlanError: a chunk lives on several ranks; PyTorch keeps a stage on one rank.
        ProgramError: the order has groups, parts or weights, which PyTorch has no word for.
        DeadlockError: the order cannot run (only looked for with `comms`).

    >>> from simulator.schedules.own_order import read_order
    >>> order, placement, _ = read_order("0F0,0B0\\n1F0,1B0")
    >>> print(torch_text(order, placement, comms=True), end="")
    0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD
    1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD
    """
    _refuse_foreign(order, placement)
    if not comms:
        return order.to_text(torch=True)
    cells = lower_for_torch(order, placement)
    return "".join(",".join(map(torch_cell_text, row)) + "\n" for row in cells)


def lower_for_torch(order: PipelineOrder, placement: Placement) -> list[list[TorchCell]]:
    """Return the cells of every rank, with messages, gathers and reductions.

    Raises:
        PlanError, ProgramError, DeadlockError: as `torch_text`.
    """
    _refuse_foreign(order, placement)
    rows = []
    for rank in range(order.ranks):
        row = list(_compute_cells(order, rank))
        rows.append(list(_with_reductions(_with_gathers(row), placement.microbatches)))
    return _with_messages(rows, placement.rank_of[0].tolist())


def _refuse_foreign(order: PipelineOrder, placement: Placement) -> None:
    for chunk, ranks in enumerate(placement.rank_of.T.tolist()):
        if len(set(ranks)) > 1:
            raise PlanError(
                f"PyTorch keeps a stage on one rank, but this schedule has {placement.lanes} lanes: stage {chunk} runs on ranks "
                f"{', '.join(map(str, sorted(set(ranks))))}. Write it as --format json, or use a schedule of one lane"
            )
    for n in ((order.count > 1) | (order.parts > 1) | (order.weight != 1)).nonzero()[0][:1]:
        raise ProgramError(
            f"PyTorch runs whole microbatches, one per action, but {order.action(int(n))} on rank {order.rank[n]} is a group, a part "
            "or weighted. Write it as --format json, or use another schedule"
        )


def _compute_cells(order: PipelineOrder, rank: int) -> Iterator[TorchCell]:
    first, last = int(order.rank_offsets[rank]), int(order.rank_offsets[rank + 1])
    columns = (column[first:last].tolist() for column in (order.chunk, order.kind, order.microbatch))
    ops = [TorchOp(stage, KINDS[kind], microbatch) for stage, kind, microbatch in zip(*columns, strict=True)]
    partner = (order.pair[first:last] - first).tolist()
    for n, op in enumerate(ops):
        if partner[n] < 0:
            yield (op,)
        elif partner[n] > n:
            yield op, ops[partner[n]]


def _next_stages(row: Sequence[TorchCell]) -> list[list[int]]:
    """For every cell, the stages that this and the next cells use: the first three, whole cells only."""
    found: list[list[int]] = []
    coming: list[tuple[int, int]] = []
    for place in range(len(row) - 1, -1, -1):
        stages = list(dict.fromkeys(op.stage for op in row[place]))
        coming = [(place, stage) for stage in stages] + [entry for entry in coming if entry[1] not in stages]
        last = coming[min(GATHERED, len(coming)) - 1][0]
        found.append([stage for at, stage in coming if at <= last])
    return found[::-1]


def _with_gathers(row: Sequence[TorchCell]) -> Iterator[TorchCell]:
    gathered: set[int] = set()  # PyTorch frees in the order in which Python walks such a set; so it is one here too
    for cell, wanted in zip(row, _next_stages(row), strict=True):
        freed = [stage for stage in gathered if stage not in wanted]
        fetched = [stage for stage in wanted if stage not in gathered]
        gathered.difference_update(freed)
        gathered.update(fetched)
        yield from ((TorchOp(stage, "RESHARD"),) for stage in freed)
        yield from ((TorchOp(stage, "UNSHARD"),) for stage in fetched)
        yield cell
    yield from ((TorchOp(stage, "RESHARD"),) for stage in gathered)


def _with_reductions(row: Iterator[TorchCell], microbatches: int) -> Iterator[TorchCell]:
    left: dict[int, int] = {}
    for cell in row:
        yield cell
        for op in cell:
            if op.kind in ("B", "W"):
                left[op.stage] = left.get(op.stage, microbatches) - 1
                if left[op.stage] == 0:
                    yield (TorchOp(op.stage, "REDUCE_GRAD"),)


def _with_messages(rows: list[list[TorchCell]], home: list[int]) -> list[list[TorchCell]]:
    """Let the ranks take turns; see the rules above."""
    out: list[list[TorchCell]] = [[] for _ in rows]
    at = [0] * len(rows)
    done: set[TorchOp] = set()
    waiting = list(range(len(rows)))
    while waiting:
        moved = False
        for rank in waiting:
            cell = rows[rank][at[rank]]
            if not all(_ready(op, done, len(home)) for op in cell):
                continue
            moved = True
            at[rank] += 1
            out[rank].append(cell)
            for op in cell:
                forward = op.kind == "F"
                if not forward and op.kind not in ("B", "I"):
                    continue
                done.add(TorchOp(op.stage, "F" if forward else "B", op.microbatch))
                to = op.stage + (1 if forward else -1)
                if 0 <= to < len(home) and home[to] != rank:
                    way = "F" if forward else "B"
                    out[rank].append((TorchOp(op.stage, f"SEND_{way}", op.microbatch),))
                    out[home[to]].append((TorchOp(to, f"RECV_{way}", op.microbatch),))
        if not moved:
            stuck = ", ".join(f"rank {rank} at {torch_cell_text(rows[rank][at[rank]])}" for rank in waiting)
            raise DeadlockError(f"no action can start any more: {stuck}. Let one of them come later in its line")
        waiting = [rank for rank in waiting if at[rank] < len(rows[rank])]
    return out


def _ready(op: TorchOp, done: set[TorchOp], stages: int) -> bool:
    if op.kind == "F":
        return op.stage == 0 or TorchOp(op.stage - 1, "F", op.microbatch) in done
    if op.kind in ("B", "I"):
        return op.stage == stages - 1 or TorchOp(op.stage + 1, "B", op.microbatch) in done
    return True
