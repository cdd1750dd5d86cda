"""Reads a file of timed collectives, whichever tool wrote it, and says in one sentence why it cannot.

read_log("job-1234.out")  ->  one `BenchmarkTable` per table in the file
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from simulator.calibration.collectives.read.benchmark_table import BenchmarkTable
from simulator.calibration.collectives.read.nccl_json import read_json
from simulator.calibration.collectives.read.nccl_text import TextTable, read_text
from simulator.calibration.collectives.read.other_tools import read_bench_tables, read_csv_table, read_report
from simulator.calibration.files import LARGEST
from simulator.errors import CalibrationError
from simulator.specs import read_bytes

__all__ = ["read_log"]

_FEWEST = 3
_MARKS = {
    b"\x1f\x8b": "is compressed by gzip; unpack it first",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; unpack it first",
    b"\x7fELF": "is a program, not its output",
}


def read_log(path: Path | str) -> list[BenchmarkTable]:
    """Return the tables of a file: text or JSON of nccl-tests, a PyTorch benchmark's table, or CSV.

    Raises:
        CalibrationError: no such file, no text, or no table of at least three rows; one sentence that names the file.
    """
    path = Path(path)
    raw = _bytes(path)
    text = _unwrapped(_text(raw, path))
    tables = _tables(text, path)
    rows = sum(len(table.rows) for table in tables)
    if not rows:
        raise CalibrationError(f"{path}: {_why_empty(text)}")
    long = [table for table in tables if len({row.message for row in table.rows}) >= _FEWEST]
    if not long:
        sizes = max(len({row.message for row in table.rows}) for table in tables)
        raise CalibrationError(
            f"{path}: a fit needs at least {_FEWEST} message sizes, but its {rows} row(s) are of {sizes}; an excerpt, or "
            f"the log is truncated"
        )
    digest = hashlib.sha256(raw).hexdigest()[:16]
    return [
        BenchmarkTable(
            name=path.stem if len(long) == 1 else f"{path.stem}_{number}",
            header=table.header,
            rows=tuple(table.rows),
            remarks=tuple(table.remarks),
            digest=digest,
        )
        for number, table in enumerate(long, 1)
    ]


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise CalibrationError(f"{path}: is a directory; name the logs in it")
    raw = read_bytes(path, LARGEST, "log; keep its tables and drop the trace", CalibrationError, str(path))
    if not raw.strip():
        raise CalibrationError(f"{path}: is empty; did the job write its output elsewhere?")
    return raw


def _text(raw: bytes, path: Path) -> str:
    mark = next((why for start, why in _MARKS.items() if raw.startswith(start)), None)
    if mark:
        raise CalibrationError(f"{path}: {mark}")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", errors="replace")
    if b"\0" in raw:
        raise CalibrationError(f"{path}: is no text (a zero byte at {raw.index(0)}); expected the output of nccl-tests")
    return raw.decode("utf-8-sig", errors="replace")


def _unwrapped(text: str) -> str:
    """Return what a container said, where its runtime wrapped each line in JSON with the key "log"."""
    if not text.lstrip().startswith('{"log":'):
        return text
    said = []
    for line in text.splitlines():
        try:
            said.append(str(json.loads(line)["log"]).rstrip("\r\n"))
        except (ValueError, KeyError, TypeError):
            said.append(line)
    return "\n".join(said)


def _tables(text: str, path: Path) -> list[TextTable]:
    if text.lstrip()[:1] in "{[":
        try:
            return read_json(json.loads(text), str(path))
        except RecursionError:
            raise CalibrationError(f"{path}: is JSON nested too deeply") from None
        except ValueError as error:
            if '"results"' in text or '"nccl_version"' in text:
                raise CalibrationError(f"{path}: is JSON that breaks off or is damaged ({error})") from None
    table = read_csv_table(text, str(path))
    if table is not None:
        return [table]
    return read_report(text, str(path)) or read_text(text) or read_bench_tables(text)


def _why_empty(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    seen = text.lower()
    if "busbw" in seen or "nthread" in seen or "nccl-tests" in seen:
        return "has the preamble of nccl-tests but not one row of times: the run failed or the log is truncated"
    if "size_bytes" in seen:
        return "is a table without rows"
    start = lines[0].strip()[:50] if lines else ""
    return (
        f"is of another tool: {len(lines)} lines without one row of nccl-tests (size, count, type, ..., time, algbw, "
        f"busbw); it starts with {start!r}"
    )
