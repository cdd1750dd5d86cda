"""Help pages end with examples that run, and shells complete names."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from simulator.cli import completion
from simulator.cli.app import VERBS
from simulator.cli.examples import EXAMPLES
from tests.command import Dtsim
from tests.package_sources import ROOT

NOT_RUN = (
    "dtsim serve",
    "dtsim measure",
    "dtsim calibrate nccl LOG...",
    "dtsim validate",
    "dtsim search --model",
    "dtsim notebooks",
    "dtsim capture",
    "dtsim sweep",
)
"""They serve for ever, need a device or files of the reader's, take minutes, or have tests of their own."""
LONG = ("dtsim advise",)
"""Run in CI: some seconds, for a verb that tests/unit/test_guide.py calls with a smaller model."""
RUN = [line for lines in EXAMPLES.values() for line in lines if not line.startswith(NOT_RUN)]
LOG = "".join(
    f" [2026-01-01 00:00:{step:02d}] iteration {step}/ 100 | consumed samples: {step * 128} | "
    f"elapsed time per iteration (ms): {14000 + 10 * (step % 3)}.0 | global batch size: 128 |\n"
    for step in range(1, 31)
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_page_has_examples_that_stay_on_their_lines(dtsim: Dtsim, verb: str) -> None:
    code, text, _ = dtsim(verb, "--help")
    lines = [line.strip() for line in text.splitlines()]
    assert 0 == code
    assert set(EXAMPLES[verb]) <= set(lines)
    assert all(line.startswith(f"dtsim {verb}") for line in EXAMPLES[verb])


@pytest.mark.parametrize("line", [pytest.param(one, marks=[pytest.mark.slow] * one.startswith(LONG)) for one in RUN])
def test_an_example_runs_as_it_is_printed(
    dtsim: Dtsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests/data/imports/megatron.sh", "train.sh")
    shutil.copy(ROOT / "tests/data/imports/deepspeed.json", "ds_config.json")
    for name in ("step.0.et", "step.groups.json"):
        shutil.copy(ROOT / "tests/data/imports" / name, name)
    Path("train.log").write_text(LOG)
    code, _, said = dtsim(*shlex.split(line)[1:])
    assert 0 == code, said


def test_every_verb_has_examples() -> None:
    assert set(VERBS) == set(EXAMPLES)


def test_names_and_settings_are_completed() -> None:
    assert "gpt3_175b" in completion.jobs("gpt3")
    assert "llama3_70b" in completion.models("llama3_7")
    assert ["dgx_h100", "dgx_h200"] == completion.clusters("dgx_h")
    assert ["gpipe,chimera_doubling"] == completion.schedules("gpipe,chimera_d")
    assert {"cluster.nodes=", "cluster.nics="} <= set(completion.settings("cluster.n"))


def test_a_shell_asks_and_is_answered(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DTSIM_COMPLETE", "complete_bash")
    for words, answer in (("dtsim comp", "compare"), ("dtsim run gpt3_175", "gpt3_175b"), ("dtsim run --pl", "--plot")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert answer in dtsim()[1].split()
