"""What a step of each schedule costs, against rows that other people's programs confirm; and a picture of each."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from schedule_walk import Ran, Walk, figures

from simulator.schedules import SCHEDULES, Schedule, Shape

DATA = Path(__file__).parents[1] / "data"
LINES = (DATA / "schedule_goldens.csv").read_text().splitlines()
ROWS = list(csv.DictReader(line for line in LINES if not line.startswith("#")))
PICTURES = {
    name: lines.split()
    for name, _, lines in (part.partition("]") for part in (DATA / "schedule_pictures.txt").read_text().split("[")[1:])
}
CHUNKS = {
    "interleaved_1f1b",
    "breadth_first",
    "zb_interleaved",
    "zbv",
    "v_half",
    "v_min",
    "dualpipev",
    "hanayo",
    "seq1f1b",
}
"""Schedules whose picture has two chunks (or slices)."""
CONFIRMED = {
    *(
        "gpipe",
        "1f1b",
        "eager_1f1b",
        "interleaved_1f1b",
        "breadth_first",
        "pipedream_async",
        "pipedream_2bw",
        "seq1f1b",
    ),
    *("chimera_direct", "chimera_doubling", "chimera_halving", "dualpipe", "dualpipev", "hanayo_greedy"),
    *("zb_h1", "zb_h2", "zb_interleaved", "zbv", "v_half_pattern", "v_min_pattern"),
}
"""Schedules, by the names of the rows, for which other people's programs say what a step costs."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(list(row.values())[:8]))
def test_a_step_costs_what_the_published_order_costs(row: dict[str, str]) -> None:
    shape = Shape(int(row["p"]), int(row["m"]), int(row["v"]))
    times = {"F": float(row["tf"]), "I": float(row["tb"]), "W": float(row["tw"])}
    for name, actual in figures(SCHEDULES.get(row["schedule"]), shape, times, float(row["tcomm"])).items():
        expected = [float(x) for x in row[name].split(";")]
        assert expected == pytest.approx(actual if len(expected) > 1 else [max(actual)], rel=1e-9, abs=1e-9), name


def test_the_rows_cover_every_confirmed_schedule_size_and_latency() -> None:
    assert CONFIRMED == {row["schedule"] for row in ROWS}
    for schedule in CONFIRMED:
        mine = [row for row in ROWS if row["schedule"] == schedule]
        most = {"2", "4", "8"} if schedule == "hanayo_greedy" else {"2", "4", "8", "16"}
        assert most == {row["p"] for row in mine}
        assert {"0", "0.5", "2"} == {row["tcomm"] for row in mine}


def picture(schedule: Schedule, shape: Shape) -> list[str]:
    """Return one line per rank, two characters per smallest unit of time, as the data file says."""
    placement = schedule.placement(shape)
    walk = Walk(schedule.order(shape, placement), placement, {"F": 1, "I": 1, "W": 1}, 0)
    cut = max(shape.chunks_per_rank, int(walk.order.parts.max()))
    lane_number = [placement.lane_of[:i].tolist().count(lane) for i, lane in enumerate(placement.lane_of)]

    def cells(ran: Ran) -> list[tuple[str, float]]:
        a = ran.action
        upper = (placement.lanes > 1 and placement.lane_of[a.microbatch] == 1) or a.chunk >= shape.ranks
        letter = a.kind.lower() if upper else a.kind
        number, pieces = lane_number[a.microbatch], 1
        if schedule.name == "chimera_halving":
            number, pieces = 2 * number + a.part, 2 // a.parts
        elif schedule.slices:
            number = cut * number + a.part
        pieces *= a.count
        duration = walk.times[a.kind] * a.share / pieces
        return [(f"{letter}{number + k}", duration) for k in range(pieces)]

    lines = []
    for timeline in walk.timeline:
        line, place = "", 0.0
        for ran in timeline:
            place = max(place, ran.start)
            line = line.ljust(round(2 * cut * place), ".")
            for label, duration in cells(ran):
                width = round(2 * cut * duration)
                line, place = line + label[:width].ljust(width, "-"), place + duration
        lines.append(line.ljust(round(2 * cut * walk.makespan), "."))
    return lines


@pytest.mark.parametrize("name", PICTURES)
def test_a_schedule_looks_as_published(name: str) -> None:
    schedule = SCHEDULES.get(name)
    assert PICTURES[name] == picture(schedule, Shape(4, 8, 2 if schedule.name in CHUNKS else 1))


def test_chimera_with_fewer_microbatches_than_ranks_halves_the_unit() -> None:
    expected = [
        "F0....f0b0--........B0--",
        "..F0f0......b0--B0--....",
        "..f0F0......B0--b0--....",
        "f0....F0B0--........b0--",
    ]
    assert expected == picture(SCHEDULES.get("chimera"), Shape(4, 2))


def test_gems_has_one_microbatch_follow_the_other() -> None:
    expected = ["F0......B0--f0b0--....", "..F0B0--f0........b0--"]
    assert expected == picture(SCHEDULES.get("gems"), Shape(2, 2))
