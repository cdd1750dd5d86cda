"""Packed documents, products in pieces beside their collectives, the loss, and context parallelism in two levels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.costs.price import price
from simulator.engine import run
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.job import job_from_names
from simulator.lowering import lower, resolve
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, OperatorTable, Program, Segment
from simulator.program.spec import verify
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LONG = Workload(model=load_model("llama3_8b"), sequence_length=32768, global_batch_size=8)


def lowered(workload: Workload = LONG, world: int = 8, **plan: Any) -> Program:
    program = lower(workload, Plan(**plan), world)
    verify(program)
    return program


def predicted(workload: Workload = LONG, gpus: int = 8, **plan: Any) -> Prediction:
    return simulate(workload, Plan(**plan), load_cluster("dgx_h100", gpus))


def table(program: Program, name: str = "layer forward") -> OperatorTable:
    return next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == name)


def collectives(found: OperatorTable) -> list[tuple[str, tuple[str, ...], float]]:
    return [
        (found.work[i], found.group[i], float(found.message[i]))
        for i in range(len(found))
        if found.kind[i] == COLLECTIVE
    ]


# --- documents -----------------------------------------------------------------------------------------------------


def test_attention_counts_pairs_of_tokens_inside_documents_only() -> None:
    def flops(workload: Workload) -> float:
        layer = table(lowered(workload))
        return float(layer.flops[layer.label.index("attention")])

    whole = flops(LONG)
    for length in (16384, 4096, 512):
        assert flops(replace(LONG, document_length=length)) == pytest.approx(whole * length / 32768)
    assert flops(replace(LONG, document_length=4096, document_spread=1.0)) == pytest.approx(whole / 4)


def test_packed_documents_take_less_time_and_count_less_work() -> None:
    plan = {"tensor_parallel": 4, "sequence_parallel": True, "recompute": "full"}
    times = [predicted(replace(LONG, document_length=n), **plan) for n in (None, 30000, 16384, 8192, 1024)]
    assert sorted(times, key=lambda p: -p.step_time) == times
    assert sorted(times, key=lambda p: -p.model_flops) == times
    short = predicted(replace(LONG, sequence_length=8192, global_batch_size=32), **plan, microbatch_size=4)
    assert times[3].step_time == pytest.approx(short.step_time, rel=0.06), (
        "documents of 8,192 cost as sequences of 8,192"
    )
    assert times[3].model_flops == short.model_flops


def test_documents_shorten_the_attention_of_every_context_parallel_kind() -> None:
    for kind in ("ring", "all_gather", "ulysses"):
        plan = {"context_parallel": 4, "context_parallel_kind": kind, "recompute": "full"}
        whole, packed = predicted(**plan), predicted(replace(LONG, document_length=2048), **plan)
        assert packed.step_time < 0.75 * whole.step_time
        sent = [[c for c in collectives(table(p.program)) if "cp" in c[1]] for p in (whole, packed)]
        assert sent[0] == sent[1], "all keys still travel"


def test_documents_come_from_a_job_file() -> None:
    settings = ["workload.document_length=1024", "workload.document_spread=0.5", "workload.sequence_length=8192"]
    job = job_from_names("llama3_8b", "dgx_h100", settings)
    assert 1280 == job.workload.attended


@pytest.mark.parametrize(
    ("workload", "plan", "values"),
    [
        (replace(LONG, document_spread=1.0), {}, "document_length is not given"),
        (replace(LONG, document_length=32768), {}, "sequence_length = 32768"),
        (replace(LONG, document_length=20000, document_spread=1.0), {}, "20000 x (1 + 1.0^2)"),
        (replace(LONG, document_length=100), {"attention": "unfused"}, "'unfused'"),
        (
            replace(LONG, document_length=100),
            {"schedule": "seq1f1b", "pipeline_parallel": 2, "chunks_per_rank": 4},
            "'seq1f1b'",
        ),
    ],
)
def test_documents_without_an_effect_are_refused(workload: Workload, plan: dict[str, Any], values: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(workload, Plan(**plan), 8)
    assert values in str(caught.value)


# --- products in pieces --------------------------------------------------------------------------------------------

SPLIT = {"tensor_parallel": 8, "sequence_parallel": True, "framework": "megatron_lm"}


def test_pieces_cover_the_product_and_its_collective() -> None:
    whole, cut = (table(lowered(**SPLIT, **more)) for more in ({}, {"tensor_parallel_splits": 4}))
    assert sum(cut.flops) == pytest.approx(sum(whole.flops))
    for kind in ("all_gather", "reduce_scatter"):
        sizes = [[c[2] for c in collectives(t) if c[0] == kind] for t in (whole, cut)]
        assert (4 * len(sizes[0]), pytest.approx(sum(sizes[0]))) == (len(sizes[1]), sum(sizes[1]))
    up = [i for i, label in enumerate(cut.label) if label.startswith("mlp up") and cut.kind[i] != COLLECTIVE]
    down = [i for i, label in enumerate(cut.label) if label.startswith("mlp down") and cut.kind[i] != COLLECTIVE]
    gathers = [i for i, label in enumerate(cut.label) if label.startswith("mlp up") and cut.kind[i] == COLLECTIVE]
    scatters = [i for i, label in enumerate(cut.label) if label.startswith("mlp down") and cut.kind[i] == COLLECTIVE]
    assert [-1, *up[:3]] == cut.beside[gathers].tolist()
    assert [*down[1:], -1] == cut.beside[scatters].tolist()


def test_a_few_pieces_hide_communication_and_many_lose_it_again() -> None:
    large = Workload(model=load_model("llama3_70b"), sequence_length=8192, global_batch_size=16)
    times = [predicted(large, 16, **SPLIT, recompute="full", tensor_parallel_splits=n) for n in (1, 2, 32)]
    assert times[1].exposed_communication["tp"] < 0.8 * times[0].exposed_communication["tp"]
    assert times[1].step_time < times[0].step_time < times[2].step_time


def test_pieces_need_sequence_parallelism() -> None:
    with pytest.raises(PlanError, match="sequence_parallel = false"):
        resolve(LONG, Plan(tensor_parallel=8, tensor_parallel_splits=4), 8)


# --- loss ----------------------------------------------------------------------------------------------------------


def test_the_loss_is_shared_gathered_or_fused() -> None:
    split = {"tensor_parallel": 4, "sequence_parallel": True, "recompute": "full"}
    shared, gathered, fused = (
        predicted(**split, **more) for more in ({}, {"vocabulary_parallel_loss": False}, {"fused_cross_entropy": True})
    )
    logits = LONG.sequence_length * shared.provenance["microbatches"] // shared.provenance["microbatches"] * 128256
    in_place = predicted(**split, fused_cross_entropy=True, framework="megatron_bridge")
    held = [p.memory.by_category[0, 4] for p in (shared, gathered, fused, in_place)]
    assert held[1] == pytest.approx(4 * held[0], rel=0.02)
    assert held[2] == pytest.approx(held[0], rel=0.02)  # Megatron-Core's fused loss keeps fp32 exponentials
    assert held[3] == pytest.approx(held[0] / 2, rel=0.02)
    assert ("all_gather", ("tp",), pytest.approx(2.0 * logits, rel=0.01)) in collectives(
        table(gathered.program, "head forward")
    )
    assert gathered.step_time > shared.step_time > fused.step_time


@pytest.mark.parametrize(
    ("plan", "values"),
    [
        ({"vocabulary_parallel_loss": True}, "tensor_parallel = 1"),
        (
            {"tensor_parallel": 2, "vocabulary_parallel_loss": False, "fused_cross_entropy": True},
            "fused_cross_entropy = true",
        ),
    ],
)
def test_losses_that_cannot_be_are_refused(plan: dict[str, Any], values: str) -> None:
    with pytest.raises(PlanError, match=values):
        resolve(LONG, Plan(**plan), 8)


# --- context parallelism in two levels -----------------------------------------------------------------------------


def test_heads_are_dealt_out_inside_and_keys_go_round_between() -> None:
    plan = {"context_parallel": 8, "context_parallel_kind": "hybrid", "context_parallel_inner": 4}
    program = lowered(world=16, **plan)
    assert program.axes == (("tp", 1), ("cp", 4), ("ring", 2), ("dp", 2), ("pp", 1))
    layer = table(program)
    attention = layer.label.index("attention")
    assert [1, 32 // 4, 32768 // 8 * 4, 128] == layer.shape[attention].tolist()
    ring = collectives(table(lowered(world=16, context_parallel=8)))
    found = collectives(layer)
    assert [("all_to_all", ("cp",)), ("all_to_all", ("cp",)), ("all_gather", ("ring",))] == sorted(
        ((kind, group) for kind, group, _ in found), key=lambda c: c[1]
    )
    assert 4 * next(size for kind, _, size in found if kind == "all_gather") == ring[0][2]
    gradients = {i.group for i in program.items if not isinstance(i, Segment) and "gradients of" in i.name}  # type: ignore[union-attr]
    assert {("cp", "ring", "dp")} == gradients


def test_every_kind_computes_the_same_attention() -> None:
    kinds: list[dict[str, Any]] = [
        {"context_parallel_kind": "ring"},
        {"context_parallel_kind": "ulysses"},
        {"context_parallel_kind": "hybrid", "context_parallel_inner": 2},
        {"context_parallel_kind": "hybrid", "context_parallel_inner": 4},
    ]
    tables = [table(lowered(context_parallel=8, **kind)) for kind in kinds]
    flops = [sum(f for f, work in zip(t.flops, t.work, strict=True) if work == "attention") for t in tables]
    assert flops == pytest.approx([flops[0]] * 4)
    for kind in kinds:
        program = lowered(context_parallel=8, **kind, zero_stage=1)
        trace = run(program, price(program, load_cluster("dgx_h100", 8)))
        assert trace.makespan > 0


@pytest.mark.parametrize(
    ("plan", "values"),
    [
        ({"context_parallel": 4, "context_parallel_kind": "hybrid"}, "context_parallel_inner = None"),
        ({"context_parallel": 4, "context_parallel_inner": 2}, "context_parallel_kind = None"),
        ({"context_parallel": 4, "context_parallel_kind": "hybrid", "context_parallel_inner": 4}, "4 of 4"),
        ({"context_parallel": 8, "context_parallel_kind": "hybrid", "context_parallel_inner": 3}, "3 of 8"),
        (
            {
                "context_parallel": 4,
                "context_parallel_kind": "hybrid",
                "context_parallel_inner": 2,
                "attention": "unfused",
            },
            "'unfused'",
        ),
    ],
)
def test_levels_that_cannot_be_are_refused(plan: dict[str, Any], values: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(LONG, Plan(**plan), 8)
    assert values in str(caught.value)
