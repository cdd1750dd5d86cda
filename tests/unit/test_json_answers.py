"""Every JSON answer has the keys that docs/json.md declares, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.cli.answers import ANSWERS, SCHEMA_VERSION, json_schema, misfits
from tests.command import Dtsim
from tests.package_sources import ROOT

DATA = ROOT / "tests" / "data"
JOB = "gpt3_13b_2xdgx_a100"
NOISE = ("--set", "jitter.compute=0.02", "--samples", "5")

ASKED = {
    "run": [(JOB,), (JOB, "--measured", "7s", "--tokens", "1B", *NOISE), ("llama_7b_4x4090",)],
    "explain": [(JOB,)],
    "compare": [(JOB, "--zero", "0,1")],
    "scaling": [("compare", JOB, "--gpus", "16,32")],
    "latency_sweep": [
        ("compare", "gpt3_175b", "--schedule", "1f1b", "--latency-sweep", "0,1"),
        ("schedule", "1f1b", "-p", "4", "-m", "8", "--latency-sweep", "0,1"),
    ],
    "schedule": [("1f1b", "-p", "4", "-m", "4"), ("auto", "-p", "4", "-m", "4")],
    "schedules": [("schedule", "1f1b,chimera", "-p", "3", "-m", "4")],
    "search": [(JOB, "--range", "zero_stage=0,1")],
    "fit": [("llama3_8b", "--cluster", "h100_x8", "--largest", "batch", "--range", "zero_stage=0,3")],
    "advise": [("--model", "gpt2_124m", "--cluster", "rtx_5090_x1")],
    "plan": [("bert24_training", "--planner", "ideals,local_search")],
    "goodput": [("llama3_405b_16384xh100", "--days", "3", "--samples", "10", "--no-levers")],
    "collective": [("all_reduce", "--size", "1MiB", "--cluster", "dgx_h100", "--ranks", "8")],
    "layout": [
        ("gpt2_124m", "--mesh", "rows=2,cols=2", "--map", "batch=rows", "--map", "ffn=cols"),
        ("gpt2_124m", "--mesh", "cols=4", "--map", "heads=cols", "--cluster", "dgx_a100"),
        ("gpt2_124m", "--mesh", "cols=4", "--map", "heads=cols", "--propagate"),
        ("gpt2_124m", "--mesh", "cols=4", "--map", "heads=cols", "--choose"),
    ],
    "layouts": [("layout", "gpt2_124m", "--mesh", "tensor=2", "--compare", "megatron,whole_vocabulary")],
    "collectives": [("collective", "all_reduce", "--sizes", "1MiB:4MiB", "--cluster", "dgx_h100", "--ranks", "8")],
    "calibrate": [("nccl", f"{DATA}/nccl_logs/index.csv", "--output", "{new}/nccl_x.toml")],
    "accuracy": [("calibrate", "nccl", f"{DATA}/nccl_logs/index.csv", "--accuracy")],
    "validate": [(f"{DATA}/schedule_goldens.csv", "--kind", "schedules")],
    "import": [(f"{DATA}/imports/megatron.sh",)],
    "list": [("schedules",), ()],
    "show": [("gpus", "h100_80gb_sxm"), ("option", "zero_stage"), ("job", JOB)],
    "program": [("show", "program", "gpt2_124m_1gpu", "--rows", "3")],
}
"""Answer -> words that give it; the verb is the answer's name unless it comes first."""
NOT_ASKED = {"calibrate_kernels", "capture", "measure", "sweep"}
"""Held in tests/unit/test_cli_calibrate.py, tests/unit/test_capture*.py, test_sweep.py and test_probes.py, beside what they need."""
VERBS = {"compare", "schedule", "collective", "calibrate", "layout", "show"}


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, some in ASKED.items() for words in some])
def test_an_answer_has_the_keys_that_are_declared(
    dtsim: Dtsim, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    given = [word.format(new=tmp_path) for word in words]
    verb = [] if given and given[0] in VERBS else [name]
    code, text, said = dtsim(*verb, *given, "--json")
    assert 0 == code, said
    answer = json.loads(text)
    assert [] == misfits(name, answer)
    assert SCHEMA_VERSION == answer["schema_version"]
    assert answer["provenance"]["version"]


def test_every_declared_answer_is_asked_for() -> None:
    assert set(ANSWERS) == set(ASKED) | NOT_ASKED


def test_a_misfit_is_seen() -> None:
    answer = {"schema_version": 1, "kind": "list", "provenance": {}, "names": 3, "more": 1}
    assert ["more: not declared", "names: no list"] == misfits("list", answer)
    assert ["names: lacks"] == misfits("list", {"schema_version": 1, "kind": "list", "provenance": {}})


def test_a_schema_is_printed_and_an_unknown_one_refused(dtsim: Dtsim) -> None:
    assert json.loads(dtsim("show", "schema", "run")[1]) == json_schema("run")
    code, _, said = dtsim("show", "schema", "runs")
    assert (2, True) == (code, "run" in said)
