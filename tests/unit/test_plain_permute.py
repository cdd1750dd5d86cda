"""Rows of tokens that plain operations copy for their experts and sum: atomic additions, kernels, and where it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.costs.memory_bound import memory_bound_seconds
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.compute_coefficients import load_memory_bound_coefficients
from simulator.hardware.gpu import load_gpu
from simulator.importers.table.row_experts import row_experts
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import OperatorTable, Program, Segment
from simulator.program.spec import verify
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

EXPERTS = Workload(model=load_model("qwen3_30b_a3b"), sequence_length=4096, global_batch_size=8)
MEGATRON: dict[str, Any] = {"framework": "megatron_core", "expert_parallel": 8, "zero_stage": 1}


def lowered(**plan: Any) -> Program:
    program = lower(EXPERTS, Plan(**{**MEGATRON, **plan}), 8)
    verify(program)
    return program


def access(program: Program, phase: str) -> dict[str, str]:
    """Label -> how the kernels of a layer with experts that copy or sum rows walk memory."""
    tables: list[OperatorTable] = [
        t for i in program.items if isinstance(i, Segment) and i.phase == phase for t, _ in i.pieces
    ]
    return {label: t.call[i].access for t in tables for i, label in enumerate(t.label) if "permute" in label}


def test_plain_operations_add_rows_up_by_atomic_additions() -> None:
    program = lowered()
    assert access(program, "forward") == {"permute": "gather", "unpermute": "atomic"}
    assert access(program, "backward") == {"unpermute": "gather", "permute": "atomic"}


@pytest.mark.parametrize("plan", [{"expert_permute_fusion": True}, {"framework": "megatron_bridge"}])
def test_fused_kernels_fetch_the_rows_of_a_token(plan: dict[str, Any]) -> None:
    found = {**access(lowered(**plan), "forward"), **access(lowered(**plan), "backward")}
    assert set(found.values()) == {"gather"}


@pytest.mark.parametrize(
    ("framework", "forward", "backward"),
    [
        ("torchtitan_2025_eager", "atomic", "atomic"),
        ("torchtitan_2025", "sorted", "sorted"),
        ("torchtitan_2026_eager", "sorted", "sorted"),
        ("kempnerforge", "sorted", "sorted"),
        ("prime_rl", "atomic", "atomic"),
        ("olmo_core", "gather", "gather"),
    ],
)
def test_codes_on_pytorch_add_rows_up_as_they_pick_them(framework: str, forward: str, backward: str) -> None:
    program = lowered(framework=framework, expert_parallel=1, recompute="none")
    assert access(program, "forward") == {"permute": "gather", "unpermute": forward}
    assert access(program, "backward") == {"unpermute": "gather", "permute": backward}


def test_rows_put_in_order_before_their_sum_are_added_up_backward() -> None:
    program = lowered(framework="hugging_face_fsdp_2026", expert_parallel=1, zero_stage=3)
    assert access(program, "forward") == {"permute": "gather", "unpermute": "gather"}
    assert access(program, "backward") == {"unpermute": "sorted", "permute": "sorted"}


@pytest.mark.parametrize(("framework", "wanted"), [("torchtitan_2025", "sorted"), ("megatron_core", "gather")])
def test_the_sort_of_a_rank_is_an_index_too_where_rows_are_picked_so(framework: str, wanted: str) -> None:
    program = lowered(framework=framework, recompute="none")
    tables = [t for i in program.items if isinstance(i, Segment) and i.phase == "backward" for t, _ in i.pieces]
    sorts = {t.call[i].access for t in tables for i, label in enumerate(t.label) if label == "sort by expert"}
    assert sorts == {wanted}


def test_sums_of_sorted_indices_take_as_long_as_they_were_measured() -> None:
    gpu, rows = load_gpu("b200_sxm"), 196_608 * 2048 * 2.0
    [seconds] = memory_bound_seconds([rows], [rows], gpu, load_memory_bound_coefficients(gpu), ["sorted"])
    assert seconds == pytest.approx(1.848e-3, rel=0.03)


def test_additions_take_as_long_as_they_were_measured() -> None:
    gpu, rows, sums = load_gpu("h100_80gb_sxm"), 8192 * 8 * 4096 * 2.0, 8192 * 4096 * 2.0
    [seconds] = memory_bound_seconds([rows], [sums], gpu, load_memory_bound_coefficients(gpu), ["atomic"])
    assert seconds == pytest.approx(2.304e-3, rel=0.05)


def test_a_fused_permutation_is_worth_a_tenth_of_a_step_whose_host_runs_ahead() -> None:
    plain, fused = (
        simulate(
            replace(EXPERTS, global_batch_size=32),
            Plan(**MEGATRON, microbatch_size=4, expert_permute_fusion=said),
            load_cluster("dgx_h100", 8),
        )
        for said in (False, True)
    )
    assert 1.05 < plain.step_time / fused.step_time < 1.5


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"expert_exchange": "once_per_node"}, "makes the copies itself"),
        ({"expert_parallel": 1, "expert_loop": "modules"}, "one after the other"),
    ],
)
def test_where_no_kernel_copies_rows_nothing_is_fused(plan: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        lowered(**plan, expert_permute_fusion=True)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("all-to-all dispatcher; fused permutation", True),
        ("no permute fusion", False),
        ("DeepEP; permute fusion", None),
        ("all-to-all dispatcher", None),
        ("DistMoE dispatcher", True),
        ("routing balanced by force; Mega MoE", True),
        ("grouped products of MegaBlocks", True),
    ],
)
def test_a_row_tells_whether_the_permutation_is_fused(words: str, wanted: bool | None) -> None:
    found = row_experts({"ep": "8", "quality_note": words}, "megatron_core", EXPERTS.model, 1, 8, [])
    assert found.get("expert_permute_fusion") is wanted
