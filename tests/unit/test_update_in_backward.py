"""Weights updated in the backward pass: gradients never stand together, kernels come tensor by tensor, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.importers.table.row_notes import row_update
from simulator.plan.plan import Plan
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.rows import placed


def predicted(gpus: int = 1, **plan: Any) -> Prediction:
    workload = Workload(
        model=load_model("llama3.2_1b"), sequence_length=1024, global_batch_size=gpus, precision="bf16_true"
    )
    chosen = {"framework": "torchtitan_eager", "recompute": "full"} | plan
    return simulate(workload, Plan(**chosen), load_cluster("dgx_h100", gpus))


def gradients(found: Prediction) -> float:
    return sum(line.bytes for line in found.memory.live(0) if line.category == "gradients")


@pytest.mark.parametrize("sharded", [{}, {"gpus": 8, "zero_stage": 3}])
def test_gradients_never_stand_together(sharded: dict[str, Any]) -> None:
    at_the_end = predicted(**sharded, clip_gradients=False)
    in_backward = predicted(**sharded, optimizer_in_backward=True)
    assert in_backward.peak_memory < at_the_end.peak_memory
    assert gradients(in_backward) < (gradients(at_the_end) if not sharded else 0.6e9)


def test_one_gpu_holds_weights_and_states_alone() -> None:
    """16 bits each for weights and two moments of 1.24e9 weights; gradients of 16 bits are gone from the peak, which is the loss's now."""
    weights = 2 * 1.236e9
    end, inside = (predicted(optimizer_in_backward=x, clip_gradients=False) for x in (False, True))
    assert gradients(end) == pytest.approx(weights, rel=0.01)
    assert gradients(inside) == 0
    assert 3 * weights < inside.peak_memory < end.peak_memory


def test_each_tensor_has_kernels_of_its_own() -> None:
    fused = {"framework": "torchtitan"}
    apart = predicted(optimizer_in_backward=True, **fused)
    together = predicted(clip_gradients=False, **fused)
    assert apart.step_time >= together.step_time
    assert apart.step_time == pytest.approx(together.step_time, rel=0.025)
    assert predicted(**fused).step_time > together.step_time  # which clips


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ({"clip_gradients": True}, "norm of all gradients is known only when"),
        ({"gpus": 2, "pipeline_parallel": 2}, "several microbatches or pipeline ranks"),
        ({"gpus": 2, "tensor_parallel": 2}, "several microbatches or pipeline ranks"),
        ({"gpus": 2, "zero_stage": 1}, "ZeRO-1 and 2 update flat shards"),
        ({"optimizer_offload": 1.0}, "states on the host are updated there"),
    ],
)
def test_what_cannot_be_is_refused(plan: dict[str, Any], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        predicted(optimizer_in_backward=True, **plan)


def test_loss_scaling_is_refused() -> None:
    workload = Workload(model=load_model("llama3.2_1b"), sequence_length=1024, global_batch_size=1, precision="fp16")
    with pytest.raises(PlanError, match="loss scaling checks all gradients"):
        simulate(workload, Plan(optimizer_in_backward=True), load_cluster("dgx_a100", 1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("torchtune (single device), optimizer in backward", True),
        ("torchtune, optimizer_in_bwd", True),
        ("optimizer step in the backward pass", True),
        ("PyTorch FSDP, backward prefetch", False),
        ("optimizer states in host memory", False),
    ],
)
def test_words_of_a_row(words: str, said: bool) -> None:
    assert said == bool(row_update({"framework": words}, 0, False, []))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"gbs": "64"}, "it needs one microbatch per step"),
        ({"gbs": "8", "zero_stage": "1"}, "it needs zero_stage = 0 or 3"),
        ({"gbs": "8"}, "(the row's own words)"),
    ],
)
def test_a_row_whose_plan_does_not_allow_it_says_so(more: dict[str, str], told: str) -> None:
    one = placed(quality_note="optimizer in backward", tp="1", pp="1", dp="8", n_gpus="8", mbs="1", **more)
    assert ("own words" in told) == one.fields.get("optimizer_in_backward", False)
    assert any(said.startswith("optimizer_in_backward") and told in said for said in one.assumed), one.assumed
