"""Two ways to what Megatron's layout asks of a rank: derived operation by operation, and as a plan is lowered to rows of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from simulator.errors import PlanError
from simulator.lowering import ResolvedPlan, resolve
from simulator.lowering.layers.expand import layer_costs, layer_kinds
from simulator.partition.compose import compose
from simulator.partition.derive import derive
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, OperatorTable
from simulator.specs import names
from simulator.workload.counts import model_graph
from simulator.workload.graph import Kernel, LayerGraph, Product
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.lowered import graph_of

DENSE = [name for name in names("models") if not (load_model(name).experts or load_model(name).network)]
Found = Counter[tuple[str, str, float]]
"""(direction, collective, bytes) -> how often."""


def of_rows(work: Workload, resolved: ResolvedPlan) -> dict[str, Found]:
    """What the rows of each kind of layer exchange along the tensor-parallel axis."""
    out: dict[str, Found] = {}
    for kind, cost in layer_costs(work, resolved).items():
        out[kind] = Counter(
            (direction, table.work[i], float(table.message[i]))
            for direction, table in (("forward", cost.forward), ("backward", cost.backward))
            for i in range(len(table))
            if table.kind[i] == COLLECTIVE
        )
    return out


def of_layout(graph: LayerGraph, resolved: ResolvedPlan) -> Found:
    """What its layout exchanges, but for gradients of weights, which a step adds up once."""
    weights = {f"gradient of {w.name}" for w in graph.weights} | {
        "gradients of its weights",
        "gradients of shared heads",
    }
    return Counter(
        (c.direction, c.kind, c.bytes)
        for op in derive(graph, resolved.layout)
        for c in op.collectives
        if c.tensor not in weights
    )


def graphs(work: Workload, resolved: ResolvedPlan) -> dict[str, LayerGraph]:
    """Each kind of layer for microbatches of two sequences."""
    return {kind: graph_of(work, resolved, kind, 2) for kind in layer_kinds(work.model)}


def accepted(first: str) -> Iterator[tuple[str, bool, int, Workload, ResolvedPlan]]:
    """(model, whether tokens are divided, ranks, workload, plan) of dense models with this initial, where a plan may be so."""
    for name in (name for name in DENSE if name.startswith(first)):
        model = load_model(name)
        work = Workload(model=model, sequence_length=model.sequence_length, global_batch_size=4)
        for ranks, tokens in ((2, False), (4, True)):
            try:
                plan = Plan(tensor_parallel=ranks, sequence_parallel=tokens, microbatch_size=2)
                resolved = resolve(work, plan, ranks)
            except PlanError:  # 71 heads, 197 tokens, ...
                continue
            yield name, tokens, ranks, work, resolved


FIRST_TOKEN = {("bert_base", "head"), ("bert_large", "head")}
"""With tokens divided the first one of every sequence is on one rank: rows let it stay there, derive() gathers it (3 kB)."""


@pytest.mark.parametrize("first", "abcdefghijklmnopqrstuvwxyz")
def test_a_layout_exchanges_what_the_rows_of_a_plan_do(first: str) -> None:
    seen = 0
    for name, tokens, ranks, work, resolved in accepted(first):
        rows = of_rows(work, resolved)
        for kind, graph in graphs(work, resolved).items():
            if not (tokens and (name, kind) in FIRST_TOKEN):
                assert rows[kind] == of_layout(graph, resolved), f"{name}, {kind}, {ranks} ranks, tokens {tokens}"
                seen += 1
    assert seen or all(not name.startswith(first) or name in ("falcon_7b",) for name in DENSE)


LOOKED_UP = ("embedding", "decoder embedding")
"""With tokens divided a rank looks all of them up in its part of the table, as derive() has it; rows count its share of the tokens."""


@pytest.mark.parametrize("first", "abcdefghijklmnopqrstuvwxyz")
def test_a_rank_does_the_work_of_the_rows_of_a_plan(first: str) -> None:
    for name, tokens, _, work, resolved in accepted(first):
        costs = layer_costs(work, resolved)
        for kind, graph in graphs(work, resolved).items():
            if tokens and (kind in LOOKED_UP or (name, kind) in FIRST_TOKEN):
                continue
            ops, rows = derive(graph, resolved.layout), costs[kind]
            products = [op for op in ops if isinstance(op.op, Product)]
            assert gemm_flops(rows.forward) == pytest.approx(sum(op.flops for op in products)), (name, kind)
            again = sum(op.flops for op in products if op.op.runs_twice)
            assert gemm_flops(rows.backward) == pytest.approx(again + sum(op.backward_flops for op in products)), (
                name,
                kind,
            )
            moved = sum(op.bytes for op in ops if isinstance(op.op, Kernel))
            assert moved_bytes(rows.forward) == pytest.approx(moved), (name, kind)


def gemm_flops(table: OperatorTable) -> float:
    return sum(float(table.flops[i]) for i, work in enumerate(table.work) if work == "gemm")


def moved_bytes(table: OperatorTable) -> float:
    return sum(float(table.read[i] + table.written[i]) for i, work in enumerate(table.work) if work == "memory_bound")


def test_most_dense_models_can_be_compared() -> None:
    assert len(DENSE) > 110


def test_a_layer_moves_twelve_times_its_stream_with_full_recompute() -> None:
    """Rajbhandari et al., ZeRO, section 8: two all_reduces in each of forward, recomputed forward and backward, of twice their message."""
    graph = model_graph(load_model("gpt3_175b"), "layer")
    found = [c for op in derive(graph, compose("megatron", 8)) for c in op.collectives]
    stream = graph.inputs[0].bytes
    assert {("all_reduce", ("tensor",), stream)} == {(c.kind, c.axes, c.bytes) for c in found}
    by = Counter(c.direction for c in found)
    assert 12 * stream == sum(2 * c.bytes * (2 if c.direction == "forward" else 1) for c in found)
    assert {"forward": 2, "backward": 2} == dict(by)


def test_gelu_between_columns_and_rows_needs_one_all_reduce_each_way() -> None:
    graph = model_graph(load_model("gpt3_175b"), "layer")
    mlp = [op for op in derive(graph, compose("megatron", 8)) if op.op.label in ("mlp up", "gelu", "mlp down")]
    assert [("mlp up", "backward"), ("mlp down", "forward")] == [
        (op.op.label, c.direction) for op in mlp for c in op.collectives
    ]
