"""A table of timed collectives as a tool printed it, before anybody judged it: the common form of all readers.

nccl-tests text ---> nccl_text.py ---+
nccl-tests JSON ---> nccl_json.py ---+--> BenchmarkTable --> judge/checks.py --> NcclLog --> fit/platforms.py
PyTorch tables, CSV > other_tools.py +
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["BenchmarkRow", "BenchmarkTable", "Device", "Header", "collective_in", "ranks_of_factor"]

_PERF = (
    ("all_reduce", ("all_reduce", "allreduce")),
    ("all_gather", ("all_gather", "allgather")),
    ("reduce_scatter", ("reduce_scatter", "reducescatter")),
    ("alltoallv", ("alltoallv",)),
    ("alltoall", ("alltoall", "all_to_all", "all2all")),
    ("sendrecv", ("sendrecv", "send_recv")),
    ("broadcast", ("broadcast",)),
    ("reduce", ("reduce",)),
    ("gather", ("gather",)),
    ("scatter", ("scatter",)),
    ("hypercube", ("hypercube",)),
    ("bisection", ("bisection",)),
)
_MOST_BY_FACTOR = 256
"""Beyond so many ranks the printed digits of the two bandwidths no longer tell them apart."""


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's line under "Using devices": rank, process, host, bus address, name of the GPU, the communicator it is in
    where the job was split (NCCL_TESTS_SPLIT), and its number on the host (0 where nothing said it)."""

    rank: int
    process: int
    host: str
    bus: str
    gpu: str
    group: int = 0
    number: int = 0


@dataclass(slots=True)
class Header:
    """What stands around a table: devices, options, versions; readers fill it line by line.

    `elided`: an ellipsis stood among the devices, so there are more than those listed.
    `gpus_per_process` is the option -g, 0 where nothing said it; `operation` the reduction that the rows name;
    `checked_in_place` whether the results in place were checked, which those of alltoall cannot be.
    """

    kind: str = ""
    devices: dict[int, Device] = field(default_factory=dict)
    elided: bool = False
    gpus_per_process: int = 0
    largest: float = 0.0
    ranks: int = 0
    nodes: int = 0
    algorithm: str = "auto"
    protocol: str = "auto"
    network: str = ""
    gpu: str = ""
    operation: str = ""
    checked_in_place: bool = False
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One row: message [B], seconds [s] and algorithm and bus bandwidth [B/s] out of place and in place, NaN where the
    table is silent; whether results were wrong; its line in the file."""

    message: float
    seconds: tuple[float, float]
    algorithm_bandwidth: tuple[float, float]
    bus_bandwidth: tuple[float, float]
    wrong: bool
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTable:
    """One table, as printed.

    Args:
        name: of the file, with the number of the table where it holds several.
        header: what stood around it.
        rows: of more than 0 bytes.
        remarks: what a reader noticed: a missing end, lines that it could not use.
        digest: sha256 of the file, first 16 digits.
    """

    name: str
    header: Header
    rows: tuple[BenchmarkRow, ...]
    remarks: tuple[str, ...] = ()
    digest: str = ""

    @property
    def kind(self) -> str:
        """The collective in nccl-tests' words; "" when nothing tells."""
        return self.header.kind or collective_in(self.name) or _kind_by_factor(self.rows, self.header)

    @property
    def ranks(self) -> int:
        """How many took part, by the devices or else by bus over algorithm bandwidth; 0 when nothing tells."""
        header, counted = self.header, self._by_factor
        if header.ranks or (header.devices and not self.elided):
            return header.ranks or len(self._members)
        return counted

    @property
    def _members(self) -> list[Device]:
        """The ranks of the communicator that the table is of: that of the first rank."""
        devices = list(self.header.devices.values())
        return [device for device in devices if device.group == devices[0].group]

    @property
    def concurrent(self) -> int:
        """How many communicators ran side by side on the hosts of this one."""
        hosts = {device.host for device in self._members}
        return len({device.group for device in self.header.devices.values() if device.host in hosts}) or 1

    @property
    def elided(self) -> bool:
        """Whether devices are missing in the list: it says so, or the bandwidths are those of many more ranks."""
        listed = len(self._members)
        return self.header.elided or (0 < listed and 1.3 * listed < self._by_factor)

    @property
    def _by_factor(self) -> int:
        return ranks_of_factor(self.kind, [row for row in self.rows if not row.wrong])

    @property
    def nodes(self) -> int:
        """On how many hosts, by the devices; 0 when they are not all listed."""
        header = self.header
        if header.nodes or not header.devices:
            return header.nodes
        hosts = [device.host for device in self._members]
        if self.elided:
            per_host = max(hosts.count(hosts[0]), *(one.number + 1 for one in self._members))
            per_host = per_host if len(set(hosts)) > 1 else 0
            return self.ranks // per_host if per_host and self.ranks % per_host == 0 else 0
        return len(set(hosts))

    @property
    def gpu(self) -> str:
        """The GPU's name; "" when nothing tells."""
        return self.header.gpu or next((device.gpu for device in self.header.devices.values()), "")

    @property
    def shared_gpu(self) -> str:
        """The GPU that several ranks share, "" for none: their times tell of one GPU, not of links."""
        seen: set[tuple[str, str]] = set()
        for device in self.header.devices.values():
            place = (device.host, device.bus)
            if place in seen and device.bus.strip("0x:.") != "":
                return f"{device.bus} of {device.host}"
            seen.add(place)
        return ""

    @property
    def single_process(self) -> bool:
        """Whether one process launched for several GPUs."""
        return self.header.gpus_per_process > 1

    @property
    def versions(self) -> str:
        """Versions in words."""
        return ", ".join(f"{name} {value}" for name, value in sorted(self.header.versions.items()))


def collective_in(text: str) -> str:
    """Return the collective that a program or file name speaks of, "" for none.

    >>> collective_in("./build/all_gather_perf -b 8"), collective_in("h100_alltoall.log"), collective_in("x.log")
    ('all_gather', 'alltoall', '')
    """
    lowered = text.lower().replace("-", "_")
    return next((kind for kind, words in _PERF if any(word in lowered for word in words)), "")


def ranks_of_factor(kind: str, rows: Sequence[BenchmarkRow]) -> int:
    """Return the ranks that bus over algorithm bandwidth stands for, 0 when it says nothing or is too coarse."""
    pairs = _bandwidths(rows)
    if not len(pairs):
        return 0
    factor = float(np.sum(pairs[:, 1]) / np.sum(pairs[:, 0]))
    share = (
        factor / 2 if kind == "all_reduce" else factor if kind in ("all_gather", "reduce_scatter", "alltoall") else 0
    )
    if not 0.3 < share < 0.9995:
        return 0
    ranks = round(1.0 / (1.0 - share))
    return ranks if ranks <= _MOST_BY_FACTOR else 0


def _bandwidths(rows: Sequence[BenchmarkRow]) -> NDArray[np.float64]:
    """Return [rows, 2] algorithm and bus bandwidth of the quickest rows: their printed digits are the most exact."""
    pairs = np.array(
        [(a, b) for row in rows for a, b in zip(row.algorithm_bandwidth, row.bus_bandwidth, strict=True) if a > 0 < b]
    )
    return pairs[np.argsort(pairs[:, 0])][-12:] if len(pairs) else np.zeros((0, 2))


def _kind_by_factor(rows: Sequence[BenchmarkRow], header: Header) -> str:
    """Only all_reduce counts bytes more than once: its bus bandwidth is above the algorithm's.

    Where it is below, each rank keeps a share: who adds is reduce_scatter, who is checked in place all_gather.
    """
    pairs = _bandwidths(rows)
    factor = float(np.sum(pairs[:, 1]) / np.sum(pairs[:, 0])) if len(pairs) else 1.0
    if 0.98 < factor < 1.05 or not len(pairs):
        return ""
    if factor > 1.05:
        return "all_reduce"
    if header.operation == "sum":
        return "reduce_scatter"
    return "all_gather" if header.operation == "none" and header.checked_in_place else ""
