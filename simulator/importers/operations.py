"""What a trace or a workload file says is done: operators and collectives by kind, how often, how many bytes, how long.

Bytes are what a GPU brings: of an all_gather its own piece, of others the whole buffer, as Chakra and PyTorch count them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from simulator.report.table import Section, Table
from simulator.units import show

__all__ = ["Operation", "Operations", "Tally"]

_MOST_ROWS = 40
_MOST_NAMES = 1000
_ENDS = ("send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Operations of one kind on one group of GPUs.

    Args:
        kind: compute, or of kernels gemm, attention, memory_bound; a collective; send, recv, send_recv, load, store; host.
        group: whom they join, as the file calls it; "" of what a GPU does alone, or where it does not say.
        count: how many.
        bytes: that a GPU brings, all together; of compute what is moved.
        flops: all together.
        seconds: all together; 0 = the file does not say.
        longest: name of those that take longest, or stand there most often.
    """

    kind: str
    group: str = ""
    count: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    longest: str = ""

    def as_kernels(self) -> dict[str, object]:
        """Return them as kernels of a step."""
        return {"kind": self.kind, "seconds": self.seconds, "kernels": self.count, "longest": self.longest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What files say is done, by kind and group.

    Args:
        span: what they belong to, in words: "a step", "the file".
        gpus: that the files are of: a file of a GPU each.
        rows: by kind and group.
        groups: GPUs of a group, by its name, where they are told.
    """

    span: str
    gpus: int = 1
    rows: tuple[Operation, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict)

    def joined(self, other: Operations | None) -> Operations:
        """Return these and those of another file."""
        if other is None:
            return self
        tally = Tally()
        tally.add((*self.rows, *other.rows))
        span = self.span if self.rows else other.span
        return Operations(
            span=span, gpus=self.gpus + other.gpus, rows=tally.rows(), groups={**other.groups, **self.groups}
        )

    def by_kind(self) -> tuple[Operation, ...]:
        """Return them by kind alone, the longest first; what the host does is left out, both ends of messages are one kind."""
        tally = Tally()
        for row in self.rows:
            if row.kind != "host":
                tally.add([replace(row, kind="send_recv" if row.kind in _ENDS else row.kind, group="")])
        return tally.rows()

    def to_dict(self) -> dict[str, Any]:
        """Return them as data."""
        rows = [{**asdict(row), "group_gpus": self.groups.get(row.group)} for row in self.rows]
        return {"span": self.span, "gpus": self.gpus, "rows": rows}

    def section(self) -> Section:
        """Return them to read."""
        rows = tuple(
            (
                row.kind,
                row.group + (f" ({self.groups[row.group]} GPUs)" if row.group in self.groups else ""),
                f"{row.count:,.4g}" if row.count < 10_000 else f"{row.count:,.0f}",
                show(row.bytes, "B") if row.bytes else "",
                show(row.flops, "FLOP") if row.flops else "",
                show(row.seconds, "s") if row.seconds else "",
                row.longest,
            )
            for row in self.rows[:_MOST_ROWS]
        )
        headings = ("", "group", "count", "bytes", "FLOP", "time", "longest")
        used = [i for i in range(len(headings)) if i == 0 or any(row[i] for row in rows)]
        table = Table(
            headings=tuple(headings[i] for i in used),
            rows=tuple([tuple([row[i] for i in used]) for row in rows]),
            left=tuple([used.index(i) for i in (0, 1, 6) if i in used]),
        )
        more = len(self.rows) - _MOST_ROWS
        below: tuple[str, ...] = ("bytes are what a GPU brings: of an all_gather its own piece",)
        if more > 0:
            below += (f"{more} more kinds and groups: --json has them",)
        of = f" of {self.gpus} GPUs" if self.gpus > 1 else ""
        return Section(title=f"operations of {self.span}{of}", table=table if rows else None, below=below)


class Tally:
    """Adds up operations by kind and group."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[float]] = {}
        self._names: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}

    def count(
        self,
        kind: str,
        name: str,
        *,
        group: str = "",
        count: float = 1.0,
        bytes: float = 0.0,
        flops: float = 0.0,
        seconds: float = 0.0,
    ) -> None:
        """Add operations of a name."""
        key = (kind, group)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0.0] * 4
            self._names[key] = {}
        sums[0] += count
        sums[1] += bytes
        sums[2] += flops
        sums[3] += seconds
        names = self._names[key]
        if len(names) < _MOST_NAMES or name in names:
            old = names.get(name, (0.0, 0.0))
            names[name] = (old[0] + seconds, old[1] + count)

    def add(self, rows: Iterable[Operation]) -> None:
        """Add operations that were added up already."""
        for row in rows:
            numbers = {"count": row.count, "bytes": row.bytes, "flops": row.flops, "seconds": row.seconds}
            self.count(row.kind, row.longest, group=row.group, **numbers)

    def rows(self, parts: float = 1.0) -> tuple[Operation, ...]:
        """Return them, those that take longest first, then those of most bytes; each divided by a number of steps."""
        found = [
            Operation(
                kind=kind,
                group=group,
                count=sums[0] / parts,
                bytes=sums[1] / parts,
                flops=sums[2] / parts,
                seconds=sums[3] / parts,
                longest=max(self._names[kind, group], key=lambda name: self._names[kind, group][name]),
            )
            for (kind, group), sums in self._sums.items()
        ]
        return tuple(sorted(found, key=lambda row: (-row.seconds, -row.bytes, -row.count, row.kind, row.group)))
