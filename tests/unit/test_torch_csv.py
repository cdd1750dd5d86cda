"""Orders for PyTorch and from files: what is written, what is read, what is refused and in which words."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simulator.engine import run
from simulator.errors import DeadlockError, PlanError, ProgramError, SpecError
from simulator.lowering.abstract import abstract_program
from simulator.lowering.steps.pattern import Pattern
from simulator.schedules import SCHEDULES, PipelineOrder, Placement, Shape
from simulator.schedules.order_check import check_order
from simulator.schedules.order_waits import check_order_runs
from simulator.schedules.own_order import placement_of
from simulator.schedules.own_schedule import read_schedule, schedule_of_text
from simulator.schedules.torch_comms import lower_for_torch, torch_file, torch_text
from simulator.schedules.torch_csv import read_order_file_text
from tests.command import Dtsim

WITH_COMMS = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD
"""
NAMES = [schedule.name for schedule in SCHEDULES]
TAKES = (
    "gpipe",
    "one_f_one_b",
    "interleaved_1f1b",
    "looped_bfs",
    "zb_h1",
    "zb_interleaved",
    "zbv",
    "v_half",
    "dualpipev",
)
REFUSES = {
    "chimera": "2 lanes",
    "bitpipe": "2 lanes",
    "dualpipe": "2 lanes",
    "gems": "2 lanes",
    "chimera_doubling": "lanes",
    "seq1f1b": "whole microbatches",
    "terapipe": "whole microbatches",
    "pipedream": "flush",
}


def order_of(name: str, shape: Shape) -> tuple[PipelineOrder, Placement] | None:
    schedule = SCHEDULES.get(name)
    try:
        schedule.check(shape)
    except PlanError:
        return None
    placement = schedule.placement(shape)
    return schedule.order(shape, placement), placement


def some_shape(name: str) -> Shape:
    return next(
        s for s in (Shape(4, 8), Shape(4, 8, 2), Shape(4, 8, 4), Shape(16, 32)) if order_of(name, s) is not None
    )


def test_messages_gathers_and_reductions_are_put_in() -> None:
    assert WITH_COMMS == torch_file(SCHEDULES.get("1f1b"), Shape(2, 2), comms=True)


@pytest.mark.parametrize("name", REFUSES)
def test_what_pytorch_cannot_run_is_refused_with_the_reason(name: str) -> None:
    for comms in (False, True):
        with pytest.raises((PlanError, ProgramError), match=REFUSES[name]):
            torch_file(SCHEDULES.get(name), some_shape(name), comms)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(TAKES), p=st.integers(1, 5), m=st.integers(1, 10), v=st.integers(1, 3))
def test_what_is_written_for_pytorch_is_read_back(name: str, p: int, m: int, v: int) -> None:
    found = order_of(name, Shape(p, m, v))
    assume(found is not None)
    order, placement = found  # type: ignore[misc]
    for comms in (False, True):
        assert (order, placement, Shape(p, m, v)) == read_order_file_text(torch_text(order, placement, comms))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), p=st.integers(1, 4), m=st.integers(1, 4), v=st.integers(1, 2), split=st.booleans())
def test_an_order_deadlocks_exactly_where_the_engine_cannot_run_it(
    seed: int, p: int, m: int, v: int, split: bool
) -> None:
    order = shuffled(random.Random(seed), p, m, v, split)
    placement = placement_of(order)
    check_order(order, placement, m)
    program, prices = abstract_program(
        placement, order, Pattern(order, placement), forward=1, input_grad=1, weight_grad=1
    )
    assert raises(lambda: run(program, prices, "compiled")) == raises(lambda: check_order_runs(order))
    assert raises(lambda: check_order_runs(order)) == raises(lambda: lower_for_torch(order, placement))


def shuffled(dice: random.Random, p: int, m: int, v: int, split: bool) -> PipelineOrder:
    """A random order that keeps only the rules of each rank: forward, then backward, then weights, of each microbatch."""
    lines = []
    for rank in range(p):
        runs = [
            [f"{c}{kind}{i}" for kind in ("FIW" if split else "FB")] for c in range(rank, p * v, p) for i in range(m)
        ]
        line = []
        while runs:
            near = dice.choice(runs[: dice.choice((1, 2, len(runs)))])
            line.append(near.pop(0))
            runs = [left for left in runs if left]
        lines.append(",".join(line))
    return PipelineOrder.parse("\n".join(lines))


def raises(call) -> bool:  # type: ignore[no-untyped-def]
    try:
        call()
    except DeadlockError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0", "rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1 of rank 0"),
        ("1F0,0F0,1B0,0B0", "rank 0 waits in 1F0 for its own 0F0, which stands behind it"),
        ("0F0.1/2,0B0.1/2,0F0.2/2,0B0.2/2\n1F0.1/2,1F0.2/2,1B0.1/2,1B0.2/2", "0B0.1/2 for 1B0.1/2 of rank 1; rank 1 waits in 1F0.2/2"),
        ("0F0,(0F1;0B0),0B1\n1F0,1F1,1B0,1B1", r"rank 0 waits in \(0F1;0B0\) for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1"),
    ],
)  # fmt: skip
def test_a_deadlock_names_who_waits_for_which_action_of_whom(text: str, told: str) -> None:
    with pytest.raises(DeadlockError, match=told):
        read_order_file_text(text)


def test_a_long_ring_is_told_in_part() -> None:
    ranks = 20
    lines = [f"{r}F1,{r}B1,{r}F0,{r}B0" if r % 2 else f"{r}F0,{r}B0,{r}F1,{r}B1" for r in range(ranks)]
    with pytest.raises(DeadlockError) as caught:
        read_order_file_text("\n".join(lines))
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("1RECV_F1,", "", r"rank 0, cell 5: 0SEND_F1 has no 1RECV_F1 on rank 1"),
        ("0SEND_F1,", "", r"rank 1, cell 4: 1RECV_F1 has no 0SEND_F1 on rank 0"),
        ("0RECV_B0,0B0", "0B0,0RECV_B0", r"rank 0, cell 7: 0RECV_B0 stands behind cell 6"),
        ("0F1,0SEND_F1", "0SEND_F1,0F1", r"rank 0, cell 4: 0SEND_F1 stands before cell 5"),
        ("0SEND_F0", "0SEND_F0,0SEND_F0", r"0SEND_F0 stands also in cell 3"),
        ("0SEND_F0", "0SEND_B0", r"rank 0, cell 3: 0SEND_B0 has none to go with"),
        (
            "0SEND_F0",
            "1SEND_F0",
            r"rank 0, cell 3: 1SEND_F0 names no stage and microbatch of this rank: stage 1 runs on rank 1",
        ),
        ("0SEND_F0", "9SEND_F0", r"no such stage"),
        ("0SEND_F0", "0SEND_F7", r"microbatches are 0..1"),
        ("0SEND_F0", "0SEND_F", r"rank 0, cell 3: communication is stage, SEND_F"),
        ("0UNSHARD", "0UNSHARD3", r"rank 0, cell 1: communication is stage, SEND_F"),
        ("0UNSHARD", "0XSHARD", r"rank 0, cell 1: communication is stage, SEND_F"),
        ("1RECV_F0,1F0,1RECV_F1", "1RECV_F1,1RECV_F0,1F0", r"rank 1, cell 2: 1RECV_F1 stands where 1RECV_F0 belongs"),
        ("0UNSHARD,0F0", "0F0,0UNSHARD", r"rank 0, cell 1 uses stage 0 while it is freed"),
        ("0UNSHARD", "0UNSHARD,0UNSHARD", r"rank 0, cell 2: 0UNSHARD is out of turn"),
        ("0B1,0REDUCE_GRAD", "0REDUCE_GRAD,0B1", r"rank 0, cell 9: 0REDUCE_GRAD is early or again"),
        ("0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD", r"rank 0, cell 11: 0REDUCE_GRAD is early or again"),
        ("1F0,", "1G0,", r"rank 1, cell 3: an action is stage"),
    ],
)
def test_communication_that_does_not_fit_is_named_by_rank_and_cell(old: str, new: str, told: str) -> None:
    assert 1 == WITH_COMMS.count(old)
    with pytest.raises(ProgramError, match=told):
        read_order_file_text("# a remark\n" + WITH_COMMS.replace(old, new))


def test_a_file_with_some_messages_has_all() -> None:
    text = WITH_COMMS.replace("0SEND_F1,", "").replace("1RECV_F1,", "")
    with pytest.raises(ProgramError, match="rank 0 lacks 0SEND_F1 behind cell 4"):
        read_order_file_text(text)


def test_communication_beside_what_pytorch_lacks_is_refused() -> None:
    text = SCHEDULES.get("chimera").order(Shape(2, 2), SCHEDULES.get("chimera").placement(Shape(2, 2))).to_text()
    with pytest.raises(ProgramError, match="2 lanes"):
        read_order_file_text("0UNSHARD," + text)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_every_schedule_runs_as_ones_own(name: str) -> None:
    schedule, shape = SCHEDULES.get(name), some_shape(name)
    own, found = schedule_of_text(schedule.order(shape, schedule.placement(shape)).to_text(), "mine")
    assert own.order(found, own.placement(found)) == schedule.order(shape, schedule.placement(shape))
    assert (schedule.replicas, schedule.splits_backward) == (own.replicas, own.splits_backward)
    with pytest.raises(PlanError, match="the one shape that it was written for"):
        own.check(Shape(3, 5, 7))


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0B0\n")
    assert read_schedule(path)[0] is read_schedule(path)[0]
    path.write_text("\ufeff0F0,0B0,0F1,0B1\n\n", encoding="utf-8")
    assert Shape(1, 2) == read_schedule(path)[1]


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        (None, SpecError, "no.csv: .* No such file"),
        (b"\xff\xfe0F0", SpecError, "no.csv: an order is a text file"),
        (b"", ProgramError, "no.csv: .* the text is empty"),
        (b"# only\n", ProgramError, "no.csv: .* the text is empty"),
        (b"0F0,0B0\n\n1F0,1B0\n", ProgramError, "no.csv: rank 1: .* has none"),
        (b"0UNSHARD\n", ProgramError, "no.csv: rank 0: .* has none"),
        (b"1F0,0F0,1B0,0B0", DeadlockError, "no.csv: the order deadlocks"),
    ],
)
def test_a_file_that_is_no_order_is_refused_by_name(
    content: bytes | None, error: type[Exception], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "no.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=told):
        read_schedule(path)


def test_a_folder_is_no_order(tmp_path: Path) -> None:
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(SpecError, match="is a directory"):
        read_schedule(tmp_path / "x.csv")


JOB = """
[workload]
model = "gpt3_1_3b"
sequence_length = 1024
global_batch_size = 8
[plan]
tensor_parallel = 2
pipeline_parallel = 4
microbatch_size = 1
schedule = "{}"
[cluster]
name = "dgx_a100"
gpus = 8
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """1F1B of four ranks and eight microbatches, in PyTorch's lowered form."""
    path = tmp_path / "own.csv"
    path.write_text(torch_file(SCHEDULES.get("1f1b"), Shape(4, 8), comms=True))
    return str(path)


def test_a_schedule_is_written_with_communication(dtsim: Dtsim, tmp_path: Path) -> None:
    asked = ("schedule", "1f1b", "-p", "2", "-m", "2", "--format", "torch-csv-comms")
    assert (0, WITH_COMMS, "") == dtsim(*asked)
    path = tmp_path / "out.csv"
    assert 0 == dtsim(*asked, "--output", str(path))[0]
    assert WITH_COMMS == path.read_text()


@pytest.mark.parametrize("form", ["torch-csv", "torch-csv-comms"])
def test_the_command_refuses_two_lanes_for_pytorch(dtsim: Dtsim, form: str) -> None:
    code, out, err = dtsim("schedule", "chimera", "-p", "4", "-m", "4", "--format", form)
    assert (2, "") == (code, out)
    assert "stage 0 runs on ranks 0, 3" in err


def test_a_schedule_by_name_needs_its_size(dtsim: Dtsim) -> None:
    code, _, err = dtsim("schedule", "1f1b", "-p", "4")
    assert 2 == code
    assert "-m MICROBATCHES" in err


def test_ones_own_order_has_the_figures_of_the_same_schedule_by_name(dtsim: Dtsim, own: str) -> None:
    mine = json.loads(dtsim("schedule", own, "--format", "json")[1])
    named = json.loads(dtsim("schedule", "1f1b", "-p", "4", "-m", "8", "--format", "json")[1])
    assert own == mine.pop("schedule")
    assert {key: value for key, value in named.items() if key != "schedule"} == mine
    picture = dtsim("schedule", "1f1b", "-p", "4", "-m", "8")[1].split("\n\n")[0]
    assert picture == dtsim("schedule", own, "-p", "4", "-m", "8")[1].split("\n\n")[0]


def test_another_shape_than_the_files_is_refused(dtsim: Dtsim, own: str) -> None:
    code, _, err = dtsim("schedule", own, "-m", "16")
    assert 2 == code
    assert "microbatches=16. Leave it out" in err


def test_the_command_names_a_deadlock(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "stuck.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    code, _, err = dtsim("schedule", str(path))
    assert 2 == code
    assert "rank 0 waits in 0B0 for 1B0 of rank 1; rank 1 waits in 1F1 for 0F1 of rank 0" in err


def test_a_job_runs_ones_own_order(dtsim: Dtsim, own: str, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(own))
    mine = json.loads(dtsim("run", str(job), "--json")[1])
    named = json.loads(dtsim("run", str(job), "--set", "plan.schedule=1f1b", "--json")[1])
    assert named["step_time_s"] == mine["step_time_s"]
    assert own == mine["provenance"]["schedule"]
    code, _, err = dtsim("run", str(job), "--set", "workload.global_batch_size=16")
    assert 2 == code
    assert "nearest that works: ranks=4, microbatches=8" in err


def test_a_job_is_exported(dtsim: Dtsim, own: str, tmp_path: Path) -> None:
    job, trace = tmp_path / "job.toml", tmp_path / "step.json.gz"
    job.write_text(JOB.format("1f1b"))
    assert Path(own).read_text() == dtsim("export", "torch-csv-comms", str(job))[1]
    compute = dtsim("export", "torch-csv", str(job))[1]
    assert SCHEDULES.get("1f1b").order(Shape(4, 8), Placement.linear(Shape(4, 8))).to_text() == compute
    assert 0 == dtsim("export", "chrome", str(job), "--output", str(trace))[0]
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    for wrong, told in (
        (("jpeg", str(job)), "Known: chakra, chrome, deepspeed, megatron, torch-csv, torch-csv-comms, torchtitan"),
        (("chrome", str(job), "--output", "-"), "a trace's file ending names its format"),
        (("torch-csv", str(job), "--set", "plan.schedule=chimera"), "PyTorch keeps a stage on one rank"),
    ):
        code, _, err = dtsim("export", *wrong)
        assert 2 == code
        assert told in err
