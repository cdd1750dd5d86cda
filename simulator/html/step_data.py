"""A step's timeline as data for a page: one bar per operation and lane, what each is, and which are on the longest chain.

A rank has lanes: the compute stream (whole, or upper and lower half for a fused pair), and below it one per kind of
communication.  Bars are grouped by (rank, lane) and sorted by start; labels such as `2F0` are put together by the page.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.html.packing import gaps, lane_starts, numbers, pack, ticks
from simulator.program.critical import critical_path
from simulator.program.prices import ACCOUNTS
from simulator.program.program import COMPUTE, KIND_NAMES, Link, Program
from simulator.report.bars import BAR_MIDDLE, KINDS, Bars, compute_bars, link_bars
from simulator.report.prediction import Prediction

__all__ = ["MOST_BARS", "shown_ranks", "timeline_data"]

MOST_BARS = 400_000
"""Bars of the largest timeline; of a step with more, some ranks are shown."""
_WHOLE, _UPPER, _LOWER, _STRIP = 0, 1, 2, 3
_JOINED = 2
"""Beside 1, on the longest chain: a bar of several segments, of which `item` is the first."""
_MOST_EFFECTS = 5_000
"""Kinds of changes of memory beyond which bars do not tell theirs: the list would outgrow the page."""
_MOST_TENSORS = 4


def shown_ranks(prediction: Prediction) -> list[int]:
    """Return the ranks a page shows: all, or as many as make MOST_BARS bars, evenly spread, the fullest among them.

    Every row counts as two bars: of a message both ends are drawn.
    """
    ranks = prediction.program.ranks
    most = max(1, min(ranks, int(MOST_BARS * ranks / max(2 * prediction.program.size, 1))))
    if most >= ranks:
        return list(range(ranks))
    picked = set(np.linspace(0, ranks - 1, most).round().astype(int).tolist())
    return sorted(picked | {prediction.fullest})


def timeline_data(prediction: Prediction, level: int = 6) -> dict[str, Any]:
    """Return the timeline of a prediction's step.

    Args:
        prediction: the step; of steps that run into each other the window of one in the steady state is shown.
        level: of the compression.
    """
    p, program = prediction, prediction.program
    trace, whole = p.step_trace, p.step_trace.makespan
    groups = [(compute_bars(program, p.prices, trace), True), (link_bars(program, trace), False)]
    joined = _Joined(groups)
    ranks = shown_ranks(p)
    keep = np.isin(joined.rank, ranks)
    order = np.flatnonzero(keep)[np.lexsort((joined.start[keep], joined.lane[keep], joined.rank[keep]))]
    rank, lane, row = joined.rank[order], joined.lane[order], joined.row[order]
    start, end = ticks(joined.start[order], whole), ticks(joined.end[order], whole)
    changes = lane_starts(rank, lane)
    on_path = np.zeros(program.size, np.uint8)
    on_path[critical_path(program, p.prices, p.trace)] = 1
    columns: dict[str, NDArray[Any]] = {
        "gap": gaps(start, changes),
        "length": (end - start).astype(np.uint32),
        "kind": joined.kind[order].astype(np.uint8),
        "item": program.item[row].astype(np.uint32),
        "action": program.action[row].view(np.uint8),
        "chunk": numbers(program.chunk[row]),
        "microbatch": numbers(program.microbatch[row]),
        "path": on_path[row] | _JOINED * (joined.end[order] > trace.end[row]).astype(np.uint8),
    }
    if program.lane.max(initial=0) > 0:
        columns["way"] = np.where(program.kind[row] == COMPUTE, program.lane[row] % 2, 0).astype(np.uint8)
    if 0 < len(program.effects) <= _MOST_EFFECTS:
        for name, effect in (("takes", program.start_effect), ("gives", program.end_effect)):
            columns[name] = numbers(effect[row] if len(effect) else np.full(len(row), -1))
    return {
        "makespan": whole,
        "kinds": list(KINDS),
        "ranks": [{"rank": r, "name": rank_name(p, r)} for r in ranks],
        "all_ranks": program.ranks,
        "lanes": [[int(rank[c]), int(lane[c]), int(c)] for c in changes],
        "bars": len(order),
        "rows": program.size,
        "packed": pack(columns, level),
        "items": [_item(program, p, number) for number in range(len(program.items))],
        "effects": [
            [sum(t.bytes for t in e.tensors), ", ".join(sorted({t.name for t in e.tensors})[:_MOST_TENSORS])]
            for e in program.effects
        ]
        if "takes" in columns
        else [],
        "labels": _special_labels(program, row),
    }


def rank_name(prediction: Prediction, rank: int) -> str:
    """Return what a rank of the program stands for, in a few words."""
    if prediction.ranks:
        kind = prediction.ranks[rank]
        return f"rank {kind.pipeline_rank}, replicas {kind.replicas} ({' and '.join(kind.gpus)})"
    return f"rank {rank}"


class _Joined:
    """Bars of compute and of links in one: rank, lane, kind, row, start and end [s]."""

    def __init__(self, groups: list[tuple[Bars, bool]]) -> None:
        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(bars, name) for bars, _ in groups])

        self.rank, self.kind, self.row = joined("rank"), joined("kind"), joined("row")
        self.start, self.end = joined("start"), joined("end")
        self.lane = np.concatenate([_lanes(bars, computes) for bars, computes in groups])


def _lanes(bars: Bars, computes: bool) -> NDArray[np.int64]:
    if not computes:
        return _STRIP + bars.kind.astype(np.int64)
    return np.where(bars.bottom == BAR_MIDDLE, _UPPER, np.where(bars.top == BAR_MIDDLE, _LOWER, _WHOLE))


def _item(program: Program, p: Prediction, number: int) -> dict[str, Any]:
    """What all rows of an item share; seconds by account, and work of its operators."""
    item, prices = program.items[number], p.prices
    facts: dict[str, Any] = {"name": item.name, "by": prices.model[number]}
    if prices.placement[number]:
        facts["place"] = prices.placement[number]
    if isinstance(item, Link):
        group = "+".join(item.group)
        facts |= {"what": item.collective or KIND_NAMES[item.kind], "message": item.message, "group": group}
        facts["latency"] = float(prices.latency[number])
        return facts
    account = prices.account[number]
    facts["split"] = {name: float(s) for name, s in zip(ACCOUNTS, account, strict=True) if s > 0}
    facts["flops"] = sum(n * float(table.flops.sum()) for table, n in item.pieces)
    facts["moved"] = sum(n * float((table.read + table.written).sum()) for table, n in item.pieces)
    return facts


def _special_labels(program: Program, rows: NDArray[np.int64]) -> dict[str, object] | None:
    """Labels that chunk, action and microbatch do not make: groups of microbatches, slices, fused pairs."""
    plain = not (len(program.count) or len(program.slices) or len(program.second_chunk))
    if plain:
        return None
    texts: dict[str, int] = {}
    own = [
        texts.setdefault(program.label(int(row)), len(texts)) if program.kind[row] == COMPUTE else -1 for row in rows
    ]
    return {"texts": list(texts), "packed": pack({"label": np.array(own, np.int32)})}
