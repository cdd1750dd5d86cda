"""`dtsim schedule` over several schedules: table, pictures, times by rank, sweeps, files out; code of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from matplotlib.image import imread

from simulator.errors import PlanError, SimulatorError, SpecError
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.schedules.own_code import run_schedule_file
from simulator.studies.latency_sweep import latency_sweep
from simulator.studies.schedule_figures import makespan_and_bubble, schedule_figures
from simulator.studies.schedule_table import schedule_table
from tests.command import Dtsim
from tests.package_sources import ROOT, page_blocks

AT_A_TIME = next(
    block["body"] for block in page_blocks(ROOT / "docs" / "extending.md") if block["file"] == "one_at_a_time.py"
)


def test_a_schedule_alone_has_the_chunks_that_it_has_beside_others(dtsim: Dtsim) -> None:
    shape = ("-p", "4", "-m", "8", "--json")
    for name in ("zbv", "interleaved_1f1b", "zb_h1"):
        alone = json.loads(dtsim("schedule", name, *shape)[1])
        row = json.loads(dtsim("schedule", f"gpipe,{name}", *shape)[1])["schedules"][1]
        assert row == {key: alone[key] for key in row}
    code, _, said = dtsim("schedule", "zbv", *shape, "-v", "1")
    assert (code, "nearest that works" in said) == (2, True)


def test_several_schedules_are_one_table_and_a_few_timelines(dtsim: Dtsim) -> None:
    code, text, _ = dtsim("schedule", "1f1b,zb_h1,chimera", "-p", "4", "-m", "8")
    lines = text.splitlines()
    assert (0, "4 ranks, 8 microbatches") == (code, lines[0])
    row = next(line.split() for line in lines if line.strip().startswith("zb_h1"))
    assert ["zb_h1", "1", "27", "11.1", "%"] == row[:5]
    assert 3 * 4 == sum(line.startswith("rank ") for line in lines)
    code, text, _ = dtsim("schedule", "all", "-p", "4", "-m", "8")
    assert (0, True) == (code, all(schedule.name in text for schedule in SCHEDULES))
    assert "rank 0" not in text


def test_json_holds_what_each_alone_would_say(dtsim: Dtsim) -> None:
    several = json.loads(dtsim("schedule", "gpipe,chimera", "-p", "3", "-m", "6", "--json")[1])
    alone = json.loads(dtsim("schedule", "gpipe", "-p", "3", "-m", "6", "--json")[1])
    (gpipe,) = several["schedules"]
    assert {key: alone[key] for key in gpipe} == gpipe
    assert ["chimera"] == [entry["schedule"] for entry in several["refused"]]


def test_every_rank_may_have_a_time_of_its_own() -> None:
    even, slow = schedule_figures("1f1b", 4, 8), schedule_figures("1f1b", 4, 8, forward=[1.0, 1.5, 1.0, 1.0])
    assert 8 * (1.5 + 2.0) == slow.busy[1]
    assert slow.makespan > even.makespan
    assert schedule_figures("1f1b", 4, 8, forward=[1.0] * 4).makespan == even.makespan
    end, bubble = makespan_and_bubble("1f1b", Shape(4, 8), [1.0, 1.5, 1.0, 1.0], 1.0, 1.0)
    assert (slow.makespan, slow.bubble_fraction) == pytest.approx((end, bubble), rel=1e-12)
    both = schedule_figures("zbv", 4, 8, 2, weight_grad=[0.5, 1.0, 1.0, 2.0], engine="simpy")
    assert both.makespan == schedule_figures("zbv", 4, 8, 2, weight_grad=[0.5, 1.0, 1.0, 2.0]).makespan
    with pytest.raises(PlanError, match="one number or one per rank"):
        schedule_figures("1f1b", 4, 8, forward=[1.0, 2.0])


def test_the_command_takes_times_by_rank_and_refuses_other_numbers(dtsim: Dtsim) -> None:
    words = ("schedule", "1f1b", "-p", "4", "-m", "8", "--json", "--forward")
    assert 36.0 == json.loads(dtsim(*words, "1,1.5,1,1")[1])["makespan"]
    for bad in ("1,2", "a", "1,,1,1", "-1", "nan"):
        code, out, said = dtsim(*words, bad)
        assert (2, "", True) == (code, out, "forward" in said)


def test_a_sweep_needs_no_job(dtsim: Dtsim, tmp_path: Path) -> None:
    words = ("schedule", "gpipe,interleaved_1f1b", "-p", "4", "-m", "16", "-v", "2", "--latency-sweep", "0,2")
    answer = json.loads(dtsim(*words, "--json")[1])
    same = latency_sweep(["gpipe", "interleaved_1f1b"], Shape(4, 16, 2), [0.0, 2.0])
    assert answer["schedules"]["gpipe"]["makespan"] == same.makespan[0].tolist()
    assert "turns round" in dtsim(*words)[1]
    picture = tmp_path / "sweep.png"
    assert 0 == dtsim(*words, "--format", "png", "-o", str(picture))[0]
    assert imread(picture).std() > 0.05
    assert 2 == dtsim("schedule", "1f1b", "-p", "4", "-m", "8", "--latency-sweep", "0,x")[0]
    assert 2 == dtsim("schedule", "auto", "-p", "4", "-m", "8", "--latency-sweep", "0,1")[0]


def test_pictures_show_timelines_and_memory_over_time(dtsim: Dtsim, tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    assert 0 == dtsim("schedule", "chimera", "-p", "4", "-m", "4", "--format", "png", "-o", str(one))[0]
    assert 0 == dtsim("schedule", "chimera,1f1b", "-p", "4", "-m", "4", "--format", "png", "-o", str(two))[0]
    assert imread(two).shape[0] > 1.3 * imread(one).shape[0]
    lower = imread(one)[imread(one).shape[0] // 2 :, :, :3]
    assert (np.ptp(lower, axis=2) > 0.3).sum() > 500, "coloured curves in the lower half"
    code, _, said = dtsim(
        "schedule", "chimera,1f1b", "-p", "3", "-m", "4", "--format", "png", "-o", str(tmp_path / "x.txt")
    )
    assert (2, True) == (code, "names its format" in said)


def test_tables_of_schedules_and_actions_are_written(dtsim: Dtsim, tmp_path: Path) -> None:
    rows, actions = tmp_path / "rows.csv", tmp_path / "actions.parquet"
    words = ("schedule", "1f1b,zbv", "-p", "4", "-m", "8")
    assert 0 == dtsim(*words, "--format", "table", "-o", str(rows))[0]
    assert ["one_f_one_b", "zbv"] == pandas.read_csv(rows).schedule.tolist()
    assert 0 == dtsim(*words, "--format", "actions", "-o", str(actions))[0]
    found = pandas.read_parquet(actions).groupby("schedule")
    assert found.end.max().to_dict() == {"one_f_one_b": 33.0, "zbv": 25.5}
    assert 2 == dtsim(*words, "--format", "table")[0]
    assert 2 == dtsim(*words, "--format", "torch-csv")[0]


def test_refused_schedules_are_told_and_unknown_ones_end_it(dtsim: Dtsim) -> None:
    found = schedule_table(["chimera", "chimera_4", "gpipe"], Shape(3, 6))
    assert [("chimera", "chimera_4"), ("gpipe",)] == [
        tuple(name for name, _ in found.refused),
        tuple(one.schedule for one in found.figures),
    ]
    code, _, said = dtsim("schedule", "1f1b,chimaera", "-p", "4", "-m", "8")
    assert (2, True) == (code, "chimera" in said)


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(AT_A_TIME)
    return str(path)


def test_code_of_the_user_is_run_where_it_is_named_on_the_command_line(dtsim: Dtsim, code: str) -> None:
    left, text, said = dtsim("schedule", f"{code},1f1b", "-p", "3", "-m", "2")
    assert (0, True, True) == (left, "rank 0 |0" in text, f"running your own code: {code}" in said)
    job = (
        "gpt3_13b_2xdgx_a100",
        "--set",
        "plan.tensor_parallel=2",
        "--set",
        "plan.pipeline_parallel=4",
        "--set",
        "plan.data_parallel=2",
    )
    answer = json.loads(dtsim("run", *job, "--set", f"plan.schedule={code}", "--json")[1])
    assert answer["provenance"]["schedule"] == code
    rows = json.loads(dtsim("compare", *job, "--schedule", f"1f1b,{code}", "--json")[1])["rows"]
    assert rows[0]["step_time_s"]["value"] < rows[1]["step_time_s"]["value"]


def test_code_that_a_job_file_names_is_not_run(dtsim: Dtsim, tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    job = tmp_path / "job.toml"
    job.write_text(
        f'[workload]\nmodel="gpt3_1_3b"\nglobal_batch_size=16\n[plan]\npipeline_parallel=4\nschedule="{trap}"\n'
        '[cluster]\nname="dgx_a100"\ngpus=8\n'
    )
    left, _, said = dtsim("run", str(job))
    assert (2, True, False) == (left, "nothing that a file names is executed" in said, (tmp_path / "ran").exists())
    with pytest.raises(SpecError, match="is code"):
        schedule_figures(str(trap), 2, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("class OneAtATime", "class"), "line"),
        (("class OneAtATime(Schedule)", "class OneAtATime(object)"), "found 0"),
        (('name = "one_at_a_time"', "name = 1 / 0"), "ZeroDivisionError"),
        (("return PipelineOrder.from_grid(column % 2,", "return PipelineOrder.from_grid(1 - column % 2,"), "0"),
        (("return Placement.linear(shape)", "return None"), "placement returns a Placement, but it returned NoneType"),
        (("return PipelineOrder.from_grid(", "return list("), "the code of this schedule fails"),
        (("return PipelineOrder.from_grid(", "raise ValueError('mine') or PipelineOrder.from_grid("), "mine"),
    ],
)
def test_code_that_fails_is_told_in_one_line_with_its_place(
    dtsim: Dtsim, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    path = tmp_path / "wrong.py"
    assert change[0] in AT_A_TIME
    path.write_text(AT_A_TIME.replace(*change))
    left, out, told = dtsim("schedule", str(path), "-p", "3", "-m", "2")
    assert (2, "", True, False) == (left, out, said in told, "internal error" in told)


def test_files_that_are_no_code_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="cannot be read"):
        run_schedule_file(str(tmp_path / "none.py"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(SimulatorError, match="directory"):
        run_schedule_file(str(tmp_path / "folder.py"))


def test_a_schedule_of_billions_of_ranks_is_refused_before_it_is_made() -> None:
    with pytest.raises(PlanError, match="at most 1000000 actions"):
        schedule_figures("gpipe", 4_000_000_000, 2)
