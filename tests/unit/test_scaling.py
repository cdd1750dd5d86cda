"""`dtsim compare` over any setting, and scaling curves: what stays, what grows, and rows that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from simulator.errors import SpecError
from simulator.studies.comparison import compare
from simulator.studies.scaling import Scaling, scaling
from simulator.studies.variants import VariantLoader, variants
from tests.command import Dtsim

JOB = """
[workload]
model = "gpt3_1_3b"
sequence_length = 1024
global_batch_size = 64
[plan]
tensor_parallel = 2
data_parallel = 4
zero_stage = 1
[cluster]
name = "dgx_a100"
gpus = 8
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("jobs") / "small.toml"
    path.write_text(JOB)
    return str(path)


def curves(job: str, mode: str, *settings: str, gpus: tuple[int, ...] = (8, 16, 32)) -> Scaling:
    return scaling(VariantLoader(job), variants([], [], settings), gpus, mode)  # type: ignore[arg-type]


def test_varied_degrees_keep_the_gpus_and_the_batch(job: str) -> None:
    """The job says data_parallel = 4; with another tensor_parallel the replicas are what is left."""
    found = compare(job, variants([], [], ["plan.tensor_parallel=1,2,4", "cluster=dgx_a100,dgx_h100"]))
    assert ["tensor_parallel 1, cluster dgx_a100", "tensor_parallel 1, cluster dgx_h100"] == [
        r.name for r in found.rows[:2]
    ]
    facts = [(p.world_size, p.tokens, p.provenance["data_parallel"]) for _, p in found.predicted]
    assert [(8, 64 * 1024, 8 // t) for t in (1, 1, 2, 2, 4, 4)] == facts


def test_what_cannot_be_is_a_row_with_its_reason(job: str) -> None:
    found = compare(job, variants([], [], ["plan.tensor_parallel=2,3", "plan.shard_size=2,4"]))
    reasons = [row.reason for row in found.rows]
    assert ["", "", "world size", "world size"] == [r and ("world size" if "world size" in r else r) for r in reasons]
    assert "cannot be" in [section.title for section in found.sections()]


def test_strong_scaling_keeps_the_batch_and_weak_scaling_the_work_of_a_gpu(job: str) -> None:
    strong, weak = (curves(job, mode).curves[0].points for mode in ("strong", "weak"))
    assert [64, 64, 64] == [p.global_batch_size for p in strong]
    assert [64, 128, 256] == [p.global_batch_size for p in weak]
    for points in (strong, weak):
        assert [8, 16, 32] == [p.gpus for p in points]
        assert 1.0 == points[0].efficiency
        rates = [p.tokens_per_second / p.gpus for p in points]
        assert [r / rates[0] for r in rates] == pytest.approx([p.efficiency for p in points])
    assert strong[2].step_time < strong[0].step_time / 2
    assert weak[2].step_time == pytest.approx(weak[0].step_time, rel=0.2)
    assert strong[2].efficiency < weak[2].efficiency, "the same weights are reduced after less and less work"


def test_a_point_equals_the_job_run_by_itself(job: str) -> None:
    from simulator.job import load_job
    from simulator.simulation import simulate_job

    point = curves(job, "weak").curves[0].points[1]
    settings = ["cluster.gpus=16", "plan.data_parallel=8", "workload.global_batch_size=128"]
    alone = simulate_job(load_job(job, settings))
    assert (alone.step_time, alone.peak_memory) == (point.step_time, point.peak_memory)


def test_points_that_cannot_be_say_why_and_the_rest_stands(job: str) -> None:
    found = curves(job, "strong", gpus=(1, 8, 12, 16, 256)).curves[0].points
    assert ["a replica needs 2", "", "beyond one node", "", "global_batch_size must be"] == [
        p.reason.split(" GPUs")[0][: len("global_batch_size must be")].strip() if p.gpus in (1, 256) else p.reason[:15]
        for p in found
    ]
    assert 1.0 == found[1].efficiency
    titles = [section.title for section in curves(job, "strong", gpus=(8, 12)).sections()]
    assert ["small, strong scaling", "cannot be"] == titles


def test_one_curve_per_variant(job: str) -> None:
    found = curves(job, "weak", "cluster=dgx_a100,dgx_h100", "plan.zero_stage=0,1")
    assert 4 == len(found.curves)
    assert "cluster dgx_a100, zero_stage 0" == found.curves[0].name
    assert found.to_dict()["curves"][3]["settings"] == ["cluster.name=dgx_h100", "plan.zero_stage=1"]


@pytest.mark.parametrize("setting", ["cluster.gpus=8", "plan.data_parallel=4", "workload.global_batch_size=8,16"])
def test_what_the_numbers_decide_is_not_set_besides(job: str, setting: str) -> None:
    with pytest.raises(SpecError, match="Leave it out"):
        curves(job, "weak", setting)


def test_the_command_prints_json_and_draws_every_curve(dtsim: Dtsim, tmp_path: Path) -> None:
    """Sequences long enough that no host keeps both clusters waiting, whose curves would be one."""
    picture, job = tmp_path / "scaling.png", tmp_path / "long.toml"
    job.write_text(JOB.replace("1024", "2048").replace("[plan]", "[plan]\nmicrobatch_size = 4"))
    asked = ("compare", str(job), "--gpus", "32,8,16", "--scaling", "weak", "--vary", "cluster=dgx_a100,dgx_h100")
    code, text, said = dtsim(*asked, "--json", "--plot", str(picture))
    answer = json.loads(text)
    assert (0, "weak", [8, 16, 32]) == (code, answer["scaling"], [p["gpus"] for p in answer["curves"][0]["points"]])
    assert "wrote" in said
    image = imread(picture)[:, :, :3]
    for colour in ("C0", "C1"):
        assert (np.abs(image - np.array(to_rgb(colour))).max(axis=2) < 0.02).sum() > 300
    assert "efficiency" in dtsim(*asked)[1]


@pytest.mark.parametrize(
    "options",
    [
        ("--scaling", "weak"),
        ("--gpus", "8,16", "--scaling", "sideways"),
        ("--gpus", "8,x"),
        ("--gpus", "0"),
        ("--gpus", "8", "--timelines", "x.png"),
        ("--gpus", "8", "--plot", "x.unknown"),
        ("--vary", "plan.tensor_parallel"),
        ("--vary", "plan.microbatch_size=" + ",".join(map(str, range(1, 99)))),
    ],
)
def test_wrong_options_are_said_in_one_message(job: str, dtsim: Dtsim, options: tuple[str, ...]) -> None:
    code, text, said = dtsim("compare", job, *options)
    assert (2, "") == (code, text)
    assert said.startswith("error: ") or "\nerror: " in said
