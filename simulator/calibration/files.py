"""Logs and tables of measurements, read with a limit."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from simulator.errors import CalibrationError
from simulator.specs import CsvRows, read_bytes

__all__ = ["LARGEST", "csv_rows", "digest", "digests", "read_measurements", "read_table"]

Made = TypeVar("Made")


LARGEST = 2**26
"""Bytes of a log or a table."""


def read_table(path: Path | str) -> str:
    """Return the text of a table.

    Raises:
        CalibrationError: no regular file, larger than 64 MiB, or not UTF-8.
    """
    raw = read_bytes(path, LARGEST, "table", CalibrationError, str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path}: cannot be read (byte {error.start} is not UTF-8)") from None


def csv_rows(path: Path | str) -> list[dict[str, str]]:
    """Return the rows of a CSV with a header.

    Raises:
        CalibrationError: no regular file, too large, no text, or no CSV.
    """
    return list(CsvRows(read_table(path).splitlines(), str(path), CalibrationError))


def read_measurements(path: Path | str, what: str, make: Callable[[dict[str, str]], Made | None]) -> list[Made]:
    """Return what is made of the rows of a table; lines that begin with # are passed over.

    Args:
        what: the table holds, for the message where it lacks a column.
        make: a measurement of a row, None of a row of another kind; it may raise ValueError, and what numbers raise that are none.

    Raises:
        CalibrationError: no such file, a column is missing, or a row cannot be read; names file and line.
    """
    lines = [(number, line) for number, line in enumerate(read_table(path).splitlines(), 1) if not line.startswith("#")]
    reader = CsvRows([line for _, line in lines], str(path), CalibrationError)
    try:
        return [made for row in reader if (made := make(row)) is not None]
    except KeyError as error:
        raise CalibrationError(f"{path}: a table of {what} needs the column {error.args[0]!r}") from None
    except (ValueError, TypeError, OverflowError, csv.Error) as error:
        raise CalibrationError(f"{path}, line {lines[reader.line_num - 1][0]}: {error}") from None


def digest(path: Path) -> str:
    """Return by which profiles know a file: the first 16 digits of its sha256."""
    return hashlib.sha256(read_bytes(path, LARGEST, "table", CalibrationError, str(path))).hexdigest()[:16]


def digests(paths: Iterable[Path]) -> str:
    """Return the names of files with their digests, for the source of what was fitted to them."""
    return ", ".join(f"{path.name} {digest(path)}" for path in paths if path.is_file())
