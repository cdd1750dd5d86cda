"""What `dtsim compare` says of schedules: bubble, activations, weight copies, messages; pictures; latency sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from simulator.errors import SpecError, UnknownNameError
from simulator.report.bars import COLOURS
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.studies.comparison import Comparison, compare
from simulator.studies.latency_sweep import latency_sweep
from simulator.studies.schedule_figures import schedule_figures
from simulator.studies.variants import variants
from tests.command import Dtsim

JOB = """
[workload]
model = "gpt3_1_3b"
sequence_length = 1024
global_batch_size = 32
[plan]
pipeline_parallel = 4
microbatch_size = 1
schedule = "one_f_one_b"
[cluster]
name = "dgx_a100"
gpus = 8
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("jobs") / "small.toml"
    path.write_text(JOB)
    return str(path)


@pytest.fixture(scope="module")
def compared(job: str) -> Comparison:
    return compare(job, variants(["gpipe", "one_f_one_b", "chimera", "zbv"], [], []))


def test_schedules_differ_in_copies_messages_and_activations(compared: Comparison) -> None:
    gpipe, plain, chimera, zbv = (row.pipeline for row in compared.rows)
    assert gpipe is not None
    assert plain is not None
    assert chimera is not None
    assert zbv is not None
    assert [1, 1, 2, 1] == [facts.weight_copies for facts in (gpipe, plain, chimera, zbv)]
    down_and_up = 2 * 16 * 3
    assert [down_and_up] * 3 == [facts.messages for facts in (gpipe, plain, chimera)]
    assert 2 * down_and_up == zbv.messages, "a V passes every boundary twice"
    tensor = 1024 * 2048 * 2
    assert down_and_up * tensor == gpipe.message_bytes
    assert 3.5 < gpipe.activations / plain.activations < 4.5, "16 microbatches against 4"


def test_both_conventions_of_the_bubble_belong_together(compared: Comparison) -> None:
    for row in compared.to_dict()["rows"]:
        assert row["bubble_fraction"] == pytest.approx(row["bubble_overhead"] / (1 + row["bubble_overhead"]))
        assert {"ranks", "activations", "weight_copies", "messages", "message_bytes"} == set(row["pipeline"])


def test_the_tables_name_what_they_show(compared: Comparison) -> None:
    text = "\n".join(section.table.text() for section in compared.sections() if section.table)
    assert all(word in text for word in ("bubble / step", "bubble / rest", "weight copies", "96 of 4 MiB", "192 of"))


def test_without_pipeline_ranks_there_is_no_table_of_pipelines(tmp_path: Path) -> None:
    path = tmp_path / "flat.toml"
    path.write_text(JOB.replace("pipeline_parallel = 4", "").replace('schedule = "one_f_one_b"', ""))
    flat = compare(str(path), variants([], [0, 1], []))
    assert [None, None] == [row.pipeline for row in flat.rows]
    assert "pipelines" not in [section.title for section in flat.sections()]


def test_a_sweep_finds_where_interleaving_stops_to_pay() -> None:
    """p = 8, m = 32, F = I = W: at 0.2 of a forward, four chunks are worse than two (physics of hop latency)."""
    names = ["gpipe", "one_f_one_b", "interleaved_1f1b"]
    found = latency_sweep(names, Shape(8, 32, 4), [0.0, 0.2, 0.5, 1.0])
    assert {"gpipe": 1, "one_f_one_b": 1, "interleaved_1f1b": 4} == found.chunks
    start, end = found.bubble[:, 0], found.bubble[:, -1]
    assert ["interleaved_1f1b", "gpipe"] == [names[int(np.argmin(start))], names[int(np.argmin(end))]]
    turn = next(turn for turn in found.turns if turn.wins)
    assert ("interleaved_1f1b", "gpipe") == (turn.before, turn.after)

    def span(name: str, chunks: int, latency: float) -> float:
        return schedule_figures(name, 8, 32, chunks, transfer=latency).makespan

    below, above = 0.999 * turn.latency, 1.001 * turn.latency
    assert span("interleaved_1f1b", 4, below) < span("gpipe", 1, below)
    assert span("gpipe", 1, above) < span("interleaved_1f1b", 4, above)


def test_a_sweep_says_why_a_schedule_cannot_be() -> None:
    found = latency_sweep(["gpipe", "chimera"], Shape(3, 6), [0.0, 1.0])
    assert ("gpipe",) == found.names
    assert ["chimera"] == [name for name, _ in found.refused]
    assert "cannot be" in [section.title for section in found.sections()]


@pytest.mark.parametrize("latencies", [[0.1], [0.2, 0.2], [-1.0, 1.0], [0.0, float("inf")]])
def test_a_sweep_needs_two_real_latencies(latencies: list[float]) -> None:
    with pytest.raises(SpecError, match="latencies"):
        latency_sweep(["gpipe"], Shape(4, 8), latencies)


def test_an_unknown_schedule_is_named() -> None:
    with pytest.raises(UnknownNameError, match="chimera"):
        latency_sweep(["chimaera"], Shape(4, 8), [0.0, 1.0])


def test_the_command_sweeps_the_shape_of_a_job(job: str, dtsim: Dtsim, tmp_path: Path) -> None:
    picture = tmp_path / "sweep.png"
    asked = ("compare", job, "--schedule", "gpipe,one_f_one_b,zb_h2", "--latency-sweep", "0,0.5,4")
    code, text, _ = dtsim(*asked, "--json", "--plot", str(picture))
    answer = json.loads(text)
    assert (0, 4, 16) == (code, answer["ranks"], answer["microbatches"])
    assert {"gpipe", "one_f_one_b", "zb_h2"} == set(answer["schedules"])
    assert 0 < answer["hop_latency"] < 0.5
    assert imread(picture).std() > 0.05
    assert "turns round" in dtsim(*asked)[1]
    assert 2 == dtsim(*asked, "--figure", "x.png")[0]
    assert 2 == dtsim("compare", job, "--latency-sweep", "a,b")[0]


def test_the_figure_shows_timelines_and_time_against_memory(job: str, dtsim: Dtsim, tmp_path: Path) -> None:
    small, large = tmp_path / "two.png", tmp_path / "four.png"
    assert 0 == dtsim("compare", job, "--schedule", "gpipe,zbv", "--figure", str(small))[0]
    assert 0 == dtsim("compare", job, "--schedule", "gpipe,zbv,one_f_one_b,chimera", "--figure", str(large))[0]
    assert imread(large).shape[0] > imread(small).shape[0]
    backward = np.abs(imread(small)[:, :, :3] - np.array(to_rgb(COLOURS["backward"]))).max(axis=2) < 0.02
    assert backward.sum() > 500
    code, _, said = dtsim("compare", job, "--schedule", "gpipe", "--figure", str(tmp_path / "x.txt"))
    assert (2, True) == (code, "names its format" in said)


@pytest.mark.slow
def test_all_schedules_side_by_side_have_two_columns_and_cut_bars(job: str, dtsim: Dtsim, tmp_path: Path) -> None:
    some, every, bars = (tmp_path / name for name in ("some.png", "every.png", "bars.png"))
    assert 0 == dtsim("compare", job, "--schedule", "gpipe,zbv,one_f_one_b,chimera", "--figure", str(some))[0]
    small = ("--set", "workload.global_batch_size=16")
    asked = ("compare", job, *small, "--schedule", "all", "--json", "--figure", str(every), "--plot", str(bars))
    code, text, _ = dtsim(*asked)
    names = {row["name"].removeprefix("schedule ").partition(" ")[0] for row in json.loads(text)["rows"]}
    assert (0, {schedule.name for schedule in SCHEDULES}) == (code, names)
    assert imread(every).shape[0] < 5 * imread(some).shape[0]
    assert imread(every).shape[1] == imread(some).shape[1]
    assert imread(bars).std() > 0.05


def test_messages_of_steps_that_run_into_each_other_are_those_of_one(job: str) -> None:
    compared = compare(job, variants(["one_f_one_b", "pipedream_2bw"], [], []))
    flushed, never = (row.pipeline for row in compared.rows)
    assert flushed is not None
    assert never is not None
    assert (flushed.messages, flushed.message_bytes) == (never.messages, never.message_bytes)
    assert (1, 2) == (flushed.weight_copies, never.weight_copies)
