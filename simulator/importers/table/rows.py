"""Reading tables of measurements: a row is its texts; this room turns them into numbers, or says why it cannot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from simulator.errors import SpecError, nearest
from simulator.specs import CsvRows, read_bytes
from simulator.units import parse, sane

__all__ = ["CannotPlace", "Row", "count", "first_of", "flag", "number", "quantity", "read_rows", "text", "told_kind"]

Row = Mapping[str, str]
LARGEST_TABLE = 2**28
LARGEST_COUNT = 2**40
_KINDS = {
    "predictions": {"quantity", "measured", "predicted", "priced"},
    "schedules": {"schedule", "p", "m", "makespan"},
    "nccl": {"log_id", "collective", "ranks"},
    "gemm": {"op", "m", "n", "k", "tflops"},
    "memory": {"mem_unit", "peak_mem"},
    "runs": {"step_time_s", "n_gpus"},
}
"""Columns by which a table is told, in this order."""
_LIKE = 0.75
"""How like a name of a column must be to be taken for another one."""


_BLANK = frozenset(
    (
        "n/a",
        "n.a.",
        "na",
        "-",
        "--",
        "–",
        "—",
        "?",
        "nan",
        "null",
        "unknown",
        "not stated",
        "not given",
        "unspecified",
        "tbd",
    )
)
"""Words that tables leave in a field they have nothing for."""


class CannotPlace(Exception):
    """A row that is not predicted, and why.

    Args:
        reason: in words.
        counts: whether its inputs are given, so that it counts as an error of 100 %.
    """

    def __init__(self, reason: str, counts: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.counts = reason, counts


def first_of(error: ValidationError) -> str:
    """Return what is wrong first, behind the field in which it is."""
    told = error.errors()[0]
    return ": ".join((*map(str, told["loc"]), told["msg"].removeprefix("Value error, ")))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV with a header; lines with # before the header are passed over.

    Raises:
        SpecError: no such file, no text, too large, no header, or rows that do not fit it.
    """
    try:
        lines = read_bytes(path, LARGEST_TABLE, "table", place=str(path)).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise SpecError(f"{path}: expected a CSV in UTF-8") from None
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    rows: list[dict[str, str]] = []
    table = CsvRows(lines, str(path))
    names = Counter(name.strip() for name in table.fieldnames or () if name.strip())
    if twice := [name for name, count in names.items() if count > 1]:
        raise SpecError(
            f"{path}: columns have names of their own, but more than one is called {twice[0][:40]!r}. Way out: rename one"
        )
    for row in table:
        if None in row or None in row.values():
            raise SpecError(f"{path}, row {len(rows) + 1}: it has not as many fields as the header has columns")
        rows.append({key.strip(): (value or "").strip() for key, value in row.items()})
    if not rows:
        raise SpecError(f"{path}: expected a header and at least one row")
    return rows


def told_kind(rows: list[dict[str, str]], path: Path) -> str:
    """Return the kind of a table: predictions, schedules, nccl, gemm, memory or runs, told from its columns.

    Raises:
        SpecError: the columns fit none.
    """
    columns = set(rows[0])
    for kind, wanted in _KINDS.items():
        if wanted <= columns:
            return kind
    kinds = "; ".join(f"{kind}: {', '.join(sorted(wanted))}" for kind, wanted in _KINDS.items())
    meant = [
        f"{near[:40]!r} for {name}"
        for wanted in _KINDS.values()
        for name in sorted(wanted - columns)
        if wanted & columns and (near := nearest(name, columns - wanted, _LIKE))
    ]
    hint = f". Nearest: {', '.join(meant)}" if meant else ""
    raise SpecError(
        f"{path}: the columns do not tell what kind of table it is. Way out: --kind, or the columns of one ({kinds}){hint}"
    )


def text(row: Row, column: str) -> str:
    """Return a field's text, "" if the table has no such column or a word for nothing there.

    >>> text({"vp": "n/a", "tp": "8"}, "vp"), text({"vp": "n/a", "tp": "8"}, "tp")
    ('', '8')
    """
    word = row.get(column, "")
    return "" if word.strip().lower() in _BLANK else word


def number(row: Row, column: str) -> float | None:
    """Return a field as a finite number, None if it is empty.

    Raises:
        CannotPlace: it is no number.
    """
    word = text(row, column)
    if not word:
        return None
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not sane(value):
        raise CannotPlace(f"{column} must be a number, but it is {word[:40]!r}", counts=False)
    return value


def quantity(column: str, said: str, symbol: str) -> float:
    """Return what a column says with its unit, such as "80 GB", in SI units.

    Raises:
        CannotPlace: it is none, or beyond all magnitudes.
    """
    try:
        return parse(said, symbol)
    except ValueError as error:
        raise CannotPlace(f"{column}: {error}", counts=False) from None


def count(row: Row, column: str) -> int | None:
    """Return a field as a whole number above zero, None if it is empty.

    Raises:
        CannotPlace: it is none.
    """
    value = number(row, column)
    if value is None:
        return None
    if value < 1 or value != int(value) or value > LARGEST_COUNT:
        raise CannotPlace(
            f"{column} must be a whole number above zero, but it is {text(row, column)[:40]!r}", counts=False
        )
    return int(value)


def flag(row: Row, column: str) -> bool | None:
    """Return a field that says yes or no; None if it is empty.

    >>> flag({"oom": "1"}, "oom"), flag({"oom": "false"}, "oom"), flag({}, "oom")
    (True, False, None)
    """
    word = text(row, column).lower()
    if not word:
        return None
    if word in ("1", "1.0", "true", "yes", "on"):
        return True
    if word in ("0", "0.0", "false", "no", "off"):
        return False
    raise CannotPlace(f"{column} must be 0 or 1, but it is {word[:40]!r}", counts=False)
