"""Nothing accepted and ignored: a choice of a plan changes what is predicted, or is refused where it could not."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from simulator.errors import PlanError
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.options.option import declared
from simulator.plan.plan import Plan
from simulator.simulation import simulate
from tests.replay.cases import PLANS, made_plan

TRIES = 20
DERIVED = {"data_parallel"}
"""What follows from the other degrees and the world: no plan can leave the others as they are and change it."""


APART = {
    "family": "gpt", "cluster": "dgx_h100", "nodes": 2, "plan": {"tensor_parallel": 2, "rank_order": ["dp", "tp", "pp"]},
    "workload": {"sequence_length": 256, "global_batch_size": 16, "precision": "bf16"},
}  # fmt: skip
"""Tensor parallelism between nodes: no plan of the replay has an order of ranks that its wires could tell from the usual one."""

LOOPED = {
    "family": "experts", "cluster": "dgx_h100", "nodes": 1, "plan": {"zero_stage": 1, "expert_loop": "slices"},
    "workload": {"sequence_length": 256, "global_batch_size": 16, "precision": "bf16"},
}  # fmt: skip
"""Experts in a loop: the replay is older."""

EACH = {
    "family": "gpt", "cluster": "dgx_h100", "nodes": 1, "plan": {"overlap_gradients": True, "reduce_gradients": "microbatch"},
    "workload": {"sequence_length": 256, "global_batch_size": 32, "precision": "bf16"},
}  # fmt: skip
"""Gradients added after every microbatch: no plan of the replay does."""


@functools.cache
def _plans() -> tuple[dict[str, Any], ...]:
    plans = [APART, LOOPED, EACH, *(json.loads(line) for line in PLANS.read_text().splitlines())]
    return tuple(sorted(plans, key=lambda case: len(str(case))))


def _with_and_without(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Cases of the replay that make a choice, each beside the same without it."""
    for case in _plans():
        if name in case["plan"]:
            yield case, case | {"plan": {key: value for key, value in case["plan"].items() if key != name}}


def _predicted(case: dict[str, Any]) -> tuple[float, ...] | None:
    """Step time and memory; None where the plan is refused."""
    try:
        found = simulate(*made_plan(case))
    except PlanError:
        return None
    return found.step_time, found.peak_memory, found.host_memory


@pytest.mark.parametrize("name", [name for name in declared(Plan) if name not in DERIVED])
def test_a_choice_that_is_accepted_changes_the_prediction(name: str) -> None:
    accepted = ((found, other) for case, other in _with_and_without(name) if (found := _predicted(case)))

    assert any(found != _predicted(other) for found, other in itertools.islice(accepted, TRIES))


NO_EFFECT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"gradient_dtype": "bf16"}, {"precision": "fp32"}),
    ({"gradient_dtype": "fp32"}, {"precision": "bf16_true"}),
    ({"rank_order": ["pp", "dp", "tp"]}, {}),
    ({"layer_split": [8]}, {}),
    ({"schedule": "gpipe"}, {"global_batch_size": 8}),
    ({"schedule": "fill_drain"}, {"global_batch_size": 8}),
    ({"schedule": "eager_one_f_one_b"}, {}),
]


@pytest.mark.parametrize(("plan", "workload"), NO_EFFECT)
def test_a_choice_that_could_have_no_effect_is_refused(plan: dict[str, Any], workload: dict[str, Any]) -> None:
    work = {"sequence_length": 256, "global_batch_size": 16, "precision": "bf16"} | workload
    made = made_plan({"family": "gpt", "cluster": "dgx_h100", "nodes": 1, "plan": plan, "workload": work})
    (name,) = plan

    with pytest.raises(PlanError, match=name) as refusal:
        resolve(made[0], made[1], 8)
    assert "Way out: leave" in str(refusal.value)
