"""Rows of an operator table, collected one by one and joined into columns."""

from __future__ import annotations

from typing import Any

from simulator.program.calls import FETCHED, JOINED, STREAM, SYNCHRONISED
from simulator.program.operator_table import operator_table
from simulator.program.program import COMPUTE, EAGER, OperatorTable
from simulator.workload.graph import Op

__all__ = ["Rows", "fetch", "synchronise"]


_PLAIN: dict[str, Any] = {
    "label": "",
    "kind": COMPUTE,
    "work": "",
    "shape": (0, 0, 0, 0),
    "call": None,
    "dtype": "",
    "flops": 0.0,
    "read": 0.0,
    "written": 0.0,
    "message": 0.0,
    "group": (),
    "phase": "forward",
    "launches": 1,
    "part": "",
    "beside": -1,
    "captured": EAGER,
}
"""A row of which nothing is said."""


class Rows:
    """Collects rows of one table; collectives refer to earlier or later rows by their index.

    `ops` has for every row the operation of the layer's graph that it runs; None of a row that no operation asks for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []
        self.ops: list[Op | None] = []

    def add(self, **row: Any) -> int:
        """Append a row; returns its index."""
        made = _PLAIN | row
        if made["call"] is None and made["work"] == "memory_bound":
            made["call"] = STREAM
        self.rows.append(made)
        self.ops.append(None)
        return len(self.rows) - 1

    def mark(self, first: int, captured: int, op: Op) -> None:
        """Say of all rows from the first-th on what starts them, and which operation they run."""
        for row in self.rows[first:]:
            row["captured"] = captured
        self.ops[first:] = [op] * (len(self.rows) - first)

    def join(self, others: Rows) -> None:
        """Append the rows of others, which stay as they are."""
        start = len(self.rows)
        self.rows += [row | {"beside": row["beside"] + start} if row["beside"] >= 0 else row for row in others.rows]
        self.ops += others.ops

    def table(self, half: str = "") -> OperatorTable:
        """Return the table, or one half of a split backward: weight gradients apart from all else."""
        rows, name = self.rows, self.name
        if half:
            keep = [i for i, r in enumerate(rows) if (r["part"] == "weight") == (half == "weight")]
            place = {old: new for new, old in enumerate(keep)} | {-1: -1}
            rows = [rows[i] | {"beside": place.get(rows[i]["beside"], -1)} for i in keep]
            name = f"{name}, {half} gradient"
        if not rows:
            return operator_table(name, {})
        return operator_table(name, dict(zip(_PLAIN, zip(*[row.values() for row in rows], strict=True), strict=True)))


def synchronise(rows: Rows, phase: str) -> None:
    """Let the host wait for the GPU here, before it starts what follows."""
    part = "input" if phase == "backward" else ""
    rows.add(
        label="layer synchronised",
        work="memory_bound",
        call=SYNCHRONISED,
        phase=phase,
        part=part,
        launches=0,
        dtype="fp32",
    )


def fetch(rows: Rows, label: str, modules: int, phase: str, slices: int = 0) -> None:
    """Let the host fetch the weights of modules here, before it starts what they compute.

    Args:
        slices: parts of theirs that it handles one by one.
    """
    rows.add(
        label=f"{label} weights fetched", work="memory_bound", call=FETCHED, phase=phase, launches=modules, dtype="fp32"
    )
    if slices:
        rows.add(
            label=f"{label} weights joined",
            work="memory_bound",
            call=JOINED,
            phase=phase,
            launches=slices,
            dtype="fp32",
        )
