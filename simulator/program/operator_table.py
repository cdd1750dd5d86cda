"""A table of operators from its columns as lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from simulator.program.program import OperatorTable

__all__ = ["operator_table"]

_COLUMNS = tuple(field.name for field in fields(OperatorTable) if field.name != "name")
_NUMBERS: Mapping[str, DTypeLike] = {
    "kind": np.int8, "shape": np.int64, "flops": np.float64, "read": np.float64, "written": np.float64, "message": np.float64,
    "launches": np.int64, "beside": np.int32, "captured": np.int8,
}  # fmt: skip
"""Columns of numbers."""


def operator_table(name: str, columns: Mapping[str, Sequence[Any]]) -> OperatorTable:
    """Return a table of operators of its columns, those of numbers made arrays that nobody changes; without any, a table of no rows."""
    made: dict[str, Any] = {column: columns.get(column, ()) for column in _COLUMNS}
    for column, dtype in _NUMBERS.items():
        numbers = np.array(made[column], dtype)
        made[column] = numbers.reshape(-1, 4) if column == "shape" else numbers
        made[column].flags.writeable = False
    return OperatorTable(name=name, **made)
