"""The text that nccl-tests and rccl-tests print, as it lies in people's files.

In front of a line may stand what mpirun, srun or a logger put there; between the rows lie messages of NCCL, schedulers
and shells; the "#" of comments may have been lost; columns came and went with the versions (root, error or #wrong, N/A
for unchecked, per-step statistics).  So a row is found by its heart - two counts and a number format - and its times
by what must hold: bytes over time is the algorithm bandwidth printed beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.calibration.collectives.read.benchmark_table import BenchmarkRow, Device, Header, collective_in
from simulator.units import in_unit, parse

__all__ = ["TextTable", "read_text", "spelled"]

_TYPES = {
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "char", "int",
    "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "fp16", "fp32", "fp64", "bf16",
}  # fmt: skip
_OPERATIONS = {"sum", "prod", "min", "max", "avg", "mulsum", "none", "all"}
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\Z")
_DEVICE = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]\s+(.*\S)"
)
_OPTIONS = re.compile(r"nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)\s+minBytes:?\s+(\d+)\s+maxBytes:?\s+(\d+)")
_TEST = re.compile(r"Collective test starting:\s*(\S+)")
_COMMAND = re.compile(r"\b((?:all|reduce|broadcast|sendrecv|gather|scatter|hypercube|alltoall)\w*)_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"nccl-tests version\s+(\S+)(?:.*nccl-library=(\d+))?")
_RUNNING = re.compile(r"\b([NR]CCL) version\s*:?\s+v?(\d+\.\d+[.\w]*)")
_FORCED = re.compile(r"NCCL_(ALGO|PROTO)(?:=| set by environment to )\s*\"?'?([\w^:;,]+)")
_NETWORK = re.compile(r"NET/(IB|OFI|Socket|FasTrak|GPUDirectTCPX)\b|Using network (\w+)", re.IGNORECASE)
_NETWORKS = {"ib": "ib", "ofi": "efa", "aws": "efa", "socket": "tcp", "fastrak": "tcpxo", "gpudirecttcpx": "tcpx"}
_WRONG = re.compile(r"Out of bounds values\s*:\s*\d+\s+FAILED")
_ELLIPSIS = re.compile(r"(?:^|[\s#|>:])(?:\.\.\.|…|<snip>|\[\.\.\.\])\s*(?:\x1b\[\d*m)?\s*$")
_STUCK = re.compile(r"(?<=\d)\[\d+\](?=\s)")
"""A launcher's label that it put behind a number, as it took the flush between two columns for the end of a line."""
_OTHER_SEPARATORS = re.compile(r"[,;&]")
_FEW_WORDS = 6
"""A row has more words; it may have been exported with other separators than spaces."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SLACK = 0.02
"""How far bytes / time may lie from the printed bandwidth, beyond its last digit [1]."""


class TextTable(NamedTuple):
    """One table of a text: what stood around it, its rows, and what was noticed."""

    header: Header
    rows: list[BenchmarkRow]
    remarks: list[str]


def read_text(text: str) -> list[TextTable]:
    """Return the tables of a text, in their order; none when it holds no row of nccl-tests."""
    reader = _Reader()
    for number, line in enumerate(_COLOUR.sub("", text).splitlines(), 1):
        reader.take(number, line)
    reader.close()
    return reader.tables


class _Reader:
    """Reads line by line; a new preamble, heading or smaller size after rows starts the next table."""

    def __init__(self) -> None:
        self.tables: list[TextTable] = []
        self.command = ""
        self._start()

    def _start(self) -> None:
        self.header = Header()
        self.rows: list[BenchmarkRow] = []
        self.remarks: list[str] = []
        self.ended = self.reads_devices = self.torn = False
        self.begun = 0.0

    def close(self) -> None:
        """End the table being read, if it has rows."""
        if self.rows:
            header = self.header
            header.kind = header.kind or self.command
            largest = max(row.message for row in self.rows)
            if not self.ended and header.largest > 1.01 * largest:
                share = f"{in_unit(largest, 'MiB', 'B'):.4g} of {in_unit(header.largest, 'MiB', 'B'):.4g} MiB"
                self.remarks.append(f"ends at {share}: truncated, its whole rows are used")
            if self.torn:
                self.remarks.append("the last line is cut and was left out")
            self.tables.append(TextTable(header, self.rows, self.remarks))
        self._start()

    def take(self, number: int, line: str) -> None:
        """Read one line."""
        row = self._row(line, number)
        if row is not None:
            if self.rows and (self.ended or 0 < row.message < self.rows[-1].message):
                self._next_table(keeps_header=not self.ended)
            if row.message > 0:
                self.rows.append(row)
                self.header.operation = self.header.operation or _operation(line)
                self.header.checked_in_place |= math.isfinite(row.seconds[1]) and line.split()[-1].isdigit()
            return
        self.torn = bool(self.rows) and not self.ended and (_is_torn(line) or _heart(line)[1] is not None)
        self._take_preamble(line)
        if "Avg bus bandwidth" in line or "Out of bounds values" in line:
            self.ended = self.ended or bool(self.rows)
            if _WRONG.search(line):
                self.rows = [replace(row, wrong=True) for row in self.rows]

    def _row(self, line: str, number: int) -> BenchmarkRow | None:
        """Return the row of a line, or of its times alone where another process spoke between its size and them."""
        row = _row(line, number)
        if row is None and self.begun:
            times = line.split()
            if len(times) >= 3 and all(_NUMBER.match(word) for word in times[:3]):
                row = _timed(self.begun, times, number)
                row = row if row and _fits(self.begun, [float(word) for word in times[:2]]) else None
        self.begun = 0.0 if row is not None else _size_of(line) or self.begun
        return row

    def _next_table(self, keeps_header: bool) -> None:
        header = self.header
        self.close()
        if keeps_header:
            self.header = header

    def _take_preamble(self, line: str) -> None:
        if self.rows and (_OPTIONS.search(line) or _TEST.search(line) or _LIBRARY.search(line)):
            self.close()
        header = self.header
        if found := _OPTIONS.search(line):
            header.gpus_per_process, header.largest = int(found.group(2)), float(found.group(4))
        if found := _TEST.search(line):
            header.kind = collective_in(found.group(1))
        elif found := _COMMAND.search(line):
            self.command = collective_in(found.group(1))
        self._take_device(line)
        if found := _LIBRARY.search(line):
            header.versions["nccl-tests"] = found.group(1)
            if found.group(2):
                header.versions["NCCL"] = spelled(int(found.group(2)))
        if (found := _RUNNING.search(line)) and not re.search(r"[%<]", line):
            header.versions[found.group(1)] = found.group(2)
        for word, value in _FORCED.findall(line):
            if re.fullmatch(r"[A-Za-z0-9]+", value):
                setattr(header, {"ALGO": "algorithm", "PROTO": "protocol"}[word], value.lower())
        if (found := _NETWORK.search(line)) and not header.network:
            header.network = _NETWORKS.get((found.group(1) or found.group(2)).lower(), "")

    def _take_device(self, line: str) -> None:
        found = _DEVICE.search(line)
        if found:
            rank = int(found.group(1))
            group = int(found.group(2) or 0)
            host, number, bus, gpu = found.group(4, 5, 6, 7)
            self.header.devices[rank] = Device(rank, int(found.group(3)), host, bus, gpu, group, int(number))
            self.reads_devices = True
        elif self.reads_devices:
            self.reads_devices = False
            self.header.elided |= _ELLIPSIS.search(line) is not None


def _row(line: str, number: int) -> BenchmarkRow | None:
    """Return the row that a line holds, None when it holds none."""
    words, at, size = _heart(line)
    if at is None:
        return None
    rest = words[at + 3 :]
    if rest and rest[0].lower() in _OPERATIONS:
        rest = rest[1:]
    return _timed(size, rest, number)


def _operation(line: str) -> str:
    """Return the reduction that a row names, "" for none."""
    words, at, _ = _heart(line)
    word = words[at + 3].lower() if at is not None and at + 3 < len(words) else ""
    return word if word in _OPERATIONS else ""


def _size_of(line: str) -> float:
    """Return the size of a row whose times are missing because another process spoke into it; 0 for any other line."""
    words, at, size = _heart(line)
    return size if at is not None and not any(_NUMBER.match(word) and "." in word for word in words[at + 3 :]) else 0.0


def _heart(line: str) -> tuple[list[str], int | None, float]:
    """Return the words of a line, where a row's two counts and a number format stand, and its size [B]."""
    words = _STUCK.sub(" ", line.replace("|", " ")).split()
    for i in range(len(words) - 2):
        count = words[i].rpartition(":")[2].rpartition(">")[2].rpartition("]")[2]
        if words[i + 2].lower() in _TYPES and count.isdigit() and words[i + 1].isdigit():
            return words, i, float(count)
    if len(_OTHER_SEPARATORS.findall(line)) >= _FEW_WORDS:
        return _heart(_OTHER_SEPARATORS.sub(" ", line))
    return words, None, 0.0


def _timed(size: float, words: Sequence[str], number: int) -> BenchmarkRow | None:
    """Return the row of these columns: maybe a root, then time, two bandwidths and an error, twice or once."""
    values = [float(word) if _NUMBER.match(word) else math.nan for word in words]
    first = 1 if len(values) > 3 and _is_root(words[0]) and _fits(size, values[1:3]) else 0
    if len(values) < first + 3 or not all(math.isfinite(v) for v in values[first : first + 3]):
        return None
    if not _fits(size, values[first : first + 2]) and not first and _is_root(words[0]) and len(words) in (5, 9):
        first = 1  # old tables whose bandwidth is scaled: the count of columns tells
    second = next(
        (j for j in range(first + 3, min(first + 10, len(values) - 2)) if _is_second(size, values, words, j)), None
    )
    places = [first] if second is None else [first, second]
    triples = [values[at : at + 3] for at in places] + [[math.nan] * 3] * (2 - len(places))
    if not any(math.isfinite(_time(triple[0])) for triple in triples):
        return None
    errors = [words[at + 3] for at in places if at + 3 < len(words)]
    return BenchmarkRow(
        message=size,
        seconds=(_time(triples[0][0]), _time(triples[1][0])),
        algorithm_bandwidth=(_rate(triples[0][1]), _rate(triples[1][1])),
        bus_bandwidth=(_rate(triples[0][2]), _rate(triples[1][2])),
        wrong=any(word.isdigit() and int(word) > 0 for word in errors),
        line=number,
    )


def _is_second(size: float, values: Sequence[float], words: Sequence[str], at: int) -> bool:
    """The in-place columns: a time, then the bandwidth that belongs to it; an error count stands before them."""
    return all(math.isfinite(v) for v in values[at : at + 3]) and _fits(size, values[at : at + 2]) and values[at] > 0


def _is_root(word: str) -> bool:
    return re.fullmatch(r"-?\d+", word) is not None


def _fits(size: float, pair: Sequence[float]) -> bool:
    """Whether the second number is the bandwidth [10^9 B/s] of `size` bytes in the first [us]."""
    time, bandwidth = pair[0], pair[1]
    if not (math.isfinite(time) and math.isfinite(bandwidth)) or time <= 0:
        return False
    true = in_unit(size / parse(f"{time} us", "s"), "GB/s", "B/s")
    return abs(true - bandwidth) <= 0.0051 + _SLACK * true


def _time(value: float) -> float:
    return parse(f"{value} us", "s") if math.isfinite(value) and value > 0 else math.nan


def _rate(value: float) -> float:
    return parse(f"{value} GB/s", "B/s") if math.isfinite(value) and value >= 0 else math.nan


def _is_torn(line: str) -> bool:
    """A row that breaks off: it starts as one, and is the last of the file."""
    words = line.split()
    return len(words) in (1, 2, 3, 4, 5) and words[0].isdigit() and all(_NUMBER.match(word) for word in words[:2])


def spelled(code: int) -> str:
    """Return NCCL's version of its number.

    >>> spelled(22907), spelled(2708)
    ('2.29.7', '2.7.8')
    """
    major = 10000 if code >= 10000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"
