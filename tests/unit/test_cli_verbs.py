"""What the verbs of `dtsim` answer: keys, meanings, exit codes."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import VERBS
from simulator.job import job_from_names
from simulator.report.summary import headline
from simulator.simulation import simulate_job
from simulator.studies.explanation import from_peak_to_step
from tests.command import Dtsim

JOB = """
[workload]
model = "gpt3_1_3b"
sequence_length = 1024
global_batch_size = 32
[plan]
tensor_parallel = 2
pipeline_parallel = 4
microbatch_size = 1
schedule = "one_f_one_b"
[cluster]
name = "dgx_a100"
gpus = 8
"""
TOO_LARGE = [
    "--model",
    "llama2_70b",
    "--cluster",
    "dgx_h100",
    "--set",
    "cluster.gpus=64",
    "--set",
    "plan.tensor_parallel=8",
]


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(JOB)
    return str(path)


def answer(result: tuple[int, str, str]) -> Any:
    """The JSON object of a call that must have worked; Python's NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    code, out, err = result
    assert 0 == code, err
    return json.loads(out, parse_constant=refuse)


def test_help_names_every_verb(dtsim: Dtsim) -> None:
    code, out, _ = dtsim("--help")
    assert 0 == code
    assert set(VERBS) <= set(out.split())


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(dtsim: Dtsim, verb: str) -> None:
    code, out, _ = dtsim(verb, "--help")
    assert 0 == code
    assert f"dtsim {verb}" in out


def test_run_json_has_the_keys_of_the_contract(dtsim: Dtsim, job: str) -> None:
    found = answer(dtsim("run", job, "--json"))
    wanted = {
        "schema_version", "step_time_s", "tokens_per_second_per_gpu", "model_tflops_per_gpu", "mfu", "hfu",
        "bubble_fraction", "bubble_overhead", "exposed_communication_s", "breakdown_s", "peak_memory_bytes", "fits",
        "provenance",
    }  # fmt: skip
    assert wanted <= set(found)
    assert {"tp", "cp", "ep", "pp", "dp"} == set(found["exposed_communication_s"])
    assert [0, 1, 2, 3] == [rank["pipeline_rank"] for rank in found["peak_memory_bytes"]]
    assert {"version", "calibration", "engine"} <= set(found["provenance"])
    step = found["step_time_s"]
    assert step["low"] < step["value"] < step["high"]
    assert math.isclose(step["value"], sum(found["breakdown_s"].values()))
    assert "measured" not in found
    assert "training" not in found
    assert "advice" not in found


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "gpt3_175b"),
        ("explain", "gpt2_124m_1gpu"),
        ("compare", "gpt3_175b"),
        ("collective", "all_gather", "--size", "1MB", "--cluster", "dgx_a100", "--ranks", "8"),
        ("list", "models"),
        ("show", "model", "gpt2"),
        ("show", "program", "gpt2_124m_1gpu"),
    ],
)
def test_every_json_answer_carries_schema_version_and_provenance(dtsim: Dtsim, arguments: tuple[str, ...]) -> None:
    found = answer(dtsim(*arguments, "--json"))
    assert 1 == found["schema_version"]
    assert "version" in found["provenance"]


def test_set_changes_the_answer(dtsim: Dtsim, job: str) -> None:
    before = answer(dtsim("run", job, "--json"))
    after = answer(dtsim("run", job, "--set", "plan.recompute=full", "--json"))
    assert before["step_time_s"]["value"] < after["step_time_s"]["value"]
    assert before["peak_memory_bytes"][0]["total"] > after["peak_memory_bytes"][0]["total"]


def test_both_engines_agree(dtsim: Dtsim, job: str) -> None:
    quick = answer(dtsim("run", job, "--json"))
    readable = answer(dtsim("run", job, "--engine", "simpy", "--json"))
    assert math.isclose(quick["step_time_s"]["value"], readable["step_time_s"]["value"], rel_tol=1e-9)


def test_a_measurement_is_judged_inside_or_outside_the_band(dtsim: Dtsim, job: str) -> None:
    step = answer(dtsim("run", job, "--json"))["step_time_s"]
    inside = answer(dtsim("run", job, "--measured", f"{step['value']} s", "--json"))["measured"]
    outside = answer(dtsim("run", job, "--measured", f"{3 * step['value']} s", "--json"))["measured"]
    assert inside["inside_band"]
    assert math.isclose(0.0, inside["error"], abs_tol=1e-12)
    assert not outside["inside_band"]
    assert math.isclose(2 * step["value"], outside["gap_s"])
    reaches = [term["reach_s"] for term in outside["could_explain"]]
    assert reaches == sorted(reaches, reverse=True)
    assert all(term["explains_alone"] == (term["reach_s"] >= outside["gap_s"]) for term in outside["could_explain"])
    code, out, _ = dtsim("run", job, "--measured", f"{3 * step['value']} s")
    assert 0 == code
    assert "OUTSIDE the 80 % band" in out


def test_a_measured_rate_is_a_step_time(dtsim: Dtsim, job: str) -> None:
    found = answer(dtsim("run", job, "--json"))
    rate = found["tokens_per_second_per_gpu"]
    judged = answer(dtsim("run", job, "--measured-tokens-per-gpu", str(rate), "--json"))["measured"]
    assert math.isclose(found["step_time_s"]["value"], judged["step_time_s"], rel_tol=1e-9)


def test_the_measurement_of_a_job_file_is_used(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    path.write_text('measured_step_time = "2.5 s"\n' + JOB)
    assert 2.5 == answer(dtsim("run", str(path), "--json"))["measured"]["step_time_s"]


def test_tokens_give_days_and_gpu_hours(dtsim: Dtsim, job: str) -> None:
    found = answer(dtsim("run", job, "--tokens", "1B", "--json"))
    steps = math.ceil(1e9 / (32 * 1024))
    hours = steps * found["step_time_s"]["value"] / 3600
    assert steps == found["training"]["steps"]
    assert math.isclose(hours / 24, found["training"]["days"]["value"])
    assert math.isclose(8 * hours, found["training"]["gpu_hours"])
    assert found["training"]["price_usd"] is None


def test_tokens_cost_money_where_the_cluster_has_a_price(dtsim: Dtsim, job: str, tmp_path: Path) -> None:
    cluster = tmp_path / "priced.toml"
    cluster.write_text('name = "priced"\nnode = "dgx_a100_80"\nnodes = 1\nprice_per_gpu_hour = "2 $/h"\n')
    found = answer(dtsim("run", job, "--set", f"cluster.name={cluster}", "--tokens", "1B", "--json"))["training"]
    assert math.isclose(2 * found["gpu_hours"], found["price_usd"])


def test_out_of_memory_is_an_answer_with_advice(dtsim: Dtsim) -> None:
    found = answer(dtsim("run", *TOO_LARGE, "--json"))
    assert not found["fits"]
    advice = found["advice"]
    fullest = max(rank["total"] for rank in found["peak_memory_bytes"])
    assert math.isclose(fullest - found["memory_capacity_bytes"], advice["excess_bytes"])
    fitting = [trial for trial in advice["tried"] if trial["fits"]]
    assert advice["best"]["step_time_s"] == min(trial["step_time_s"] for trial in fitting)
    settings = [part for setting in advice["best"]["settings"] for part in ("--set", setting)]
    again = answer(dtsim("run", *TOO_LARGE, *settings, "--json"))
    assert again["fits"]
    assert math.isclose(advice["best"]["step_time_s"], again["step_time_s"]["value"])


def test_advice_does_not_list_all_that_does_not_help(dtsim: Dtsim) -> None:
    tried = answer(dtsim("run", *TOO_LARGE, "--json"))["advice"]["tried"]
    text = dtsim("run", *TOO_LARGE)[1]
    far = sum(not trial["fits"] for trial in tried) - 3
    assert far > 0, "else this tests nothing"
    assert 3 == text.count("too much")
    assert f"{far} other changes fall short by more" in text


def test_the_command_in_a_page_asks_all_that_was_asked(dtsim: Dtsim, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    asked = ("--set", "jitter.compute=0.02", "--tokens", "1T", "--samples", "2", "--seed", "3", "--measured", "2.5 s")
    code, _, err = dtsim("run", "gpt2_124m_1gpu", *asked, "--report", str(page))
    assert 0 == code, err
    assert (
        "dtsim run gpt2_124m_1gpu --set jitter.compute=0.02 --measured '2.5 s' --tokens 1T --samples 2 --seed 3"
        in page.read_text()
    )


def test_run_says_which_tensors_stand_at_the_peak(dtsim: Dtsim, job: str) -> None:
    found = answer(dtsim("run", job, "--json"))
    peak = found["largest_at_peak"]
    totals = [rank["total"] for rank in found["peak_memory_bytes"]]
    assert totals.index(max(totals)) == peak["pipeline_rank"]
    sizes = [tensor["bytes"] for tensor in peak["tensors"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= max(totals)


def test_run_writes_trace_plot_and_page(dtsim: Dtsim, job: str, tmp_path: Path) -> None:
    files = {
        option: tmp_path / name for option, name in (("trace", "t.json.gz"), ("plot", "p.png"), ("report", "r.html"))
    }
    code, out, err = dtsim("run", job, "--json", *(part for o, path in files.items() for part in (f"--{o}", str(path))))
    assert 0 == code
    json.loads(out)
    assert 3 == err.count("wrote ")
    assert json.loads(gzip.decompress(files["trace"].read_bytes()))["traceEvents"]
    assert b"\x89PNG" == files["plot"].read_bytes()[:4]
    page = files["report"].read_text()
    assert "default-src 'none'" in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert json.loads(out)["step_time_s"]["value"] == data["answer"]["step"]
    assert data["origin"]["command"] == f"dtsim run {job}"


def test_explain_ranks_neighbouring_plans(dtsim: Dtsim, job: str) -> None:
    found = answer(dtsim("explain", job, "--json"))
    step = found["step_time_s"]["value"]
    assert math.isclose(step, sum(part["seconds"] for part in found["from_peak_to_step_s"]))
    fitting = [change for change in found["changes"] if change["fits"]]
    assert len(fitting) >= 8
    times = [change["step_time_s"] for change in fitting]
    assert times == sorted(times)
    assert times[0] < step
    assert fitting[0] == found["best"]
    settings = [part for setting in found["best"]["settings"] for part in ("--set", setting)]
    again = answer(dtsim("run", job, *settings, "--json"))
    assert math.isclose(times[0], again["step_time_s"]["value"])


def test_more_than_the_peak_is_explained_by_scores_that_are_spared() -> None:
    """Windows of 1,024 of 131,072 tokens: model FLOP count every score."""
    settings = [
        "plan.framework=pytorch_ddp",
        "cluster.gpus=16",
        "workload.global_batch_size=64",
        "workload.sequence_length=131072",
    ]
    prediction = simulate_job(job_from_names("gemma3_27b", "a100_40_roce", settings))
    assert prediction.mfu > 1
    ladder = from_peak_to_step(prediction)
    assert ladder[1][1] < 0
    assert "masks and windows" in ladder[1][0]
    assert math.isclose(sum(seconds for _, seconds in ladder), prediction.step_time)
    assert "masks and windows" in headline(prediction, "windows").lines[0]


def test_compare_puts_every_combination_into_one_table(dtsim: Dtsim, job: str, tmp_path: Path) -> None:
    picture = tmp_path / "c.png"
    found = answer(dtsim("compare", job, "--schedule", "gpipe,1f1b,no_such", "--plot", str(picture), "--json"))
    rows = found["rows"]
    assert ["schedule gpipe", "schedule 1f1b", "schedule no_such"] == [row["name"] for row in rows]
    assert rows[0]["peak_memory_fullest_bytes"] > rows[1]["peak_memory_fullest_bytes"]
    assert "no_such" in rows[2]["reason"]
    assert b"\x89PNG" == picture.read_bytes()[:4]


def test_a_comparison_of_one_is_called_by_its_setting_and_unknown_schedules_alone_are_refused(
    dtsim: Dtsim, job: str
) -> None:
    assert ["schedule gpipe"] == [
        row["name"] for row in answer(dtsim("compare", job, "--schedule", "gpipe", "--json"))["rows"]
    ]
    code, out, err = dtsim("compare", job, "--schedule", "gpip")
    assert (2, "") == (code, out)
    assert "Did you mean 'gpipe'?" in err


@pytest.mark.parametrize("more", [("--json",), ("--format", "json")])
def test_a_schedule_is_one_json_object_by_either_option(dtsim: Dtsim, more: tuple[str, ...]) -> None:
    assert 9.0 == answer(dtsim("schedule", "gpipe", "-p", "2", "-m", "2", *more))["makespan"]


def test_an_unknown_verb_is_told_the_nearest(dtsim: Dtsim) -> None:
    code, _, err = dtsim("explian", "gpt3_175b")
    assert 2 == code
    assert "no verb 'explian'. Did you mean 'explain'?" in err


def test_show_cuts_no_text_short(dtsim: Dtsim) -> None:
    assert "recompute." in dtsim("show", "job", "gpt3_175b")[1].replace("\n", " ")


def test_compare_takes_any_setting_and_zero_stages(dtsim: Dtsim, job: str) -> None:
    arguments = ("--set", "plan.pipeline_parallel=1", "--set", "plan.schedule=1f1b", "--zero", "0,1,2,3")
    rows = answer(dtsim("compare", job, *arguments, "--set", "plan.microbatch_size=1,2", "--json"))["rows"]
    assert 8 == len(rows)
    assert all(row["reason"] is None for row in rows)
    states = [rows[i]["peak_memory_bytes"][0]["optimizer_states"] for i in (0, 2)]
    assert states[0] > states[1]


def test_compare_gives_a_schedule_the_chunks_it_can_take(dtsim: Dtsim, job: str) -> None:
    rows = answer(dtsim("compare", job, "--schedule", "1f1b,interleaved_1f1b", "--json"))["rows"]
    assert ["schedule 1f1b", "schedule interleaved_1f1b (chunks_per_rank 2)"] == [row["name"] for row in rows]


def test_init_writes_a_job_that_runs(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    arguments = ("init", "--model", "llama2_13b", "--cluster", "dgx_a100", "--gpus", "16", "--output", str(path))
    assert 0 == dtsim(*arguments)[0]
    assert path.read_text().count("#") > 10
    assert answer(dtsim("run", str(path), "--json"))["fits"]
    code, _, err = dtsim(*arguments)
    assert 2 == code
    assert "--force" in err
    assert 0 == dtsim(*arguments, "--force")[0]


@pytest.mark.parametrize(("length", "said"), [((), True), (("--sequence-length", "16384"), False)])
def test_init_says_where_it_takes_shorter_sequences(
    length: tuple[str, ...], said: bool, dtsim: Dtsim, tmp_path: Path
) -> None:
    path = tmp_path / "new.toml"
    dtsim("init", "--model", "codellama_34b", "--cluster", "dgx_h100", "--output", str(path), *length)
    assert said == ("8192  # tokens per sequence; the model takes up to 16,384" in path.read_text())


def test_init_leads_to_fit_where_nothing_fits(dtsim: Dtsim, tmp_path: Path) -> None:
    _, _, err = dtsim("init", "--model", "llama3_70b", "--cluster", "rtx_4090_x4", "-o", str(tmp_path / "new.toml"))
    assert "does NOT fit. Next: dtsim fit llama3_70b --cluster rtx_4090_x4 --fewest gpus" in err


def test_list_and_show_cover_every_kind(dtsim: Dtsim) -> None:
    kinds = answer(dtsim("list", "kinds", "--json"))["names"]
    assert {"models", "gpus", "links", "nodes", "clusters", "jobs", "frameworks", "calibrations"} <= set(kinds)
    assert {"schedules", "collectives", "optimizers"} <= set(kinds)
    for kind in sorted(set(kinds) - {"kinds", "engines", "collectives"}):
        names = answer(dtsim("list", kind, "--json"))["names"]
        for name in names[:1]:
            assert answer(dtsim("show", kind, name, "--json"))["name"]


def test_lines_of_a_list_end_with_words(dtsim: Dtsim) -> None:
    assert not [line for line in dtsim("list", "models")[1].splitlines() if line.rstrip().endswith(",")]


def test_show_gives_units_sources_and_what_follows(dtsim: Dtsim) -> None:
    code, out, _ = dtsim("show", "gpu", "a100")
    assert 0 == code
    assert "2039 GB/s" in out
    assert "sources" in out
    model = answer(dtsim("show", "model", "gpt2", "--json"))
    assert "124,439,808" == model["derived"]["parameters"]
    job = answer(dtsim("show", "job", "gpt3_175b", "--set", "plan.microbatch_size=2", "--json"))
    assert 2 == job["facts"]["plan"]["microbatch_size"]
    assert "48 of 2 per replica" == job["derived"]["microbatches"]


def test_show_program_prints_the_rows(dtsim: Dtsim, job: str) -> None:
    code, out, _ = dtsim("show", "program", job, "--rows", "3")
    lines = out.strip().split("\n")
    assert 0 == code
    assert lines[0].startswith("program ")
    assert 4 == len(lines)
    whole = dtsim("show", "program", job, "--rows", "0")[1].strip().split("\n")
    assert f"... {len(whole) - 3} more lines; --rows 0 prints all" == lines[3]


def test_a_fault_of_ours_is_one_line_and_exit_code_1(
    dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch, job: str, tmp_path: Path
) -> None:
    import simulator.simulation

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(simulator.simulation, "simulate_job", broken)
    code, out, err = dtsim("run", job)
    assert (1, "") == (code, out)
    assert "internal error: RuntimeError: boom" in err
    assert "Traceback" not in err


def test_a_reader_that_stops_reading_is_no_error() -> None:
    line = f"{sys.executable} -m simulator show program gpt3_175b --rows 0 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


def test_a_validation_that_is_stopped_says_so(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.accuracy.validate import Table

    plain = Table.outcomes

    def pressed(self: Table, everything: bool = False) -> Iterator[Any]:
        yield next(iter(plain(self, everything)))
        raise KeyboardInterrupt

    monkeypatch.setattr(Table, "outcomes", pressed)
    code, out, err = dtsim("validate", "--json")
    assert code == 130
    assert json.loads(out)["complete"] is False
    assert "they are shown" in err


@pytest.mark.parametrize("setting", ["model.layers=0", 'checkpoint.interval="0 s"', "plan.tensor_parallel=0"])
def test_what_a_setting_got_wrong_is_not_told_of_the_file(dtsim: Dtsim, setting: str) -> None:
    code, _, err = dtsim("run", "gpt3_175b", "--set", setting)
    assert code == 2
    assert "error: --set: " in err


def test_a_scheduler_has_an_address(dtsim: Dtsim, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('job = "gpt3_175b"\n[vary]\n"plan.zero_stage" = [0, 1]\n')
    code, _, err = dtsim("sweep", str(study), "--scheduler", "foo")
    assert code == 2
    assert "no address of a scheduler" in err


TITAN = ("--model", "llama3_8b", "--cluster", "h100_x8", "--set", "plan.zero_stage=3")


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (("deepspeed", "gpt3_13b_2xdgx_a100"), "recompute: none, as read: full"),
        (("torchtitan", *TITAN), "framework: megatron_core, as read: "),
        (("torchtitan", *TITAN, "--set", "plan.framework=torchtitan"), ""),
    ],
)
def test_an_export_tells_what_it_cannot_say(dtsim: Dtsim, words: tuple[str, ...], lost: str) -> None:
    code, _, err = dtsim("export", *words)
    assert code == 0
    assert (lost in err) if lost else ("another plan" not in err)
