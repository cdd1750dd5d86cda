"""Rows of an operator table, collected one by one and joined into columns."""

from __future__ import annotations

from typing import Any, NamedTuple

from simulator.program.calls import FETCHED, JOINED, STREAM, SYNCHRONISED, Call
from simulator.program.operator_table import operator_table
from simulator.program.program import COLLECTIVE, COMPUTE, EAGER, OperatorTable
from simulator.workload.graph import Op

__all__ = ["Row", "Rows", "fetch", "synchronise", "usual_half"]


class Row(NamedTuple):
    """One row: a number or word for every column of `OperatorTable`."""

    label: str = ""
    kind: int = COMPUTE
    work: str = ""
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    call: Call = None
    dtype: str = ""
    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    message: float = 0.0
    group: tuple[str, ...] = ()
    phase: str = "forward"
    launches: int = 1
    part: str = ""
    beside: int = -1
    captured: int = EAGER


def usual_half(phase: str) -> str:
    """Return the half of a backward that rows belong to, unless they are said to be of the weights'."""
    return "input" if phase == "backward" else ""


class Rows:
    """Collects rows of one table; collectives refer to earlier or later rows by their index.

    `ops` has for every row the operation of the layer's graph that it runs; None of a row that no operation asks for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.ops: list[Op | None] = []

    def add(self, **columns: Any) -> int:
        """Append a row; returns its index."""
        self.rows.append(Row(**columns))
        self.ops.append(None)
        return len(self.rows) - 1

    def moves(
        self,
        label: str,
        dtype: str,
        read: float,
        written: float,
        phase: str,
        launches: int = 1,
        part: str | None = None,
        call: Call = STREAM,
        flops: float = 0.0,
    ) -> int:
        """Append a kernel that moves so many bytes; returns its index.

        Args:
            part: left out: what runs backward belongs to the gradient of the input.
        """
        return self.add(
            label=label,
            work="memory_bound",
            call=call,
            dtype=dtype,
            flops=flops,
            read=read,
            written=written,
            phase=phase,
            launches=launches,
            part=usual_half(phase) if part is None else part,
        )

    def sends(
        self, label: str, collective: str, message: float, group: tuple[str, ...], dtype: str, phase: str, **more: Any
    ) -> int:
        """Append a collective, whose name ends its label; returns its index.

        Args:
            message: as in `OperatorTable` [B].
            group: mesh axes of its ranks.
            more: other columns.
        """
        return self.add(
            label=f"{label} {collective}",
            kind=COLLECTIVE,
            work=collective,
            message=message,
            group=group,
            dtype=dtype,
            phase=phase,
            **more,
        )

    def mark(self, first: int, captured: int, op: Op) -> None:
        """Say of all rows from the first-th on what starts them, and which operation they run."""
        self.rows[first:] = [
            row if row.captured == captured else row._replace(captured=captured) for row in self.rows[first:]
        ]
        self.ops[first:] = [op] * (len(self.rows) - first)

    def join(self, others: Rows) -> None:
        """Append the rows of others."""
        start = len(self.rows)
        self.rows += [row._replace(beside=row.beside + start) if row.beside >= 0 else row for row in others.rows]
        self.ops += others.ops

    def table(self, half: str = "") -> OperatorTable:
        """Return the table, or one half of a split backward: weight gradients apart from all else."""
        rows, name = self.rows, self.name
        if half:
            keep = [i for i, row in enumerate(rows) if (row.part == "weight") == (half == "weight")]
            place = {old: new for new, old in enumerate(keep)}
            found = [rows[i] for i in keep]
            rows = [row._replace(beside=place.get(row.beside, -1)) if row.beside >= 0 else row for row in found]
            name = f"{name}, {half} gradient"
        return operator_table(name, dict(zip(Row._fields, zip(*rows, strict=True), strict=True)) if rows else {})


def synchronise(rows: Rows, phase: str) -> None:
    """Let the host wait for the GPU here, before it starts what follows."""
    rows.moves("layer synchronised", "fp32", 0.0, 0.0, phase, launches=0, call=SYNCHRONISED)


def fetch(rows: Rows, label: str, modules: int, phase: str, slices: int = 0) -> None:
    """Let the host fetch the weights of modules here, before it starts what they compute.

    Args:
        slices: parts of theirs that it handles one by one.
    """
    rows.moves(f"{label} weights fetched", "fp32", 0.0, 0.0, phase, launches=modules, part="", call=FETCHED)
    if slices:
        rows.moves(f"{label} weights joined", "fp32", 0.0, 0.0, phase, launches=slices, part="", call=JOINED)
