"""A plan that came with a file of another program, and a quicker one beside it, unasked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data" / "imports"


@pytest.mark.parametrize("file", ["megatron.sh", "torchtitan.toml"])
def test_a_quicker_plan_that_fits_stands_beside_a_scripts_and_its_settings_give_its_time(
    file: str, dtsim: Dtsim
) -> None:
    """The file of torchtitan says sequences per replica: other replicas must not make it another batch."""
    run = ("run", str(DATA / file), "--cluster", "dgx_h100")
    code, text, said = dtsim(*run, "--json")
    assert 0 == code, said
    answer = json.loads(text)
    found = answer["plan_instead"]["found"]
    assert found["fits"]
    assert found["step_time_s"] < 0.99 * answer["step_time_s"]["value"]
    settings = [word for setting in found["settings"] for word in ("--set", setting)]
    again = json.loads(dtsim(*run, *settings, "--json")[1])
    assert pytest.approx(found["step_time_s"]) == again["step_time_s"]["value"]
    shown = next(line for line in dtsim(*run)[1].splitlines() if line.startswith("  --set"))
    assert settings == shlex.split(shown), "printed as they are to be typed"


def test_where_none_is_quicker_it_says_so(dtsim: Dtsim) -> None:
    run = ("run", str(DATA / "torchtitan.toml"), "--cluster", "dgx_h100")
    best = json.loads(dtsim(*run, "--json")[1])["plan_instead"]["found"]["settings"]
    code, text, said = dtsim(*run, *(word for setting in best for word in ("--set", setting)))
    assert (0, True) == (code, "this plan instead: none" in text), said


@pytest.mark.parametrize(
    "words",
    [
        ("llama3_8b_fsdp_8xh100",),
        (str(DATA / "deepspeed.json"), "--model", "llama3_8b", "--cluster", "dgx_h100"),
    ],
)
def test_jobs_of_ours_and_what_does_not_fit_have_none(dtsim: Dtsim, words: tuple[str, ...]) -> None:
    """A plan that does not fit gets advice instead."""
    answer = json.loads(dtsim("run", *words, "--json")[1])
    assert "plan_instead" not in answer
    assert answer["fits"] or answer["advice"]


def test_a_plan_that_was_looked_for_already_is_not_looked_for_again(dtsim: Dtsim, tmp_path: Path) -> None:
    """A Hugging Face config names no plan: the run starts from a good one."""
    path = tmp_path / "small.json"
    sizes = {
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
    }
    path.write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 2048, **sizes}))
    text = dtsim("run", str(path), "--cluster", "h100_x8", "--json")[1]
    answer = json.loads(text)
    assert ("small", False) == (answer["job"], "plan_instead" in answer)
    assert "by a quick search" in text
