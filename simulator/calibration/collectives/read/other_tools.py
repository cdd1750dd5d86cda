"""Tables of other tools: all-reduce benchmarks written with PyTorch, and CSV with one row per message.

    | payload |    busbw   |    algbw   |        a table in pipes; bandwidths with their unit, sizes as powers of two
    |    1MiB |  39.93GBps |  22.82GBps |        (KB in such tables is 1,024 bytes: the sizes are 2^15, 2^16, ...)

A time is used where the table has one; else it is made of the bandwidth with more digits, and rows whose digits leave it
open by more than two per cent are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from simulator.calibration.collectives.read.benchmark_table import BenchmarkRow, Header, collective_in
from simulator.calibration.collectives.read.nccl_json import read_reported
from simulator.calibration.collectives.read.nccl_text import TextTable
from simulator.errors import CalibrationError
from simulator.specs import CsvRows
from simulator.units import parse, plain_number

__all__ = ["read_bench_tables", "read_csv_table", "read_report"]

_OPEN = 0.02
"""Rounding that a row may have [1]."""
_RANKS = re.compile(r"\bof (\w+) (?:over|on) (\d+) (?:ranks?|devices)\b|\branks?\s*[:=]\s*(\d+)", re.IGNORECASE)
_PARAM = re.compile(r"COMMS-RES-(\w+?)-")
_GPU = re.compile(r"name='([^']+)'|\b\d+x\s+((?:NVIDIA|AMD)[^(,\n]*)", re.IGNORECASE)
_NCCL = re.compile(r"nccl\s*[=:]\s*\(?([\d., ]+\d)")
_TORCH = re.compile(r"torch\s*[=:]+\s*([\w.+]+)")
_QUANTITY = re.compile(r"\s*~?\s*([\d.]+)\s*([A-Za-zµ/]*)\s*\Z")
_SIZES = ("payload", "size", "size_bytes", "size (bytes)", "size (b)", "bytes", "message size")
_TIMES = ("latency median", "latency", "time", "duration", "time_us", "latency(us):p50", "mean")
_BUS = ("busbw", "busbw_gbps", "bus bandwidth", "busbw(gb/s)", "busbw (gbps)")
_ALGORITHM = ("algbw", "algbw_gbps", "alg bandwidth", "algbw(gb/s)", "throughput (gbps)")


def read_bench_tables(text: str) -> list[TextTable]:
    """Return the tables in pipes that speak of message sizes and bandwidths; none when there are none."""
    tables: list[TextTable] = []
    header, columns, rows, dropped = Header(), None, list[BenchmarkRow](), 0

    def close() -> None:
        if rows:
            remarks = [f"{dropped} rows whose digits are too few were left out"] if dropped else []
            tables.append(TextTable(header, list(rows), remarks))

    for number, line in enumerate(text.splitlines(), 1):
        cells = _cells(line)
        found = _columns(cells) if len(cells) > 1 else None
        if found is not None:
            close()
            header, columns, rows, dropped = _inherited(header, bool(rows)), found, [], 0
            _take(line, header)
        elif columns is not None and len(cells) > max(columns.values()):
            row = _row(cells, columns, header, number)
            if row is not None and row.message > 0:
                rows.append(row)
            elif row is None and cells[0][:1].isdigit():
                dropped += 1
        elif not cells:
            if rows and line.strip():
                close()
                header, columns, rows, dropped = _inherited(header, True), None, [], 0
            _take(line, header)
    close()
    return tables


def _cells(line: str) -> list[str]:
    """Return the cells of a line: between pipes, or where none stands, tabs, wide gaps or commas."""
    plain = line.strip()
    if "|" in plain:
        return [cell.strip() for cell in plain.strip("|").split("|")]
    cells = re.split(r"\s*\t\s*|\s{2,}", plain)
    if len(cells) < 3 and " " not in plain:
        cells = re.split(r"[,;]", plain)
    return [cell.strip() for cell in cells] if len(cells) > 2 else []


def _inherited(header: Header, used: bool) -> Header:
    """Return the header of the next table: the machine stays, the collective and the ranks are said again."""
    return Header(gpu=header.gpu, versions=dict(header.versions)) if used else header


def _take(line: str, header: Header) -> None:
    if found := _RANKS.search(line):
        header.kind = collective_in(found.group(1) or "") or header.kind
        header.ranks = int(found.group(2) or found.group(3))
    if found := _PARAM.search(line):
        header.kind = collective_in(found.group(1))
    if found := _GPU.search(line):
        header.gpu = (found.group(1) or found.group(2)).strip()
    if found := _NCCL.search(line):
        header.versions["NCCL"] = re.sub(r",\s*", ".", found.group(1)).strip(" .")
    if found := _TORCH.search(line):
        header.versions["torch"] = found.group(1)


def _columns(cells: Sequence[str]) -> dict[str, int] | None:
    """Return where size, time and bandwidths stand, None when this is no heading of such a table."""
    plain = [re.sub(r"[*`]", "", cell).strip().lower() for cell in cells]
    at = {}
    for key, words in (("size", _SIZES), ("time", _TIMES), ("bus", _BUS), ("algorithm", _ALGORITHM)):
        place = next((plain.index(word) for word in words if word in plain), None)
        if place is not None:
            at[key] = place
    return at if "size" in at and len(at) > 1 else None


def _row(cells: Sequence[str], at: Mapping[str, int], header: Header, number: int) -> BenchmarkRow | None:
    """Return the row, None when its digits are too few or it is none."""
    size = _bytes(cells[at["size"]])
    if size is None:
        return None
    bus, algorithm = (_rate(cells[at[key]]) if key in at else None for key in ("bus", "algorithm"))
    seconds = _seconds(cells[at["time"]]) if "time" in at else None
    if seconds is None:
        factor = bus[0] / algorithm[0] if bus and algorithm and algorithm[0] > 0 else 0.0
        if header.ranks > 1 and collective_in(header.kind or "all_reduce") == "all_reduce":
            factor = 2 * (header.ranks - 1) / header.ranks
        ways = [(algorithm[0], algorithm[1])] if algorithm else []
        ways += [(bus[0] / factor, bus[1])] if bus and factor > 0 else []
        rate, error = min(ways, key=lambda way: way[1], default=(0.0, math.inf))
        if rate <= 0 or error > _OPEN:
            return None
        seconds = size / rate
    nan = math.nan
    return BenchmarkRow(
        message=size,
        seconds=(seconds, nan),
        algorithm_bandwidth=(algorithm[0] if algorithm else nan, nan),
        bus_bandwidth=(bus[0] if bus else nan, nan),
        wrong=False,
        line=number,
    )


def _bytes(text: str) -> float | None:
    """Return bytes; K, M and G are powers of 1,024 in these tables, with or without an i."""
    found = _QUANTITY.match(text)
    if not found:
        return None
    unit = found.group(2)
    if unit in ("", "B"):
        return float(found.group(1))
    return parse(f"{found.group(1)} {unit[0].upper()}iB", "B") if unit[0].upper() in "KMGT" else None


def _rate(text: str) -> tuple[float, float] | None:
    """Return (rate [B/s], half a last digit over the rate); numbers without a unit are 10^9 B/s."""
    found = _QUANTITY.match(text)
    if not found:
        return None
    value, unit = float(found.group(1)), found.group(2) or "GBps"
    unit = re.sub(r"([bB])ps\Z", r"\1/s", unit)
    if value <= 0:
        return None
    digits = len(found.group(1).partition(".")[2])
    try:
        return parse(f"{found.group(1)} {unit}", "B/s"), 0.5 * 10.0**-digits / value
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    """Return a time; numbers without a unit are microseconds, as these tools print them."""
    found = _QUANTITY.match(text)
    if not found or float(found.group(1)) <= 0:
        return None
    try:
        return parse(f"{found.group(1)} {found.group(2) or 'us'}", "s")
    except ValueError:
        return None


_REPORT = ("numCycle", "name", "ranks", "ranksPerNode", "gpusPerRank", "size", "type", "redop", "inPlace", "time",
           "algBw", "busBw", "wrong")  # fmt: skip


def read_report(text: str, name: str) -> list[TextTable]:
    """Return the tables of the CSV that rccl-tests writes with -x FILE -Z csv; none when it is no such file.

    Built with MPI it writes the nodes into each row but not into the heading.

    Raises:
        CalibrationError: as `read_reported`.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].lower().startswith("numcycle,"):
        return []
    keys = {1: _REPORT, 0: (*_REPORT[:2], "gpus", *_REPORT[5:])}["ranks" in lines[0].lower()]
    content = []
    for line in lines[1:]:
        values = [value.strip().strip('"') for value in line.split(",")]
        named = (*keys[:2], "nodes", *keys[2:]) if len(values) == len(keys) + 1 else keys
        if len(values) == len(named):
            content.append(dict(zip(named, values, strict=True)))
    return read_reported(content, name)


def read_csv_table(text: str, name: str) -> TextTable | None:
    """Return the table of a CSV with the columns size_bytes and time_us, None when its heading has not these.

    Rows of one size, in and out of place, count each for itself; rows of 0 bytes are passed over.

    Raises:
        CalibrationError: a row's number cannot be read; names the line.
    """
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    reader = CsvRows(lines, name, CalibrationError)
    if not {"size_bytes", "time_us"} <= set(reader.fieldnames or ()):
        return None
    header, rows = Header(), []
    for number, row in enumerate(reader, 2):
        try:
            size, time = plain_number(row["size_bytes"]), plain_number(row["time_us"])
        except (TypeError, ValueError):
            raise CalibrationError(
                f"{name}, line {number}: size_bytes and time_us must be numbers, got {dict(row)}"
            ) from None
        header.kind = header.kind or collective_in(row.get("collective") or "")
        if size > 0 and time > 0 and math.isfinite(size * time):
            seconds, nan = parse(f"{time} us", "s"), math.nan
            pair = (nan, seconds) if row.get("placement") == "in_place" else (seconds, nan)
            rates = (size / pair[0], size / pair[1])
            rows.append(BenchmarkRow(size, pair, rates, (nan, nan), False, number))
    return TextTable(header, rows, [])
