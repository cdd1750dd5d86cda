"""Files that a command is to write: named for what is written to them, or refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "gpt2_124m_1gpu", "--trace", "step.txt"), "a trace's file ending names its format"),
        (("run", "gpt2_124m_1gpu", "--trace", "-"), "has none of: .json, .json.gz"),
        (("run", "gpt2_124m_1gpu", "--report", "step.pdf"), "a page's file ending names its format"),
        (("goodput", "gpt2_124m_1gpu", "--report", "-"), "has none of: .html, .htm"),
        (("validate", "--report", "x.png"), "has none of: .html, .htm"),
        (("export", "chrome", "gpt2_124m_1gpu", "-o", "-"), "has none of: .json, .json.gz"),
        (("export", "chakra", "gpt2_124m_1gpu", "-o", "-"), "a file for each GPU"),
        (("show", "gpus", "h100_80gb_sxm", "--rows", "3"), "--rows cuts the lines of a program, but gpus h100"),
        (("show", "schema", "run", "--set", "a.b=c"), "--set changes a job, but schema run"),
    ],
)
def test_an_output_that_is_none_is_refused_before_anything_is_written(
    words: tuple[str, ...], said: str, dtsim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim(*words)
    assert (2, "", 1) == (code, out, len(error.strip().splitlines()))
    assert said in error
    assert [] == list(tmp_path.iterdir())
