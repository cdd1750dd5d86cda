"""Attention in chunks of queries and keys: memory that grows with the root of the length, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.costs.tables import machine_of, price_table
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.plan.plan import Plan
from simulator.program.program import OperatorTable
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LENGTHS = np.array([4096, 16384, 65536, 262144])


def cost(attention: str, length: int, **fields: Any) -> LayerCost:
    model = load_model("llama_7b").model_copy(update={"layers": 1} | fields)
    workload = Workload(model=model, sequence_length=length, global_batch_size=1)
    plan = Plan(framework="pytorch_ddp", attention=attention, microbatch_size=1, recompute="none")
    return layer_costs(workload, resolve(workload, plan, 1))["layer"]


def in_core(cost: LayerCost, phase: str) -> np.ndarray:
    ops = cost.rows[phase]().ops
    return np.array([i for i, op in enumerate(ops) if op is not None and "core_attn" in op.modules])


def seconds(cost: LayerCost, phase: str) -> float:
    table = cost.forward if phase == "forward" else cost.backward
    priced = price_table(table, machine_of(load_cluster("dgx_a100")), (("dp", 1),)).rows
    return float(np.asarray(priced)[in_core(cost, phase)].sum())


def products(table: OperatorTable, phase: str) -> float:
    return sum(f for f, w, p in zip(table.flops, table.work, table.phase, strict=True) if w == "gemm" and p == phase)


def test_what_stands_in_a_backward_grows_with_the_root_of_the_length_beside_linear_terms() -> None:
    stands = [sum(t.bytes for t in cost("chunked", int(n), ffn=64).backward_mark) for n in LENGTHS]
    terms = np.stack([LENGTHS, np.sqrt(LENGTHS)], axis=1)
    found, *_ = np.linalg.lstsq(terms / np.array(stands)[:, None], np.ones(len(LENGTHS)), rcond=None)
    assert stands == pytest.approx(terms @ found, rel=0.01)
    assert found[1] > 0


@pytest.mark.parametrize("length", [4096, 16384])
def test_no_score_is_kept(length: int) -> None:
    chunked, fused, whole = (cost(a, length).saved for a in ("chunked", "flash2", "unfused"))
    kept = {t.name for t in fused} - {t.name for t in chunked}
    assert kept == {"softmax statistics"}
    assert sum(t.bytes for t in chunked) < sum(t.bytes for t in fused) < sum(t.bytes for t in whole)


def test_a_backward_runs_the_chunks_forward_once_more() -> None:
    chunked, whole = cost("chunked", 8192), cost("unfused", 8192)
    for phase in ("forward", "backward"):
        tables = [c.forward if phase == "forward" else c.backward for c in (chunked, whole)]
        assert products(tables[0], phase) == products(tables[1], phase)
    length, model = 8192, load_model("llama_7b")
    assert products(chunked.backward, "recompute") == 4 * length**2 * model.hidden


def test_every_chunk_starts_kernels_of_its_own() -> None:
    starts = [int(c.forward.launches[in_core(c, "forward")].sum()) for n in LENGTHS[:3] for c in [cost("chunked", n)]]
    assert starts[1] == pytest.approx(8 * starts[0], rel=0.01)
    assert starts[2] == pytest.approx(8 * starts[1], rel=0.01)


def test_the_published_memory_of_16384_tokens() -> None:
    """Rabe and Staats, abstract: 32 times less for differentiation, against scores and their gradients in fp32 (one head of 64)."""
    few = cost("chunked", 16384, heads=1, kv_heads=1, hidden=64, head_dim=64)
    made = {t.name: t for op in few.rows["forward"]().ops if op is not None for t in op.outputs if t.turns > 1}
    stands = 2 * sum(t.standing for t in made.values())
    assert 2 * 16384**2 * 4 / stands == pytest.approx(32, rel=0.07)


@pytest.mark.parametrize("length", [4096, 16384])
def test_it_is_slower_than_attention_in_one_kernel_and_than_scores_in_memory(length: int) -> None:
    chunked, fused, whole = (
        sum(seconds(cost(a, length), phase) for phase in ("forward", "backward"))
        for a in ("chunked", "flash2", "unfused")
    )
    assert fused < whole < chunked < 2.5 * whole


@pytest.mark.parametrize(
    ("fields", "model", "rule"),
    [
        ({"context_parallel": 2}, {}, "scans the keys of one rank"),
        ({}, {"positions": "relative_bias"}, "adds nothing to its scores"),
    ],
)
def test_what_it_cannot_do_is_refused(fields: dict[str, Any], model: dict[str, Any], rule: str) -> None:
    workload = Workload(
        model=load_model("llama_7b").model_copy(update=model), sequence_length=2048, global_batch_size=2
    )
    with pytest.raises(PlanError, match=rule):
        resolve(workload, Plan(attention="chunked", **fields), 2)
