"""Gradients of activations that stand while a layer runs backward: the most of them, above all that was saved."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.plan.plan import Plan
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

TOKENS = 8192


def cost(model: str = "llama3_8b", **plan: Any) -> LayerCost:
    work = Workload(model=load_model(model), sequence_length=TOKENS, global_batch_size=1)
    made = Plan(**{"recompute": "none", **plan})
    return layer_costs(work, resolve(work, made, made.tensor_parallel))["layer"]


def mark(found: LayerCost) -> float:
    return sum(t.bytes for t in found.backward_mark)


def test_a_gate_in_plain_operations_has_three_gradients_of_its_width_beside_the_streams() -> None:
    """The down product's input is gone by then; the weight gradient of no product stands beside a gate."""
    model = load_model("llama3_8b")
    assert 2 * TOKENS * (model.hidden + 2 * model.ffn) == pytest.approx(mark(cost(framework="torchtitan_eager")))


def test_scores_in_memory_stand_twice_backward_in_fp32() -> None:
    """Two fp32 numbers for each, widened and made from it, and less what the softmax and the MLP no longer need."""
    found = cost("llama3_8b", framework="pytorch_ddp", attention="unfused")
    scores = 32 * TOKENS * TOKENS
    kept = {t.name: t.bytes for t in found.saved}
    assert (4.0 * scores, 2.0 * scores) == (kept["softmax output in fp32"], kept["softmax output"])
    freed = sum(
        size
        for name, size in kept.items()
        if name in ("softmax output", "values") or name[:2] in ("ml", "ga", "up", "si")
    )
    assert 8.0 * scores - freed == pytest.approx(mark(found), rel=0.02)


def test_ranks_that_split_a_layer_share_its_temporaries() -> None:
    whole, half = (mark(cost(framework="megatron_core", tensor_parallel=n, sequence_parallel=n > 1)) for n in (1, 2))
    assert 0.5 * whole <= half < 0.75 * whole


def test_what_runs_again_is_freed_as_the_backward_goes_on() -> None:
    """With full recompute the same temporaries stand beside all that was made again."""
    again, once = cost(framework="torchtitan_eager", recompute="full"), cost(framework="torchtitan_eager")
    made = sum(t.bytes for t in once.saved)
    assert mark(once) + made == pytest.approx(mark(again))
