"""dtsim goodput: the JSON that others call, its text and picture, and what a user gets wrong."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.goodput.study import goodput
from simulator.job import load_job
from simulator.simulation import simulate_job
from tests.command import Dtsim

PLAIN = """
[workload]
model = "llama3_8b"
global_batch_size = 128
[plan]
zero_stage = 3
framework = "torchtitan"
[cluster]
name = "p5"
gpus = 64
"""
FAILS = """
[reliability]
failures = [{component = "gpu", mtbf = "5000 h"}, {component = "host", mtbf = "3000 h"}]
detection = "1 min"
restart = "10 min"
[checkpoint]
interval = "30 min"
write = "60 s"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


def run(dtsim: Dtsim, *arguments: str, code: int = 0) -> tuple[str, str]:
    found, out, err = dtsim("goodput", *arguments)
    assert code == found, err
    return out, err


def answer(dtsim: Dtsim, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(run(dtsim, *arguments, "--json")[0]))


def test_the_answer_has_the_keys_that_were_promised(tmp_path: Path, dtsim: Dtsim) -> None:
    found = answer(dtsim, write(tmp_path, PLAIN + FAILS), "--days", "40", "--samples", "200", "--seed", "3")

    assert (1, "goodput") == (found["schema_version"], found["kind"])
    assert {"version", "cluster", "gpu", "assumptions"} <= set(found["provenance"])
    assert {"mean", "p10", "p50", "p90"} == set(found["days"]) == set(found["goodput"])
    assert {"detection", "restart", "rework", "checkpoint", "slow"} <= set(found["lost_s"])
    assert {"gpu_hours", "price", "energy_j", "co2_kg"} <= set(found)
    assert 40.0 == found["days"]["mean"]
    assert 40 * 24 * 64 == pytest.approx(found["gpu_hours"])
    assert 40 * 24 * 64 / 5000 == pytest.approx(found["interruptions"]["gpu"], rel=0.1)
    assert 40 * 24 * 8 / 3000 == pytest.approx(found["interruptions"]["host"], rel=0.15)
    total = sum(found["interruptions"].values())
    assert 600 * total == pytest.approx(found["lost_s"]["restart"], rel=0.05)
    assert found["goodput"]["p10"] <= found["goodput"]["p50"] <= found["goodput"]["p90"] < 1.0
    useful = found["days"]["mean"] * 86400 - sum(found["lost_s"].values())
    assert useful / (found["days"]["mean"] * 86400) == pytest.approx(found["goodput"]["mean"], rel=1e-6)


def test_every_key_is_documented(tmp_path: Path, dtsim: Dtsim) -> None:
    page = (Path(__file__).parents[2] / "docs" / "goodput.md").read_text().partition("## The answer as JSON")[2]
    found = answer(dtsim, write(tmp_path, PLAIN + FAILS), "--days", "5", "--samples", "5")
    keys = {*found, *found["lost_s"], *found["checkpoint"], *found["checkpoint"]["best_interval"], *found["levers"][0]}
    assert set() == {key for key in keys if f"`{key}`" not in page}


def test_without_tables_a_run_is_its_steps(tmp_path: Path, dtsim: Dtsim) -> None:
    path = write(tmp_path, PLAIN)
    found = answer(dtsim, path, "--tokens", "10B", "--samples", "5")
    prediction = simulate_job(load_job(path))
    steps = math.ceil(1e10 / prediction.tokens)

    assert steps * prediction.step_time / 86400 == pytest.approx(found["days"]["mean"], rel=1e-12)
    assert found["days"]["p10"] == found["days"]["p90"] == pytest.approx(found["days"]["mean"], rel=1e-12)
    assert 1.0 == found["goodput"]["mean"]
    assert {} == {name: mean for name, mean in found["interruptions"].items() if mean}
    (said,) = [text for text in found["provenance"]["assumptions"] if text.startswith("nothing fails")]
    settings = [setting.strip("'") for setting in re.findall(r"--set ('[^']*'|\S+)", said)]
    changes = [word for setting in settings for word in ("--set", setting)]
    failing = answer(dtsim, path, "--days", "20", "--samples", "5", "--no-levers", *changes)
    assert failing["interruptions"]  # the way out that it tells is one


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, dtsim: Dtsim) -> None:
    path = write(tmp_path, PLAIN + FAILS)
    first, again, other = (
        run(dtsim, path, "--days", "20", "--samples", "50", "--seed", seed, "--json")[0] for seed in ("5", "5", "6")
    )
    assert first == again != other


def test_neither_tokens_nor_days_is_a_month(tmp_path: Path, dtsim: Dtsim) -> None:
    found = answer(dtsim, write(tmp_path, PLAIN + FAILS), "--samples", "5", "--no-levers")
    assert (30.0, []) == (found["days"]["mean"], found["levers"])


def test_text_and_picture(tmp_path: Path, dtsim: Dtsim) -> None:
    picture, page = tmp_path / "run.png", tmp_path / "run.html"
    files = ("--plot", str(picture), "--report", str(page))
    out, err = run(dtsim, write(tmp_path, PLAIN + FAILS), "--days", "20", "--samples", "40", *files)
    for words in ("where the time goes", "interruptions", "best interval by simulation", "GPU-hours", "single changes"):
        assert words in out
    assert f"wrote {picture}" in err
    assert picture.stat().st_size > 20_000
    assert "where the time goes" in page.read_text()
    assert "data:image/png" in page.read_text()


def test_auto_finds_the_best_interval(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + FAILS)
    job = load_job(path, ['checkpoint.interval="auto"'])
    found = goodput(job, span=60 * 86400.0, samples=20, levers=False)
    assert found.interval is not None
    assert found.interval.exact == pytest.approx(found.interval.simulated, rel=0.05)
    assert abs(found.runs.model.interval - found.interval.simulated) <= found.described.step


def test_hours_of_spares_stand_beside_the_price_that_leaves_them_out(tmp_path: Path, dtsim: Dtsim) -> None:
    path = write(tmp_path, PLAIN + FAILS)
    run = (
        "goodput",
        path,
        "--days",
        "10",
        "--samples",
        "2",
        "--no-levers",
        "--set",
        "cluster.price_per_gpu_hour='2 $/h'",
    )
    assert "15,360 GPU-hours, 30,720 $\n" in dtsim(*run)[1]
    two = dtsim(*run, "--set", "reliability.spares=2", "--set", "reliability.repair='1 d'")[1]
    assert "30,720 $; 3,840 GPU-hours of spares are not in it" in two


def test_a_checkpoint_that_takes_longer_than_the_interval_is_told(tmp_path: Path, dtsim: Dtsim) -> None:
    path = write(tmp_path, PLAIN + FAILS)
    run = ("goodput", path, "--days", "1", "--samples", "2", "--no-levers", "--set", "checkpoint.mode=asynchronous")
    slow = (
        "--set",
        "checkpoint.interval='1 min'",
        "--set",
        "checkpoint.write='10 min'",
        "--set",
        "checkpoint.copy_time='1 s'",
    )
    said = dtsim(*run, *slow)[1]
    assert "not safe when the next one is due: training waits for it" in said
    assert "for the 1 s that training stands" in dtsim(*run, "--set", "checkpoint.interval=auto", *slow[2:])[1]
    assert "is due" not in dtsim(*run, *slow[:2], "--set", "checkpoint.write='10 s'", *slow[4:])[1]


def test_whoever_stops_it_gets_what_is_known(tmp_path: Path, dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.goodput import kernel

    plain, calls = kernel.run_kernel, []

    def pressed(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        plain(*arguments)

    monkeypatch.setattr(kernel, "run_kernel", pressed)
    settings = (write(tmp_path, PLAIN + FAILS), "--days", "20", "--samples", "500", "--no-levers", "--json")
    out, err = run(dtsim, *settings, code=130)
    assert (60, 500) == (json.loads(out)["samples"], json.loads(out)["samples_asked"])
    assert "stopped after 60 of 500 runs" in err


def test_whoever_stops_the_search_for_an_interval_gets_no_answer(
    tmp_path: Path, dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.goodput import kernel

    plain, calls = kernel.run_kernel, []

    def pressed(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        plain(*arguments)

    monkeypatch.setattr(kernel, "run_kernel", pressed)
    automatic = (PLAIN + FAILS).replace('interval = "30 min"', 'interval = "auto"')
    assert 'interval = "auto"' in automatic
    settings = (write(tmp_path, automatic), "--days", "20", "--samples", "500", "--no-levers", "--json")
    assert ("", 3) == (run(dtsim, *settings, code=130)[0], len(calls))


def test_whoever_stops_the_levers_keeps_the_runs(tmp_path: Path, dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.goodput.study.pull_levers", pressed)
    out, _ = run(dtsim, write(tmp_path, PLAIN + FAILS), "--days", "20", "--samples", "30", "--json", code=130)
    assert (30, True, []) == tuple(json.loads(out)[key] for key in ("samples", "stopped", "levers"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('failures = [{component = "gpu"}]', "missing key reliability.failures.0.mtbf"),
        ('failures = [{component = "gpu", mtbf = 5}]', "with its unit"),
        ('failures = [{component = "gpu", mtbf = "0 h"}]', "above zero"),
        ('failures = [{component = "gremlin", mtbf = "5 h"}]', "give per"),
        ('failures = [{component = "rack", mtbf = "5 h"}]', "give nodes"),
        ('failures = [{component = "gpu", mtbf = "5 h", effect = "slow"}]', "what is slower"),
        ('failures = [{component = "gpu", mtbf = "5 h", clock = 0.8}]', "what is slower"),
        ('failures = [{component = "gpu", mtbf = "5 h", age = "1 h"}]', "constant rate"),
        ("spares = 3", "give repair"),
        ("elastic = 3", "give spares too"),
        ('fleet = "meta_lama3"', "Did you mean"),
        ('detektion = "1 min"', "Did you mean detection"),
    ],
)
def test_a_wrong_table_is_refused_in_words(tmp_path: Path, dtsim: Dtsim, table: str, words: str) -> None:
    _, err = run(dtsim, write(tmp_path, f"{PLAIN}\n[reliability]\n{table}\n"), code=2)
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens", "1T", "--days", "3"), "give one of them"),
        (("--days", "-1"), "more than 0 and at most 36,500 days, but -1 days"),
        (("--samples", "0"), "samples must be"),
        (("--seed", "-1"), "a seed is a whole number"),
        (("--set", "checkpoint.write=auto"), "checkpoint.bandwidth"),
        (("--set", 'checkpoint.persist="3 h"'), "persist"),
        (("--set", 'reliability.failures=[{component="gpu",mtbf="1 h"}]', "--tokens", "1T"), "a run does not end"),
        (("--set", "power.cap=900 W"), "at most its own limit"),
    ],
)
def test_a_wrong_option_is_refused_in_words(tmp_path: Path, dtsim: Dtsim, options: tuple[str, ...], words: str) -> None:
    _, err = run(dtsim, write(tmp_path, PLAIN + FAILS), "--no-levers", *options, code=2)
    assert words in err


def test_a_job_that_does_not_fit_is_told_as_if_it_did(tmp_path: Path, dtsim: Dtsim) -> None:
    path = write(tmp_path, PLAIN + FAILS)
    found = answer(dtsim, path, "--set", "plan.zero_stage=0", "--samples", "5", "--no-levers")
    assert not found["fits"]
    assert any("does not fit" in text for text in found["provenance"]["assumptions"])


def test_failures_without_checkpoints_are_refused(tmp_path: Path) -> None:
    table = FAILS.partition("[checkpoint]")[0]
    with pytest.raises(SpecError, match=r"table \[checkpoint\]"):
        goodput(load_job(write(tmp_path, PLAIN + table)), span=86400.0)


def test_checkpoints_in_memory_need_no_word_on_the_file_system(tmp_path: Path, dtsim: Dtsim) -> None:
    settings = (write(tmp_path, PLAIN + FAILS), "--days", "20", "--samples", "20", "--no-levers")
    found = answer(dtsim, *settings, "--set", "checkpoint.mode=memory")
    assumed = found["provenance"]["assumptions"]
    assert "the file system gets a checkpoint every 3 h (checkpoint.persist)" in assumed
    assert any("checkpoint.persist_write" in text for text in assumed)
    told = answer(
        dtsim,
        *settings,
        "--set",
        "checkpoint.mode=memory",
        "--set",
        'checkpoint.persist="3 h"',
        "--set",
        'checkpoint.persist_write="3 h"',
    )
    assert told["goodput"] == found["goodput"]


def test_sites_draw_what_all_of_them_draw_and_less_while_they_exchange(dtsim: Dtsim) -> None:
    def watts(*settings: str) -> tuple[float, str]:
        asked = [word for one in settings for word in ("--set", one)]
        code, text, said = dtsim("goodput", "gpt3_13b_2xdgx_a100", "--samples", "1", "--no-levers", *asked)
        assert 0 == code, said
        found = re.search(r"([\d.]+) (k?)W while it trains", text)
        assert found
        return float(found[1]), text

    sites = ("sites.count=2", "sites.latency=10 ms")
    alone, _ = watts()
    quick, _ = watts(*sites, "sites.bandwidth=100 TB/s")
    slow, text = watts(*sites, "sites.bandwidth=1 Gb/s")
    assert quick == pytest.approx(2 * alone, rel=0.02)
    assert alone < slow < 0.8 * quick
    assert re.search(r"per step \([\d.]+ s of it between sites; a site's own: band ", text)


def test_checkpoints_that_nothing_needs_are_said_to_be_none(dtsim: Dtsim) -> None:
    asked = ("goodput", "gpt3_13b_2xdgx_a100", "--samples", "1", "--no-levers", "--set", "checkpoint.write=60 s")
    text = dtsim(*asked)[1]
    assert "none is taken, for nothing stops the job" in text
    assert " inf" not in text
    assert "one every 24,000.0 h of training" in dtsim(*asked, "--set", "checkpoint.interval=1000 d")[1]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            'reliability.maintenance={every="1 d", length="2 d"}',
            "length must be less than every: windows that meet leave no time to train",
        ),
        ("sites.count=2", "error: --set: missing key sites.bandwidth"),
        ("reliability.crews=1e1", "expected a whole number such as 8, got 10 as a fraction: write 10"),
    ],
)
def test_descriptions_that_cannot_be_name_the_way_out(dtsim: Dtsim, setting: str, said: str) -> None:
    code, _, err = dtsim("goodput", "gpt3_175b", "--set", setting)
    assert 2 == code
    assert said in err
