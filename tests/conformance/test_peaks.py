"""Peaks of libraries, rings and pipelines beside ours, of tensors alone, rank by rank.

What stands on a CPU alone, or in a code and not in ours, is said beside its case with its bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.capture.answer import peak_of
from simulator.job import Job
from tests.conformance import test_memory, test_pipelines, test_plans
from tests.conformance.comparing import llama_job, ranks_of, recorded
from tests.conformance.test_memory import GROUPS, HALVES, PLAIN, ROTARY, of_group, peak_of_tensors, peaks_of_tensors
from tests.conformance.test_pipelines import EAGER, MEGATRON, MICROBATCHES, RELEASE, TITAN
from tests.conformance.test_plans import DEEPSEEK, Case
from tests.conformance.test_traffic import LISTS, PLAIN_NORM, SCRIPTS_OWN
from tests.profiles import profile

pytestmark = pytest.mark.slow

STATES = ("states",)
REST = tuple(name for name in GROUPS if name != "states")
"""Gradients on their way are activations in a recording, and what the host asks for at a moment is counted from that or behind it."""


def of(found: dict[str, float], *groups: str) -> float:
    """Return the bytes of groups of categories; all of them by default."""
    return sum(of_group(found, group) for group in groups or GROUPS)


def job_of(case: Case, framework: str) -> Job:
    model = ({} if case.script == "parallel.py:step" else ROTARY) | case.model
    return llama_job(gpus=case.world, model=model, **case.plan | {"framework": framework})


@pytest.mark.parametrize("name", [name for name in test_plans.CASES if name.startswith("transformers")])
def test_the_peak_of_transformers_by_accelerate_is_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fsdp2, too, whose units are those of torchtitan since 2025."""
    case, changes = test_plans.CASES[name], LISTS | PLAIN_NORM
    if "fsdp2" in name:
        changes |= {"copies_gathered": "true", "flat_units": "false", "fsdp_root_unit": "false"}
    profile(tmp_path, "as_it_runs_here", "pytorch_fsdp", **changes)
    monkeypatch.chdir(tmp_path)
    theirs = peak_of(recorded(case.script, case.world, case.words))
    ours = peak_of_tensors(job_of(case, "as_it_runs_here"))

    for groups in (STATES, REST):
        assert of(ours, *groups) == pytest.approx(of(theirs, *groups), rel=0.005), groups


RINGS = [name for name in test_plans.CASES if "context" in name]
TABLES, COPIES = 2048 * 32 * 8.0, 1024 * 1024 * 2.0
"""Bytes of a layer's table of turns, of a rank's places of it twice, and of the projection's input that a ring of two copies."""


@pytest.mark.parametrize("name", RINGS)
def test_the_peak_of_a_ring_is_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less what a ring of torchtitan keeps beside it; of the scripts' ring theirs is where the last gradients are reduced, 1.3 % more."""
    case = test_plans.CASES[name]
    base = "torchtitan_2026_eager" if "torchtitan" in name else "torchtitan_eager"
    profile(tmp_path, "as_it_runs_here", base, **PLAIN_NORM)
    monkeypatch.chdir(tmp_path)
    theirs = of(peak_of(recorded(case.script, case.world, case.words)))
    ours = of(peak_of_tensors(job_of(case, "as_it_runs_here")))

    turned = (
        2 if "Qwen3" in name else 1
    ) * TABLES  # cosines and sines, or complex numbers, of all places and of a rank's own
    beside = 4 * (COPIES / int(case.plan.get("tensor_parallel", 1)) + turned * 1.5) if "torchtitan" in name else 0.0
    assert ours + beside == pytest.approx(theirs, rel=0.014)
    assert beside < 0.02 * theirs


LOCAL = {name: case for name, case in test_memory.CASES.items() if name.startswith("megatron")}


@pytest.mark.parametrize("name", LOCAL)
def test_the_peak_of_megatron_core_is_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 2 %, and what the head keeps, which ours counts beside temporaries of layers.

    Weights, gradients and activations: the script has no optimizer.  Scores are made in a buffer that stands all the time.
    """
    case = LOCAL[name]
    profile(tmp_path, "local_layers", "megatron_core", **PLAIN)
    monkeypatch.chdir(tmp_path)
    theirs = of(peak_of(recorded("gpt.py:step", case.world, case.words)))
    found = peak_of_tensors(llama_job(gpus=case.world, model=case.model, **case.plan))

    again = HALVES / 8 if "full" in name else 0.0  # the layer that runs again
    ours = of(found) - found["optimizer_states"] + case.beside + again
    there = theirs - scores(case.plan)
    assert 0.98 * there <= ours <= 1.02 * there + found["logits"]


def scores(plan: dict[str, object]) -> float:
    """Bytes of a rank's scores of a layer in 16 bits."""
    return 16 / int(str(plan.get("tensor_parallel", 1))) * 2048 * 2048 * 2.0


GATHERED = 2048 * 32000 * 2.0
"""Bytes of a microbatch's logits in 16 bits, which the last stage holds for its backward."""


@pytest.mark.parametrize("name", test_pipelines.CASES)
def test_the_peak_of_a_recorded_pipeline_is_ours(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 %, and every rank's states alike.  Under GPipe gradients come when activations go; ours stand."""
    case = test_pipelines.CASES[name]
    profile(tmp_path, "as_it_runs_here", "torchtitan_eager", **SCRIPTS_OWN, returns_outputs="false")
    monkeypatch.chdir(tmp_path)
    plan = EAGER | case.plan | {"framework": "as_it_runs_here", "precision": "bf16_true"}
    job = llama_job(gpus=case.ranks, pipeline_parallel=case.ranks, **plan)
    ours = peaks_of_tensors(replace(job, workload=replace(job.workload, global_batch_size=MICROBATCHES)))
    theirs = [peak_of(each) for each in ranks_of("pipeline.py:step", case.ranks, case.words)]

    for rank, (here, there) in enumerate(zip(ours, theirs, strict=True)):
        held = GATHERED * (MICROBATCHES if name == "gpipe" else 1) if here["logits"] else 0.0
        come = here["gradients"] - there.get("gradients", 0.0) if name == "gpipe" else 0.0
        assert of(here, "states") == pytest.approx(of(there, "states"), rel=1e-3)
        assert of(here) - come + held == pytest.approx(of(there), rel=0.03), rank


@pytest.mark.parametrize(("name", "model"), [("llama3", {}), ("qwen3", {"qk_norm": True}), ("deepseek_v3", DEEPSEEK)])
def test_the_peak_of_a_pipeline_of_torchtitan_is_ours(
    name: str, model: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stages within 1 %: gradients are added up whole, and their shards come when these go."""
    profile(tmp_path, "as_it_runs_here", "torchtitan_2026_eager", **PLAIN_NORM)
    monkeypatch.chdir(tmp_path)
    plan = RELEASE | {"framework": "as_it_runs_here", "pipeline_parallel": 2, "schedule": "1f1b"}
    job = llama_job(gpus=4, model=ROTARY | model, **plan)
    ours = peaks_of_tensors(replace(job, workload=replace(job.workload, global_batch_size=8)))
    theirs = [peak_of(each) for each in ranks_of("titan.py:step", 4, f"{TITAN} --model {name}")]

    for here, there in zip(ours, theirs, strict=True):
        assert of(here, "states") == pytest.approx(of(there, "states"), rel=0.01)
        assert of(here) + (GATHERED if here["logits"] else 0.0) == pytest.approx(of(there), rel=0.01)


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_peak_of_a_pipeline_of_megatron_core_is_ours(
    chunks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 5 %, and what a head keeps: theirs are messages of a moment, too, and scores in fp32 beside those in 16 bits forward."""
    profile(tmp_path, "local_layers", "megatron_core", **PLAIN)
    monkeypatch.chdir(tmp_path)
    plan = MEGATRON | {"framework": "local_layers"}
    words, gpus = "--tensor 2 --pipeline 4", 8
    if chunks > 1:
        plan |= {"pipeline_parallel": 2, "schedule": "interleaved", "chunks_per_rank": 2}
        words, gpus = "--tensor 2 --pipeline 2 --chunks 2", 4
    job = llama_job(gpus=gpus, model=ROTARY, **plan)
    ours = peaks_of_tensors(replace(job, workload=replace(job.workload, global_batch_size=8)))
    theirs = [of(peak_of(each)) for each in ranks_of("gpt.py:step", gpus, words)]

    for here, there in zip(ours, theirs, strict=True):
        stands = there - scores(plan)
        assert 0.95 * stands <= of(here) - here["optimizer_states"] <= 1.05 * stands + here["logits"]
