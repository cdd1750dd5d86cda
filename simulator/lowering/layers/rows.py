"""Rows of an operator table, collected one by one and joined into columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.program.calls import FETCHED, STREAM, SYNCHRONISED
from simulator.program.program import COMPUTE, EAGER, OperatorTable

__all__ = ["Rows", "fetch", "synchronise"]


class Rows:
    """Collects rows of one table; collectives refer to earlier or later rows by their index."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> int:
        """Append a row; returns its index."""
        if row.get("work") == "memory_bound":
            row.setdefault("call", STREAM)
        self.rows.append(row)
        return len(self.rows) - 1

    def mark(self, first: int, captured: int) -> None:
        """Say of all rows from the first-th on what starts them."""
        for row in self.rows[first:]:
            row["captured"] = captured

    def table(self, half: str = "") -> OperatorTable:
        """Return the table, or one half of a split backward: weight gradients apart from all else."""
        rows, name = self.rows, self.name
        if half:
            keep = [i for i, r in enumerate(rows) if (r.get("part") == "weight") == (half == "weight")]
            place = {old: new for new, old in enumerate(keep)}
            rows = [{**rows[i], "beside": place.get(rows[i].get("beside", -1), -1)} for i in keep]
            name = f"{name}, {half} gradient"

        def column(key: str, default: Any, dtype: Any) -> Any:
            out = np.array([r.get(key, default) for r in rows], dtype)
            out.flags.writeable = False
            return out

        def words(key: str, default: Any) -> tuple[Any, ...]:
            return tuple(r.get(key, default) for r in rows)

        return OperatorTable(
            name=name,
            label=words("label", ""),
            kind=column("kind", COMPUTE, np.int8),
            work=words("work", ""),
            shape=column("shape", (0, 0, 0, 0), np.int64).reshape(-1, 4),
            call=words("call", None),
            dtype=words("dtype", ""),
            flops=column("flops", 0.0, np.float64),
            read=column("read", 0.0, np.float64),
            written=column("written", 0.0, np.float64),
            message=column("message", 0.0, np.float64),
            group=words("group", ()),
            phase=words("phase", "forward"),
            launches=column("launches", 1, np.int64),
            part=words("part", ""),
            beside=column("beside", -1, np.int32),
            captured=column("captured", EAGER, np.int8),
        )


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


def fetch(rows: Rows, label: str, modules: int, phase: str) -> None:
    """Let the host fetch the weights of modules here, before it starts what they compute."""
    rows.add(
        label=f"{label} weights fetched", work="memory_bound", call=FETCHED, phase=phase, launches=modules, dtype="fp32"
    )
