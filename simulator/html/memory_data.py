"""Memory as data for a page: how full every rank is over time, and the named tensors at its peak."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.html.packing import pack, ticks
from simulator.program.program import CATEGORIES
from simulator.report.memory import memory_timeline
from simulator.report.prediction import Prediction
from simulator.report.window import step_window

__all__ = ["memory_data"]

_MOST_POINTS = 160_000
"""Changes of memory that a page holds, over all ranks; of more, the highest of each of so many equal times is kept."""
_FEWEST_POINTS = 400
_MOST_TENSORS = 10


def memory_data(prediction: Prediction, ranks: list[int], level: int = 6) -> dict[str, object]:
    """Return the memory of these ranks over the step, and their peaks.

    Args:
        prediction: the step.
        ranks: which of its ranks.
        level: of the compression.
    """
    p, trace = prediction, prediction.step_trace
    points = max(_FEWEST_POINTS, _MOST_POINTS // len(ranks))
    lines = [_line(p, rank, trace.makespan, points) for rank in ranks]
    used = [c for c in range(len(CATEGORIES)) if any(levels[:, c].any() for _, levels in lines)]
    columns: dict[str, NDArray[Any]] = {
        "at": np.concatenate([ticks(times, trace.makespan) for times, _ in lines]),
    }
    for c in used:
        columns[CATEGORIES[c]] = np.concatenate([levels[:, c] for _, levels in lines]).astype(np.float32)
    return {
        "capacity": p.capacity,
        "categories": [CATEGORIES[c] for c in used],
        "offsets": np.cumsum([0, *(len(times) for times, _ in lines)]).tolist(),
        "packed": pack(columns, level),
        "peaks": [_peak(p, rank) for rank in ranks],
        "fullest": p.fullest,
        "tiers": [[tier.place, tier.held, tier.capacity] for tier in p.tiers if tier.held],
    }


def _line(p: Prediction, rank: int, makespan: float, points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times [s] and bytes [times, categories] of a rank; of too many changes the fullest of each equal part of the time."""
    times, levels = memory_timeline(p.program, p.step_trace, rank, float(p.capacities[rank]))
    if len(times) <= points:
        return times, levels
    part = np.minimum((times / (makespan or 1.0) * points).astype(np.int64), points - 1)
    order = np.lexsort((-levels.sum(axis=1), part))
    first = order[np.concatenate([[True], np.diff(part[order]) > 0])]
    return times[first], levels[first]


def _peak(p: Prediction, rank: int) -> dict[str, object]:
    """The fullest instant of a rank: when, how much, its band, and what stands there."""
    low, high = p.memory_band(rank)
    live = p.memory.live(rank)
    window = step_window(p.program, p.trace)
    return {
        "rank": rank,
        "at": max(0.0, float(p.memory.time[rank]) - window.low),
        "total": float(p.memory.total[rank]),
        "low": low,
        "high": high,
        "capacity": float(p.capacities[rank]),
        "tensors": [[s.name, s.category, s.count, s.bytes] for s in live[:_MOST_TENSORS]],
        "others": [len(live) - _MOST_TENSORS, sum(s.bytes for s in live[_MOST_TENSORS:])]
        if len(live) > _MOST_TENSORS
        else None,
    }
