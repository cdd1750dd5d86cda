"""The verb search: its JSON, the job it writes, what a job file says of its own search, and bad words."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from simulator.job import load_job
from simulator.simulation import simulate_job
from tests.command import Dtsim

COMMAND = ("search", "--model", "gpt3_1_3b", "--cluster", "h100_x8", "--set", "workload.global_batch_size=32")
RANGES = ("--range", "tensor_parallel=1,2", "--range", "microbatch_size=1,2")


def test_the_command_answers_in_json(dtsim: Dtsim) -> None:
    code, out, _ = dtsim(*COMMAND, *RANGES, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["kind"] == "search"
    assert answer["space"]["plans"] == 4
    assert sum(answer["disposed"].values()) == 4
    assert answer["proven"] is True
    assert answer["gap"] == 0.0
    assert {"plan", "step_time_s", "low_s", "high_s", "peak_memory_bytes", "fit_probability", "validated_on"} <= set(
        answer["best"][0]
    )
    assert answer["pareto"]


def test_clusters_are_compared_each_with_its_own_best_plan_where_no_plan_is_named(dtsim: Dtsim) -> None:
    asked = (*COMMAND, "--fix", "cluster.gpus=8", "--range", "cluster.name=h100_x8,a100_x8", "--json")
    answer = json.loads(dtsim(*asked)[1])
    alone = json.loads(dtsim(*COMMAND, "--fix", "cluster.gpus=8", "--json")[1])
    assert answer["space"]["plans"] == 2 * alone["space"]["plans"]
    assert answer["chosen"]["step_time_s"] == alone["chosen"]["step_time_s"]
    assert (
        2 == json.loads(dtsim(*asked, "--set", "plan.zero_stage=1")[1])["space"]["plans"]
    )  # a plan that is named is taken as it is


def test_the_plan_found_is_written_as_a_job_that_predicts_the_same(dtsim: Dtsim, tmp_path: Path) -> None:
    file = tmp_path / "found.toml"
    code, out, _ = dtsim(*COMMAND, *RANGES, "--fix", "recompute=full", "--json", "-o", str(file))
    chosen = json.loads(out)["chosen"]
    assert code == 0
    assert simulate_job(load_job(file)).step_time == chosen["step_time_s"]
    assert dtsim(*COMMAND, *RANGES, "-o", str(file))[0] == 2  # what exists is kept


def test_a_job_whose_tables_would_be_lost_is_not_written(dtsim: Dtsim, tmp_path: Path) -> None:
    file = tmp_path / "found.toml"
    code, _, error = dtsim(*COMMAND, *RANGES, "--set", "jitter.compute=0.02", "-o", str(file))
    assert (code, file.exists()) == (2, False)
    assert "[jitter]" in error
    assert "Way out" in error


TABLE = """
[workload]
model = "gpt3_1_3b"
global_batch_size = 32
[cluster]
name = "h100_x8"
[search]
objective = "memory"
[search.range]
tensor_parallel = [1, 2]
"plan.microbatch_size" = [1, 2]
[search.fix]
recompute = "full"
"""


def test_a_job_says_its_own_search_and_options_count_before_it(dtsim: Dtsim, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(TABLE)
    code, out, _ = dtsim("search", str(file), "--json")
    answer = json.loads(out)
    assert (code, answer["objective"]) == (0, "memory")
    assert answer["space"]["ranges"] == {"plan.tensor_parallel": [1, 2], "plan.microbatch_size": [1, 2]}
    full = [one["peak_memory_bytes"] for one in answer["best"]]
    code, out, _ = dtsim(
        "search", str(file), "--objective", "step_time", "--fix", "tp=2", "--range", "recompute=none,full", "--json"
    )
    answer = json.loads(out)
    assert (code, answer["objective"], answer["space"]["plans"]) == (0, "step_time", 4)
    assert answer["best"][0]["peak_memory_bytes"] > min(full)
    file.write_text(TABLE.replace("tensor_parallel =", "tensor_paralel ="))
    code, _, error = dtsim("search", str(file))
    assert code == 2
    assert "tensor_parallel" in error


def test_gpus_at_most_chooses_their_number(dtsim: Dtsim) -> None:
    code, out, _ = dtsim(
        *COMMAND, "--range", "zero_stage=1,3", "--gpus", "at-most", "8", "--objective", "cost", "--json"
    )
    answer = json.loads(out)
    assert code == 0
    assert answer["space"]["ranges"]["cluster.gpus"] == [1, 2, 4, 8]
    assert answer["best"][0]["gpus"] in (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--strategy", "magic"), "magic"),
        (("--objective", "beauty"), "step_time, cost, memory, energy"),
        (("--fit-probability", "1.5"), "between 0"),
        (("--tries", "5"), "draws nothing"),
        (("--gpus", "exactly", "8"), "at-most"),
        (("--gpus", "8", "--json"), "expected at-most N, got '8 --json'"),
        (("--deadline", "soon"), "--deadline"),
        (("--top", "0"), "1 or more"),
        (("--plot", "out.xyz"), "file ending names its format"),
        (("--sensitivity", "out.csv"), "file ending names its format"),
    ],
)
def test_bad_words_end_with_2_and_say_why(dtsim: Dtsim, words: tuple[str, ...], told: str) -> None:
    code, out, error = dtsim(*COMMAND, *RANGES, *words)
    assert (code, out) == (2, "")
    assert told in error
    assert "plans" not in error.partition("error:")[0]  # told before anything is searched


@pytest.mark.parametrize(
    "words",
    [
        ("search", "--model", "gpt2_124m"),
        ("fit", "gpt2_124m", "--fewest", "gpus"),
        ("fit", "gpt2_124m", "--largest", "batch"),
        ("advise", "--model", "gpt2_124m"),
        ("run", "--model", "gpt2_124m"),
    ],
)
def test_a_precision_that_the_gpu_has_not_is_refused_before_any_plan(dtsim: Dtsim, words: tuple[str, ...]) -> None:
    """In place of "nothing fits": a plan more or less would change nothing."""
    code, out, error = dtsim(*words, "--cluster", "v100_dgx1")
    assert (code, out) == (2, "")
    assert "no peak for bf16" in error
    assert error.rstrip().endswith("Way out: --set workload.precision=fp16")
    assert "plans" not in error


def test_where_nothing_fits_the_nearest_plan_is_told(dtsim: Dtsim) -> None:
    code, out, _ = dtsim("search", "--model", "gpt3_175b", "--cluster", "h100_x8", "--range", "tensor_parallel=4,8")
    assert code == 0
    assert "no plan fits" in out
    assert "nearest: plan.tensor_parallel=8" in out


def test_who_has_no_time_to_look_is_not_told_that_nothing_fits(dtsim: Dtsim, tmp_path: Path) -> None:
    words = ("search", "--model", "gpt3_175b", "--cluster", "h100_x8", "--budget", "1ms")
    code, out, error = dtsim(*words, "-o", str(tmp_path / "job.toml"))
    assert code == 2
    assert re.search(r"no plan was found that fits, and [\d,]+ were not looked at", out)
    assert "not proven: another plan may fit" in out
    assert "no plan fits" not in out + error
    assert "Way out: a longer --deadline" in error


@pytest.mark.parametrize("named", [("--model", "gpt3_1_3b", "--cluster", "h100_x8"), ("own job.toml",)])
def test_the_command_that_runs_the_winner_predicts_it(
    dtsim: Dtsim, named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was fixed and set; a setting that the plan changes is not said twice."""
    monkeypatch.chdir(tmp_path)
    Path("own job.toml").write_text(TABLE)
    more = (
        "--set",
        "workload.sequence_length=1024",
        "--set",
        "tp=2",
        "--fix",
        "zero_stage=1",
        "--fix",
        "pipeline_parallel=2",
    )
    words = (*named, *more, "--range", "tensor_parallel=1,2")
    code, out, _ = dtsim("search", *words)
    (line,) = [line for line in out.splitlines() if "run it:" in line]
    command = shlex.split(line.partition("run it: dtsim ")[2])
    assert code == 0
    assert {"plan.zero_stage=1", "workload.sequence_length=1024"} <= set(command)
    assert "tp=2" not in command
    _, searched, _ = dtsim("search", *words, "--json")
    _, again, _ = dtsim(*command, "--json")
    assert json.loads(again)["step_time_s"]["value"] == json.loads(searched)["chosen"]["step_time_s"]


def test_the_answer_says_what_binds_and_what_memory_costs(dtsim: Dtsim) -> None:
    code, out, _ = dtsim(*COMMAND, *RANGES, "--range", "recompute=none,full", "--strategy", "grid", "--json")
    answer = json.loads(out)
    front = [(one["step_time_s"], one["peak_memory_bytes"]) for one in answer["pareto"]]
    assert all(one["fit_probability"] >= 0.9 for one in answer["pareto"])
    assert len(front) > 1
    assert front == sorted(front)
    assert [size for _, size in front] == sorted((size for _, size in front), reverse=True)
    code, out, _ = dtsim(*COMMAND, *RANGES, "--range", "recompute=none,full", "--strategy", "grid")
    assert code == 0
    assert "what binds it: backward " in out
    assert (
        f"time against memory\n  {len(front)} of the {answer['disposed']['simulated']} plans simulated that fit" in out
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--range", "tp=2,4"),
        ("--fix", "tp=4", "--range", "zero_stage=0,1"),
        ("--range", "tp=4", "--gpus", "at-most", "32"),
    ],
)
def test_the_plan_of_a_job_that_tells_its_replicas_runs_as_it_is_printed(dtsim: Dtsim, words: tuple[str, ...]) -> None:
    job = "gpt3_13b_2xdgx_a100"  # has data_parallel = 4
    _, out, _ = dtsim("search", job, *words)
    printed = next(line for line in out.splitlines() if "run it: dtsim " in line)
    code, said, _ = dtsim(*shlex.split(printed.partition("run it: dtsim ")[2]), "--json")
    assert code == 0
    _, out, _ = dtsim("search", job, *words, "--json")
    best = json.loads(out)["best"][0]
    assert json.loads(said)["step_time_s"]["value"] == best["step_time_s"]


def test_what_a_proof_leaves_is_disposed_of_by_its_bound(dtsim: Dtsim) -> None:
    many = ("--range", "tp=2,4,8", "--range", "zero_stage=0,1,3", "--range", "microbatch_size=1,2", "--range", "pp=1,2")
    _, out, _ = dtsim(
        "search", "gpt3_13b_2xdgx_a100", *many, "--strategy", "descent", "--fit-probability", "0", "--json"
    )
    answer = json.loads(out)
    assert answer["proven"] is True
    assert set(answer["disposed"]) == {"refused", "memory", "bounded", "simulated"}
    assert sum(answer["disposed"].values()) == 36


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--range", "tp=3,5", "--plot", "plans.png"), "a picture of a search shows plans that were simulated"),
        (("--range", "tp=3,5", "--sensitivity", "holds.png"), "holds.png: not written, since no plan"),
        (("--range", "tp=3,5", "-o", "job.toml"), "job.toml: not written, since no plan"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_is_told_also_where_a_file_cannot_be_made_of_it(
    words: tuple[str, ...], said: str, as_json: bool, dtsim: Dtsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why, and may have taken an hour."""
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim("search", "--model", "gpt2_124m", "--cluster", "h100_x8", *words, *["--json"] * as_json)
    assert code == 2
    assert said in error
    assert (json.loads(out)["disposed"]["refused"] == 2) if as_json else ("2 refused" in out)
    assert list(tmp_path.iterdir()) == []


def test_a_value_given_twice_is_sent_to_where_several_may_stand(dtsim: Dtsim) -> None:
    code, _, error = dtsim(*COMMAND, "--fix", "zero_stage=1", "--fix", "zero_stage=2")
    assert code == 2
    assert "--fix: plan.zero_stage is given twice. Way out: --range plan.zero_stage=V,V" in error


@pytest.mark.parametrize("option", ["--strategy", "--objective"])
def test_an_empty_word_is_no_default(option: str, dtsim: Dtsim) -> None:
    code, out, error = dtsim(*COMMAND, *RANGES, option, "")
    assert (code, out) == (2, "")
    assert "''" in error


@pytest.mark.parametrize("objective", ["step_time", "cost", "memory", "energy"])
def test_a_precision_among_others_that_the_gpu_has_not_is_refused(objective: str, dtsim: Dtsim) -> None:
    words = ("search", "--model", "gpt2_124m", "--cluster", "v100_dgx1", "--set", "workload.precision=fp16")
    code, out, error = dtsim(
        *words, "--range", "workload.precision=fp16,bf16", "--objective", objective, "--top", "1", "--json"
    )
    assert code == 0, error
    answer = json.loads(out)
    assert answer["disposed"] == {"refused": 1, "memory": 0, "bounded": 0, "simulated": 1}
    assert answer["best"][0]["plan"] == {"workload.precision": "fp16"}


def test_the_plan_chosen_is_beaten_by_no_tie(dtsim: Dtsim) -> None:
    asked = ("search", "gpt3_13b_2xdgx_a100", "--range", "tp=2,4,8", "--range", "zero_stage=0,1,3")
    answer = json.loads(dtsim(*asked, "--json")[1])
    first, second = answer["best"][:2]
    assert first["step_time_s"] < second["step_time_s"]
    assert first["peak_memory_bytes"] < second["peak_memory_bytes"]
    assert 2 == len(answer["ties"])  # the second is the simpler, and worse in all that is told
    assert answer["chosen"] == first
    assert "chosen: the simplest that no tie beats" in dtsim(*asked)[1]


def test_a_range_that_is_refused_for_what_the_job_says_tells_why(dtsim: Dtsim, tmp_path: Path) -> None:
    """Layers by hand are those of one number of chunks."""
    job = tmp_path / "split.toml"
    job.write_text(
        """name = "split"
[workload]
model = "gpt3_1_3b"
global_batch_size = 32
[plan]
pipeline_parallel = 2
layer_split = [13, 11]
[cluster]
name = "h100_x8"
"""
    )
    _, said, _ = dtsim("search", str(job), "--range", "pp=2,4,8")
    assert "2 refused" in said
    assert "refused most often: layer_split must give 4 chunks" in said


@pytest.mark.parametrize("option", ["--top", "--processes"])
def test_a_count_that_is_none_is_named(dtsim: Dtsim, option: str) -> None:
    assert f"error: {option[2:]} is 1 or more, got 0\n" == dtsim(*COMMAND, *RANGES, option, "0")[2]
