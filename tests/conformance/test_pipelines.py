"""Pipelines of torch.distributed.pipelining and of megatron-core, all ranks recorded, beside our lowering of the same plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from simulator.program.program import TRANSFER, Link, Program
from tests.conformance.comparing import (
    by_axes,
    flops_of,
    llama_job,
    lowered,
    messages_of,
    pipeline,
    products_of,
)
from tests.conformance.test_plans import DEEPSEEK, EAGER
from tests.conformance.test_traffic import SCRIPTS_OWN, moved
from tests.profiles import profile

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pipeline: words of scripts/pipeline.py, and the plan that is the same for us."""

    words: str
    plan: dict[str, Any] = field(default_factory=dict)
    ranks: int = 4


CASES = {
    "gpipe": Case(words="--schedule ScheduleGPipe", plan={"schedule": "gpipe"}),
    "1f1b": Case(words="--schedule Schedule1F1B", plan={"schedule": "1f1b"}),
    "interleaved": Case(
        words="--schedule ScheduleInterleaved1F1B --ranks 2 --chunks 2",
        plan={"schedule": "interleaved", "chunks_per_rank": 2},
        ranks=2,
    ),
    "zero bubble": Case(
        words="--schedule ScheduleInterleavedZeroBubble --ranks 2 --chunks 2",
        plan={"schedule": "zb_interleaved", "chunks_per_rank": 2},
        ranks=2,
    ),
    "zbv": Case(
        words="--schedule ScheduleZBVZeroBubble --ranks 2 --chunks 2 --v",
        plan={"schedule": "zbv", "chunks_per_rank": 2},
        ranks=2,
    ),
    "dualpipev": Case(
        words="--schedule ScheduleDualPipeV --ranks 2 --chunks 2 --v",
        plan={"schedule": "dualpipev", "chunks_per_rank": 2},
        ranks=2,
    ),
}


def transfers(program: Program) -> Counter[tuple[int, int, float]]:
    """(from, to, bytes) -> how many."""
    links = [program.items[n] for n in program.item[program.kind == TRANSFER].tolist()]
    return Counter((*link.pipeline_ranks, link.message) for link in links if isinstance(link, Link))


def order_of(program: Program, work: str = "attention") -> list[str]:
    """Per rank a letter for each attention in the order in which it runs: Forward or Backward; of scores in memory for their products."""
    out = [""] * program.ranks
    for row in range(program.size):
        item = program.items[program.item[row]]
        if not isinstance(item, Link):
            for table, count in item.pieces:
                out[program.rank[row]] += count * "".join(
                    phase[0].upper()
                    for phase, kind, shape in zip(table.phase, table.work, table.shape, strict=True)
                    if kind == work and (kind == "attention" or int(shape[0]) > 1)
                )
    return out


def ours_of(case: Case) -> Program:
    job = llama_job(gpus=case.ranks, **EAGER, pipeline_parallel=case.ranks, **case.plan)
    return lowered(replace(job, workload=replace(job.workload, global_batch_size=8)))


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_pipeline_does_what_ours_does(name: str) -> None:
    case = CASES[name]
    theirs, ours = pipeline("pipeline.py:step", case.ranks, case.words), ours_of(case)

    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        assert products_of(theirs, phase) == products_of(ours, phase)
    assert transfers(theirs) == transfers(ours)
    assert order_of(theirs) == order_of(ours)


MICROBATCHES = 8


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_pipeline_moves_and_starts_what_ours_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes within 0.2 %, starts within 3 %; backward and update together, for a W ends with sums outside of autograd."""
    case = CASES[name]
    theirs = moved(pipeline("pipeline.py:step", case.ranks, case.words))
    profile(tmp_path, "as_it_runs_here", "torchtitan_eager", **SCRIPTS_OWN)
    monkeypatch.chdir(tmp_path)
    plan = case.plan | {"framework": "as_it_runs_here", "recompute": "none", "precision": "bf16_true"}
    job = llama_job(gpus=case.ranks, pipeline_parallel=case.ranks, **plan)
    ours = moved(lowered(replace(job, workload=replace(job.workload, global_batch_size=MICROBATCHES))))

    assert ours["forward"] == pytest.approx(theirs["forward"], rel=0.01)
    after = [sum(p[phase].bytes for phase in ("backward", "optimizer")) for p in (ours, theirs)]
    assert after[0] == pytest.approx(after[1], rel=2e-3)
    starts = [sum(p[phase].launches for phase in ("backward", "optimizer")) for p in (ours, theirs)]
    assert starts[0] == pytest.approx(starts[1], rel=0.03)


TITAN = "--pipeline 2 --microbatches 4"
RELEASE = {"framework": "torchtitan_2026_eager", "recompute": "none", "zero_stage": 3}


@pytest.mark.parametrize(("name", "model"), [("llama3", {}), ("qwen3", {"qk_norm": True}), ("deepseek_v3", DEEPSEEK)])
def test_torchtitan_pipes_shards_as_ours_does(name: str, model: dict[str, Any]) -> None:
    """Two stages of two shards each: weights are gathered and gradients reduced once a step."""
    job = llama_job(gpus=4, model=model, **RELEASE, pipeline_parallel=2, schedule="1f1b")
    ours = lowered(replace(job, workload=replace(job.workload, global_batch_size=8)))
    theirs = pipeline("titan.py:step", 4, f"{TITAN} --model {name}")

    for phase in ("forward", "backward"):
        assert products_of(theirs, phase) == products_of(ours, phase)
    assert transfers(theirs) == transfers(ours)
    assert messages_of(theirs) == messages_of(ours)
    assert order_of(theirs) == order_of(ours)


MEGATRON = {
    "framework": "megatron_core", "attention": "unfused", "sequence_parallel": False, "recompute": "none", "schedule": "1f1b",
    "tensor_parallel": 2, "pipeline_parallel": 4,
}  # fmt: skip


def test_megatron_core_pipes_as_its_profile_says() -> None:
    job = llama_job(gpus=8, **MEGATRON)
    ours = lowered(replace(job, workload=replace(job.workload, global_batch_size=8)))
    theirs = pipeline("gpt.py:step", 8, "--tensor 2 --pipeline 4")

    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
    assert transfers(theirs) == transfers(ours)


def test_megatron_core_interleaves_as_its_profile_says() -> None:
    """Two chunks of a rank: products, messages, and the order of forwards and backwards."""
    plan = MEGATRON | {"pipeline_parallel": 2, "schedule": "interleaved", "chunks_per_rank": 2}
    job = llama_job(gpus=4, **plan)
    ours = lowered(replace(job, workload=replace(job.workload, global_batch_size=8)))
    theirs = pipeline("gpt.py:step", 4, "--tensor 2 --pipeline 2 --chunks 2")

    for phase in ("forward", "backward"):
        assert flops_of(ours, phase) == pytest.approx(flops_of(theirs, phase), rel=1e-9)
        assert products_of(theirs, phase) == products_of(ours, phase)
    assert transfers(theirs) == transfers(ours)
    assert by_axes(theirs) == by_axes(ours)
    assert order_of(theirs, "gemm") == order_of(ours, "gemm")


def test_the_first_and_the_last_stage_of_megatron_core_add_up_their_shared_embedding_as_ours_do() -> None:
    job = llama_job(gpus=8, model={"tied_embeddings": True}, **MEGATRON)
    ours = lowered(replace(job, workload=replace(job.workload, global_batch_size=8)))
    theirs = pipeline("gpt.py:step", 8, "--tensor 2 --pipeline 4 --tied")

    assert ends_of(theirs) == ends_of(ours)


def ends_of(program: Program) -> list[tuple[str, float, tuple[int, ...]]]:
    """Collectives of two pipeline ranks."""
    links = [program.items[n] for n in program.item.tolist()]
    return [
        (link.collective, link.message, link.pipeline_ranks)
        for link in links
        if isinstance(link, Link) and link.collective and len(link.pipeline_ranks) == 2
    ]
