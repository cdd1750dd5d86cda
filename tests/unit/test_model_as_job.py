"""A file of a model, or of code, where a job belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import Dtsim
from tests.package_sources import ROOT


@pytest.mark.parametrize("more", [(), ("--cluster", "h100_x8")])
def test_a_model_file_in_place_of_a_job_is_sent_to_model(dtsim: Dtsim, tmp_path: Path, more: tuple[str, ...]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((ROOT / "workloads/models/gpt3_1_3b.toml").read_text().replace("gpt3_1_3b", "mine"))
    code, out, said = dtsim("run", str(path), *more)

    assert (2, "") == (code, out)
    assert f"error: '{path}' is a model, not a job. Way out: --model {path} --cluster NAME in its place\n" == said


def test_code_in_place_of_a_job_is_sent_to_capture(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("print()")
    code, _, said = dtsim("run", str(path), "--cluster", "h100_x8")
    assert (2, True) == (code, f"Way out: dtsim capture {path}" in said)
