"""Where nothing of what was asked for can be, that is a refusal: exit code 2, one message with the first reason, no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import Dtsim

JOB = "gpt3_13b_2xdgx_a100"


@pytest.fixture
def study(tmp_path: Path) -> str:
    path = tmp_path / "study.toml"
    path.write_text(f'name = "odd"\njob = "{JOB}"\n[vary]\n"plan.tensor_parallel" = [3, 5]\n')
    return f"sweep {path} -o {tmp_path / 'out.csv'}"


@pytest.mark.parametrize(
    "words",
    [
        "sweep",
        f"compare {JOB} --vary plan.tensor_parallel=3,5",
        f"compare {JOB} --gpus 3,5",
        "schedule chimera,dualpipe -p 5 -m 7",
    ],
)
def test_where_nothing_could_be_the_exit_code_says_so(dtsim: Dtsim, study: str, words: str) -> None:
    code, out, error = dtsim(*(study if words == "sweep" else words).split(), "--json")
    assert (2, "", 1) == (code, out, error.count("error: none of the "))
    assert any(way in error for way in ("Nearest: ", "nearest that works: ", "Way out: "))


def test_one_row_that_could_be_is_an_answer(dtsim: Dtsim) -> None:
    assert 0 == dtsim("compare", JOB, "--vary", "plan.tensor_parallel=3,4", "--only", "fits")[0]
