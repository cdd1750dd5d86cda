"""What a step of each schedule costs, against rows that other people's programs confirm; and two pictures.

The evaluator here knows nothing of the simulator's engines: it walks the order of each rank and takes the longest path.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.schedules import SCHEDULES, PipelineOrder, Placement, Shape

DATA = Path(__file__).parents[1] / "data" / "schedule_goldens.csv"
ROWS = list(csv.DictReader(line for line in DATA.read_text().splitlines() if not line.startswith("#")))


def run(order: PipelineOrder, placement: Placement, forward: float, backward: float, latency: float):
    """Return [(rank, action, start, end), ...] of ranks that run their order as early as they can, and the messages."""
    waiting = {rank: order.rows(rank)[::-1] for rank in range(order.ranks)}
    free, end, timeline, messages = dict.fromkeys(waiting, 0.0), {}, [], 0
    while any(waiting.values()):
        before = len(timeline)
        for rank, actions in waiting.items():
            while actions:
                action = actions[-1]
                chunk, i, start = action.chunk, action.microbatch, free[rank]
                source = chunk - 1 if action.kind == "F" else chunk + 1
                inputs = [("F", chunk, i)] if action.kind == "B" else []
                inputs += [(action.kind, source, i)] if 0 <= source < placement.chunks else []
                if any(key not in end for key in inputs):
                    break
                for key in inputs:
                    crosses = rank != placement.rank_of[placement.lane_of[i], key[1]]
                    messages += crosses
                    start = max(start, end[key] + latency * crosses)
                free[rank] = end[action.kind, chunk, i] = start + (forward if action.kind == "F" else backward)
                timeline.append((rank, action, start, free[rank]))
                actions.pop()
        assert len(timeline) > before, f"stopped before {[str(left[-1]) for left in waiting.values() if left]}"
    return timeline, messages


def figures(row: dict[str, str]) -> dict[str, object]:
    """Return the figures of a row, made from our orders."""
    p, m, v = int(row["p"]), int(row["m"]), int(row["v"])
    tf, tb, tw, tcomm = (float(row[name]) for name in ("tf", "tb", "tw", "tcomm"))
    schedule = SCHEDULES.get(row["schedule"])
    placement = schedule.placement(Shape(p, m, v))
    order = schedule.order(Shape(p, m, v), placement)
    timeline, messages = run(order, placement, tf / v, (tb + tw) / v, tcomm)
    makespan = max(end for _, _, _, end in timeline)
    peaks, spans, idle = [], [], []
    for rank in range(p):
        mine = [(a, start, end) for r, a, start, end in timeline if r == rank]
        held = most = 0
        for action, _, _ in mine:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        peaks.append(most / v)
        spans.append(mine[-1][2] - mine[0][1])
        idle.append(spans[-1] - m * (tf + tb + tw))
    return {
        "makespan": makespan,
        "bubble_ratio": 1 - m * (tf + tb + tw) / makespan,
        "peak_activations_per_device": peaks,
        "peak_activations_if_freed_at_input_grad": peaks,
        "max_device_span": max(spans),
        "max_idle_within_device_span": max(idle),
        "p2p_volume_total": messages,
        "weight_copies_per_device": float(placement.weight_copies().max()),
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(list(row.values())[:8]))
def test_a_step_costs_what_the_published_order_costs(row: dict[str, str]) -> None:
    for name, actual in figures(row).items():
        expected = [float(x) for x in row[name].split(";")]
        actual = actual if isinstance(actual, list) else [actual]
        assert expected == pytest.approx(actual, rel=1e-8, abs=1e-8), name


def test_the_rows_cover_every_size_and_latency() -> None:
    assert {"gpipe", "1f1b", "interleaved_1f1b", "chimera_direct"} == {row["schedule"] for row in ROWS}
    for schedule in {row["schedule"] for row in ROWS}:
        mine = [row for row in ROWS if row["schedule"] == schedule]
        assert {"2", "4", "8", "16"} == {row["p"] for row in mine}
        assert {"0", "0.5", "2"} == {row["tcomm"] for row in mine}


def picture(name: str, shape: Shape) -> list[str]:
    """Return one line per rank, one letter per unit of time: forwards as digits, backwards as letters twice as long."""
    schedule = SCHEDULES.get(name)
    placement = schedule.placement(shape)
    timeline, _ = run(schedule.order(shape, placement), placement, 1, 2, 0)
    width = int(max(end for _, _, _, end in timeline))
    lines = [["."] * width for _ in range(shape.ranks)]
    for rank, action, start, end in timeline:
        mark = chr(ord("0" if action.kind == "F" else "a") + action.microbatch)
        lines[rank][int(start) : int(end)] = mark * int(end - start)
    return ["".join(line) for line in lines]


def test_one_f_one_b_looks_as_published() -> None:
    expected = [
        "0123......aa4bb5cc6dd7ee.ff.gg.hh",
        ".012....aa3bb4cc5dd6ee7ff.gg.hh..",
        "..01..aa2bb3cc4dd5ee6ff7gg.hh....",
        "...0aa1bb2cc3dd4ee5ff6gg7hh......",
    ]
    assert expected == picture("one_f_one_b", Shape(4, 8))


def test_chimera_looks_as_published() -> None:
    expected = ["01.2cc3dd.aa..bb", ".0213.ccaaddbb..", ".2031.aaccbbdd..", "23.0aa1bb.cc..dd"]
    assert expected == picture("chimera", Shape(4, 4))


def test_chimera_with_fewer_microbatches_than_ranks_halves_the_unit() -> None:
    expected = ["0..1bb....aa", ".01...bbaa..", ".10...aabb..", "1..0aa....bb"]
    assert expected == picture("chimera", Shape(4, 2))
