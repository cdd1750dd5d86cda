"""Several jobs side by side: each with all variants, under its own name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Dtsim

JOBS = {"plain": "zero_stage = 0", "sharded": "zero_stage = 3"}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, plan in JOBS.items():
        (tmp_path / f"{name}.toml").write_text(
            f'name = "{name}"\n[workload]\nmodel = "gpt3_1_3b"\nglobal_batch_size = 64\n[plan]\n{plan}\n[cluster]\nname = "h100_x8"\n'
        )
    return [str(tmp_path / f"{name}.toml") for name in JOBS]


def test_two_job_files_are_two_rows(dtsim: Dtsim, files: list[str]) -> None:
    rows = json.loads(dtsim("compare", *files, "--json")[1])["rows"]
    alone = [json.loads(dtsim("run", file, "--json")[1])["step_time_s"] for file in files]

    assert ["plain", "sharded"] == [row["name"] for row in rows]
    assert alone == [row["step_time_s"] for row in rows]
    assert "plain and sharded, side by side" in dtsim("compare", *files)[1]


def test_each_job_has_every_variant(dtsim: Dtsim, files: list[str]) -> None:
    rows = json.loads(dtsim("compare", *files, "--set", "plan.recompute=none,full", "--json")[1])["rows"]
    assert [f"{job}, recompute {kind}" for job in JOBS for kind in ("none", "full")] == [row["name"] for row in rows]


@pytest.mark.parametrize("more", [("--gpus", "8"), ("--latency-sweep", "0,1")])
def test_what_is_of_one_job_is_refused_for_several(dtsim: Dtsim, files: list[str], more: tuple[str, ...]) -> None:
    code, _, said = dtsim("compare", *files, *more)
    assert (2, True) == (code, f"{more[0]} is of one job" in said)


def test_jobs_of_one_name_are_told_apart_by_their_files(dtsim: Dtsim, files: list[str]) -> None:
    Path(files[1]).write_text(Path(files[1]).read_text().replace('name = "sharded"', 'name = "plain"'))
    assert files == [row["name"] for row in json.loads(dtsim("compare", *files, "--json")[1])["rows"]]


def test_images_and_tokens_are_not_counted_together(dtsim: Dtsim) -> None:
    code, out, said = dtsim("compare", "gpt2_124m_1gpu", "resnet50_16xv100")
    assert (2, "") == (code, out)
    assert "jobs side by side count the same, but these count image and token" in said


def test_clusters_are_compared_by_cluster(dtsim: Dtsim) -> None:
    asked = ("--model", "gpt3_1_3b", "--cluster", "h100_x8", "--vary", "cluster=h100_x8,a100_x8")
    assert "gpt3_1_3b on h100_x8, by cluster, side by side" in dtsim("compare", *asked, "--zero", "3")[1]
