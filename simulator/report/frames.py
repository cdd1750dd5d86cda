"""Answers as tables: pandas frames, CSV and Parquet files, and what a notebook shows.

    answer.tables() --> records by name --> to_frame()      a frame; its columns and units are those of `columns`
                                        --> _repr_html_()   the first table, numbers with their units
                                        --> write_table()   OUT.csv or OUT.parquet

pandas and pyarrow are imported only when a frame or a file is asked for.
"""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import UnknownNameError
from simulator.report.columns import column_of
from simulator.report.table import Table, percent
from simulator.specs import ending_error, replacing
from simulator.units import show

if TYPE_CHECKING:
    import pandas

__all__ = ["ENDINGS", "Record", "Records", "Stacked", "Tabular", "check_table", "records_table", "write_table"]

Record = Mapping[str, Any]
"""Column -> name, number, truth, or None where there is none."""
Records = Callable[[], Iterable[Record]]
ENDINGS = (".csv", ".parquet")
"""Of files that hold a table."""
_BATCH = 2048
"""Rows of a file that are written together: the memory for a table does not grow with it where its rows are made one by one."""
_MOST_SHOWN = 100
"""Rows that a notebook shows."""
_SHOWN_UNITS = ("s", "B", "B/s", "FLOP/s", "J")


class Tabular(abc.ABC):
    """An answer: one JSON object, and tables."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Let no dataclass write its own `repr`: of a prediction it would be a quarter of a million characters."""
        super().__init_subclass__()
        cls.__repr__ = Tabular.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """What a console shows: the first table."""
        records = self.records()
        more = f"\n... and {len(records) - _MOST_SHOWN:,} more rows" if len(records) > _MOST_SHOWN else ""
        return f"{type(self).__name__}\n{records_table(records[:_MOST_SHOWN]).text(2)}{more}"

    @abc.abstractmethod
    def tables(self) -> dict[str, Records]:
        """Return the tables by name, the one that says most first; each makes its rows when it is called."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""

    def records(self, table: str | None = None) -> list[Record]:
        """Return the rows of a table, by default of the first.

        Raises:
            UnknownNameError: it has no such table.
        """
        return list(self._maker(table)())

    def _maker(self, table: str | None) -> Records:
        tables = self.tables()
        name = next(iter(tables)) if table is None else table
        if name not in tables:
            raise UnknownNameError("table", name, tables)
        return tables[name]

    def to_frame(self, table: str | None = None) -> pandas.DataFrame:
        """Return a table as a pandas frame, by default the first; `attrs["units"]` has the unit of every column that has one.

        Raises:
            UnknownNameError: it has no such table.
        """
        records = self.records(table)
        return _Columns(records).frame(records)

    def _repr_html_(self) -> str:
        """What a notebook shows: the first table."""
        records = self.records()
        more = f"<p>... and {len(records) - _MOST_SHOWN:,} more rows</p>" if len(records) > _MOST_SHOWN else ""
        return records_table(records[:_MOST_SHOWN]).html() + more


class _Column:
    """What is to be known of a column before its first row is written: the types of its values, and one of them."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.one: Any = None
        self.rows = 0

    def add(self, value: Any) -> None:
        """Look at the value of one more row."""
        if value is not None:
            self.kinds.add(float if isinstance(value, float) else type(value))
            self.one = value if self.one is None else self.one
            self.rows += 1

    def dtype(self, name: str, rows: int) -> str | None:
        """How pandas keeps numbers and truths, of which some may be missing in so many rows; None = as it finds best."""
        if self.kinds == {int, float} or (not self.kinds and column_of(name).unit):
            return "float64"
        if self.rows == rows or len(self.kinds) != 1:
            return None
        return {int: "Int64", bool: "boolean", float: "float64"}.get(next(iter(self.kinds)))


class _Columns:
    """The columns of records; made in one pass over them."""

    def __init__(self, records: Iterable[Record]) -> None:
        found: dict[str, _Column] = {}
        rows = 0
        for record in records:
            rows += 1
            for name, value in record.items():
                found.setdefault(name, _Column()).add(value)
        self.dtypes = {name: column.dtype(name, rows) for name, column in found.items()}
        self.mixed = [name for name, column in found.items() if len(column.kinds) > 1 and self.dtypes[name] is None]
        self.sample = {name: column.one for name, column in found.items()}

    def frame(self, records: Sequence[Record]) -> pandas.DataFrame:
        """Return some of the records as a frame."""
        import pandas

        series = {
            name: pandas.Series([record.get(name) for record in records], dtype=dtype)
            for name, dtype in self.dtypes.items()
        }
        frame = pandas.DataFrame(series)
        frame.attrs["units"] = {name: unit for name in self.dtypes if (unit := column_of(name).unit)}
        return frame


@dataclass(frozen=True, slots=True)
class Stacked(Tabular):
    """Several answers of one kind as one, their rows below one another."""

    answers: tuple[Tabular, ...]

    def tables(self) -> dict[str, Records]:
        """Those of the first, each with the rows of all."""
        return {name: partial(self._rows, name) for name in self.answers[0].tables()}

    def to_dict(self) -> dict[str, Any]:
        """Return all of them."""
        return {"rows": [answer.to_dict() for answer in self.answers]}

    def _rows(self, name: str) -> list[Record]:
        return [record for answer in self.answers for record in answer.records(name)]


def records_table(records: Sequence[Record]) -> Table:
    """Return rows to read, numbers with their units: one row as a list, several as a table without its empty columns.

    >>> print(records_table([{"name": "a", "step_time_s": 2.0, "mfu": 0.5}]).text())
    name         a
    step_time_s  2 s
    mfu          50.0 %
    """
    names = [
        name
        for name in dict.fromkeys(name for record in records for name in record)
        if any(record.get(name) not in (None, "") for record in records)
    ]
    cells = [[_shown(name, record.get(name)) for name in names] for record in records]
    if len(records) == 1:
        return Table(headings=("", ""), rows=tuple(zip(names, cells[0], strict=True)), left=(0, 1))
    left = tuple(i for i, name in enumerate(names) if any(isinstance(record.get(name), str) for record in records))
    return Table(headings=tuple(names), rows=tuple(map(tuple, cells)), left=left)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    unit = column_of(name).unit
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if unit == "1":
        return percent(float(value))
    if unit in _SHOWN_UNITS:
        return show(float(value), unit)
    text = str(value)
    if isinstance(value, int | float):
        text = f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


def check_table(path: str) -> None:
    """Refuse a file whose ending is none of a table, before anything is computed.

    Raises:
        SpecError: it is none.
    """
    if Path(path).suffix.lower() not in ENDINGS:
        raise ending_error("table", path, ENDINGS)


def write_table(answer: Tabular, path: str, table: str | None = None) -> str:
    """Write a table of an answer; the file's ending chooses the format.  Parquet keeps the units with the columns.

    Returns:
        The path; "" where the table has no rows, and so no columns: nothing is written then.

    Raises:
        SpecError: an ending that is none of a table.
        UnknownNameError: the answer has no such table.
    """
    check_table(path)
    make = answer._maker(table)
    rows = make()
    columns = _Columns(rows)
    if not columns.dtypes:
        return ""
    again = iter(rows if isinstance(rows, Sequence) else make())
    with replacing(path) as beside:
        write = _csv if Path(path).suffix.lower() == ".csv" else _parquet
        write(beside, columns, iter(lambda: list(islice(again, _BATCH)), []))
    return path


def _csv(path: Path, columns: _Columns, batches: Iterable[Sequence[Record]]) -> None:
    for number, records in enumerate(batches):
        columns.frame(records).to_csv(path, index=False, mode="a" if number else "w", header=not number)


def _parquet(path: Path, columns: _Columns, batches: Iterable[Sequence[Record]]) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    def table(records: Sequence[Record], schema: Any = None) -> Any:
        frame = columns.frame(records)
        for name in columns.mixed:  # Parquet's have one type
            frame[name] = frame[name].map(str, na_action="ignore")
        found = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
        units = {b"PANDAS_ATTRS": json.dumps(frame.attrs).encode()}
        return found.replace_schema_metadata({**found.schema.metadata, **units})

    schema = table([columns.sample]).schema
    with ParquetWriter(path, schema) as file:
        for records in batches:
            file.write_table(table(records, schema))
