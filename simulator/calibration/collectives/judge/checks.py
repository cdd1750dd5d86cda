"""Judges a log before it is believed: what cannot be, what was cold, what stands out, and clusters that are not well.

A row that is left out is named with its reason, and so is a log.  The limits are physics (what the wires can carry) and
order (a smaller message does not take much longer than a larger one); only "not well" is a judgement, against what is
predicted for these wires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.calibration.collectives.judge.machine import Placed
from simulator.calibration.collectives.read.benchmark_table import BenchmarkRow, BenchmarkTable
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.collectives import SHARED_OUT, collective_seconds
from simulator.errors import CalibrationError, SimulatorError
from simulator.units import parse, show

__all__ = ["Judged", "judge_table", "mark_slow_twins"]

_ABOVE_WIRES = 1.1
"""Bandwidth over that of the wires that a clock and its rounding can explain."""
_COLD = 1.5
"""A message that takes this many times longer than a larger one was not measured in the same state."""
_FIRST = 3
"""Rows at the start whose slowness is a cold start; later ones stand out."""
_MANY = 0.25
"""Share of rows left out from which on a whole log is not believed."""
_UNWELL = 2.5
"""Times slower than predicted for the same wires, at large messages, that no tuning explains."""
_TWINS = 2.0
"""Times slower than other logs of the same platform, at the same large messages."""
_LARGE = 2.0**24
_MISREAD = 0.05
"""How far a row's bandwidth may lie from bytes over time, relative to the other rows [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A log and what was found in it.

    Args:
        log: its points without the rows left out.
        remarks: rows left out and why, in sentences.
        complaint: why the whole log should not be believed; "" = it can.
    """

    log: NcclLog
    remarks: tuple[str, ...]
    complaint: str = ""


def judge_table(table: BenchmarkTable, placed: Placed) -> Judged:
    """Return the log of a table, its doubtful rows left out and named.

    Raises:
        CalibrationError: fewer than three message sizes are left.
    """
    remarks = [*table.remarks, *(f"assumed {text}" for text in placed.assumed)]
    complaint = placed.complaint
    if table.shared_gpu:
        complaint = complaint or f"several ranks share one GPU ({table.shared_gpu}): the times are of its scheduler"
    if any(row.wrong for row in table.rows):
        complaint = complaint or "the test found wrong results (#wrong, out of bounds)"
    points = [(row, i) for row in table.rows for i in (0, 1) if math.isfinite(row.seconds[i])]
    total = len(points)
    points, misread = _without_misread(points)
    points, impossible = _without_impossible(points, placed)
    points, cold, spikes = _without_slow(points)
    for rows, why in (
        (misread, "bandwidth and time do not belong together"),
        (impossible, "faster than the wires"),
        (cold, "cold first rows"),
        (spikes, "much slower than a larger message"),
    ):
        if rows:
            remarks.append(f"{len(rows)} of {total} times left out, {why}: {_sizes(rows)}")
    if not complaint and len(impossible) > max(2, _MANY * total):
        complaint = f"{len(impossible)} of {total} times are faster than the wires: something else was measured"
    if not complaint and len(spikes) + len(misread) > max(2, _MANY * total):
        complaint = f"{len(spikes) + len(misread)} of {total} times stand out: too noisy to average"
    if len({row.message for row, _ in points}) < 3:
        raise CalibrationError(f"{table.name}: {complaint or 'fewer than three sizes are left'}; {'; '.join(remarks)}")
    log = NcclLog(
        name=table.name,
        kind=placed.kind,
        place=placed.place,
        fabric=placed.fabric,
        message=np.array([row.message for row, _ in points]),
        seconds=np.array([row.seconds[i] for row, i in points]),
        algorithm=placed.algorithm,
        protocol=placed.protocol,
        digest=table.digest,
        single_process=table.single_process or placed.single_process,
        source=placed.source,
    )
    return Judged(log=log, remarks=tuple(remarks), complaint=complaint or _unwell(log))


Points = list[tuple[BenchmarkRow, int]]


def _without_misread(points: Points) -> tuple[Points, Points]:
    """Split off rows whose printed bandwidth is not bytes over time; a factor common to all rows is a convention."""

    def share(point: tuple[BenchmarkRow, int]) -> float:
        row, i = point
        return row.algorithm_bandwidth[i] * row.seconds[i] / row.message

    exact = [p for p in points if p[0].algorithm_bandwidth[p[1]] > 1 and _digits(p) < 0.01]
    if not exact:
        return points, []
    usual = float(np.median([share(p) for p in exact]))
    bad = [p for p in exact if abs(share(p) / usual - 1) > _MISREAD]
    return [p for p in points if not any(p is other for other in bad)], bad


def _digits(point: tuple[BenchmarkRow, int]) -> float:
    """Return the rounding of a printed bandwidth, two decimals of 10^9 B/s, relative to it."""
    return parse("0.005 GB/s", "B/s") / point[0].algorithm_bandwidth[point[1]]


def _without_impossible(points: Points, placed: Placed) -> tuple[Points, Points]:
    least = _least_seconds(placed)
    bad = [p for p in points if p[0].seconds[p[1]] * _ABOVE_WIRES < p[0].message * least]
    return [p for p in points if p[0].seconds[p[1]] * _ABOVE_WIRES >= p[0].message * least], bad


def _least_seconds(placed: Placed) -> float:
    """Return the seconds per byte that the wires need at least: what one rank and one node must take in."""
    place, fabric = placed.place, placed.fabric
    n, nodes = place.ranks, place.nodes
    spread = placed.kind in SHARED_OUT
    inside = ((n - 1) / n if spread else 1.0) / fabric.intra_bandwidth if place.ranks_per_node > 1 else 0.0
    outside = 0.0
    if nodes > 1:
        cards = max(fabric.network_bandwidth, fabric.card_bandwidth)
        per_node = cards if placed.kind in ("all_to_all", "send_recv") else cards * place.ranks_per_node
        outside = ((nodes - 1) / nodes if spread else 1.0) / per_node
    if placed.kind == "send_recv" and nodes > 1:
        inside = 0.0
    return max(inside, outside)


def _without_slow(points: Points) -> tuple[Points, Points, Points]:
    """Split off times far above those of larger messages: at the start they are cold, later they stand out."""
    sizes = sorted({row.message for row, _ in points})
    later: dict[tuple[float, int], float] = {}
    for place in (0, 1):
        least = math.inf
        for row, i in sorted((p for p in points if p[1] == place), key=lambda p: -p[0].message):
            later[row.message, i] = least
            least = min(least, row.seconds[i])
    kept: Points = []
    cold: Points = []
    spikes: Points = []
    for row, i in points:
        slow = row.seconds[i] > _COLD * later[row.message, i]
        early = sizes.index(row.message) < _FIRST
        (cold if slow and early else spikes if slow else kept).append((row, i))
    return kept, cold, spikes


def _unwell(log: NcclLog) -> str:
    """Return the complaint about a cluster far slower than its wires, "" for none."""
    ratio = _slowness(log)
    if ratio is None or ratio < _UNWELL:
        return ""
    return (
        f"at {show(_LARGE, 'B')} and more it is {ratio:.1f} times slower than predicted for these wires: the cluster is "
        f"not well, or its description is wrong"
    )


def _slowness(log: NcclLog) -> float | None:
    """Return the median of measured over uncalibrated seconds at large messages; None without any."""
    large = log.message >= _LARGE
    if not large.any() or not log.fabric.peer_to_peer:
        return None
    try:
        expected = [
            collective_seconds(log.kind, size, log.place, log.fabric, log.algorithm, log.protocol).seconds
            for size in log.message[large]
        ]
    except SimulatorError:
        return None
    return float(np.median(log.seconds[large] / np.array(expected)))


def mark_slow_twins(judged: Sequence[Judged]) -> list[Judged]:
    """Return the logs, those complained of that are far slower than others of the same collective and place."""
    out = []
    for one in judged:
        twins = [
            other.log
            for other in judged
            if other is not one and not other.complaint and _same_place(one.log, other.log)
        ]
        ratio = _over_twins(one.log, twins)
        if not one.complaint and ratio is not None and ratio > _TWINS:
            names = ", ".join(twin.name for twin in twins[:3])
            complaint = f"{ratio:.1f} times slower at large messages than {names} on the same kind of machine"
            one = Judged(log=one.log, remarks=one.remarks, complaint=complaint)
        out.append(one)
    return out


def _same_place(a: NcclLog, b: NcclLog) -> bool:
    return (a.kind, a.place, a.fabric, a.algorithm, a.protocol) == (b.kind, b.place, b.fabric, b.algorithm, b.protocol)


def _over_twins(log: NcclLog, twins: Sequence[NcclLog]) -> float | None:
    """Return the median ratio of a log's large times to the quickest twin's, None without common sizes."""
    ratios = []
    for twin in twins:
        shared = np.intersect1d(log.message[log.message >= _LARGE], twin.message)
        if len(shared):
            ratios.append(float(np.median([_at(log, size) / _at(twin, size) for size in shared])))
    return float(np.median(ratios)) if ratios else None


def _at(log: NcclLog, size: float) -> float:
    return float(np.median(log.seconds[log.message == size]))


def _sizes(points: Points) -> str:
    sizes = sorted({row.message for row, _ in points})
    shown = ", ".join(show(size, "B") for size in sizes[:6])
    return shown + (f" and {len(sizes) - 6} more" if len(sizes) > 6 else "")
