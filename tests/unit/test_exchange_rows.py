"""Exchanges of experts' rows that multiprocessors fetch one by one: narrow rows take as long as wide ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs.expert_exchange import once_per_node, places_reached
from simulator.costs.tables import machine_of
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import place_group
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.calls import NodeExchange, read_call, write_call
from simulator.program.program import COLLECTIVE, Segment
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

TOKENS = 16_384


def seconds(cluster: str, hidden: int, multiprocessors: int, moved: str = "copied", ranks: int = 8) -> float:
    """The exchange of 16,384 tokens of 8 experts each, in 16 bits."""
    found = load_cluster(cluster)
    place, row = place_group((("ep", ranks),), ("ep",), found), 2 * hidden
    call = NodeExchange(8, 1.0, row, multiprocessors, moved)
    return once_per_node(8.0 * TOKENS * row, call, place, fabric_of(found), machine_of(found).memory_bound).seconds


@pytest.mark.parametrize(
    ("cluster", "hidden", "multiprocessors", "measured"),
    [
        ("dgx_h100", 2048, 20, 1.179e-3),
        ("dgx_h100", 3072, 20, 1.656e-3),
        ("dgx_h100", 4096, 20, 2.149e-3),
        ("dgx_h100", 7168, 20, 3.565e-3),
        ("hgx_h200", 2048, 20, 1.174e-3),
        ("hgx_b200", 2048, 20, 1.507e-3),
        ("hgx_b200", 2048, 24, 1.279e-3),
        ("hgx_b200", 3072, 20, 1.693e-3),
        ("hgx_b300", 2048, 20, 1.512e-3),
        ("hgx_b200", 7168, 20, 3.097e-3),
        ("hgx_b300", 3072, 24, 1.417e-3),
        ("hgx_b300", 4096, 20, 2.046e-3),
    ],
)
def test_rows_that_deepep_copies_come_back_as_quickly_as_measured(
    cluster: str, hidden: int, multiprocessors: int, measured: float
) -> None:
    """DeepEP's combine (ai-dynamo/aiconfigurator at 095f58a, wideep_deepep_normal_perf of sglang 0.5.12)."""
    assert seconds(cluster, hidden, multiprocessors) == pytest.approx(measured, rel=0.15)


def test_what_a_fetched_row_takes_does_not_grow_with_its_bytes_and_what_a_copied_one_takes_does() -> None:
    narrow, half = seconds("hgx_b200", 1024, 20, "fetched"), seconds("hgx_b200", 512, 20, "fetched")
    rows = TOKENS * places_reached(8, 8)
    assert narrow == pytest.approx(half)
    assert narrow == pytest.approx(rows * 0.36e-6 / 20)
    wide, wider = seconds("hgx_b200", 6144, 8), seconds("hgx_b200", 7168, 8)
    assert wider - wide == pytest.approx(rows * 2048 / 26e9 / 8)
    assert seconds("hgx_b200", 7168, 32, "fetched") == seconds(
        "hgx_b200", 7168, 1, "sent"
    )  # these wait for their bytes


def test_sorting_looks_at_every_expert_of_a_rank_for_every_row() -> None:
    """HybridEP on 8 B200, 8,192 tokens of 512 values and 8 of 128 and 256 experts: both ways 257 and 384 us
    (branch hhanyu/hybrid-ep-sparse-opt of DeepEP, commit 1b8f467)."""
    found = load_cluster("hgx_b200")
    place, numbers = place_group((("ep", 8),), ("ep",), found), machine_of(found).memory_bound

    def sorts(experts: int) -> float:
        call = NodeExchange(8, 1.0, 1024, 32, experts=experts)
        return once_per_node(8.0 * 8192 * 1024, call, place, fabric_of(found), numbers).seconds

    assert 2 * (sorts(32) - sorts(16)) == pytest.approx(384e-6 - 257e-6, rel=0.05)
    assert sorts(0) < sorts(16)


@pytest.mark.parametrize("call", [NodeExchange(8, 0.5), NodeExchange(8, 0.5, 4096, 32, "fetched", 16)])
def test_such_an_exchange_survives_the_text(call: NodeExchange) -> None:
    assert read_call(write_call(call), "call") == call


@pytest.mark.parametrize(
    "word", ["once_per_node(8,0.5,4096,0,sent,16)", "once_per_node(8,0.5,4096)", "once_per_node(8,0.5,1,1,pulled,0)"]
)
def test_rows_that_no_multiprocessor_moves_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="once_per_node"):
        read_call(word, "call")


def exchanges(framework: str) -> list[tuple[str, str, NodeExchange]]:
    """(table's phase, label, call) of a layer of Qwen3-30B-A3B on eight ranks."""
    work = Workload(model=load_model("qwen3_30b_a3b"), sequence_length=1024, global_batch_size=8)
    plan = Plan(framework=framework, expert_parallel=8, expert_exchange="once_per_node", zero_stage=1)
    found = lower(work, plan, 8)
    return [
        (t.phase[i], t.label[i], call)
        for item in found.items
        if isinstance(item, Segment)
        for t, _ in item.pieces
        for i in range(len(t))
        if t.kind[i] == COLLECTIVE and isinstance(call := t.call[i], NodeExchange)
    ]


@pytest.mark.parametrize(("framework", "working"), [("megatron_bridge", 20), ("megatron_bridge_hybridep", 32)])
def test_rows_come_back_one_by_one_and_hybridep_s_go_out_by_their_bytes(framework: str, working: int) -> None:
    hybrid = framework == "megatron_bridge_hybridep"
    back = NodeExchange(8, 1.0, 4096, working, "fetched" if hybrid else "copied", 16 if hybrid else 0)
    out = replace(back, moved="sent") if hybrid else back
    found = exchanges(framework)
    assert {call for phase, label, call in found if (phase == "forward") == label.startswith("combine")} == {back}
    assert {call for phase, label, call in found if (phase == "forward") == label.startswith("dispatch")} == {out}
