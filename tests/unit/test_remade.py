"""What a layer's backward makes again whatever the plan says, because its kernels keep nothing of it."""

from __future__ import annotations

import pytest

from simulator.lowering import resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.plan.plan import Plan
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.lowered import graph_of

MADE_AGAIN = {
    "mamba2": ["convolution", "chunk products", "chunk states", "passing of states"],
    "delta": ["chunk transform", "reading of states", "chunk states", "passing of states"],
}


def _work(mixer: str) -> Workload:
    model = load_model("mamba2_2_7b")
    return Workload(
        model=model.model_copy(update={"mixers": (mixer,) * model.layers}), sequence_length=4096, global_batch_size=8
    )


def _layer(mixer: str, recompute: str) -> tuple[str, LayerCost]:
    work = _work(mixer)
    return next(
        (kind, cost)
        for kind, cost in layer_costs(work, resolve(work, Plan(recompute=recompute), 8)).items()
        if mixer in kind
    )


@pytest.mark.parametrize("mixer", list(MADE_AGAIN))
def test_the_backward_begins_with_what_nobody_kept(mixer: str) -> None:
    _, cost = _layer(mixer, "none")
    table = cost.backward
    again = [label for label, phase in zip(table.label, table.phase, strict=True) if phase == "recompute"]
    assert again == MADE_AGAIN[mixer]
    assert all(phase == "recompute" for phase in table.phase[: len(again)])


@pytest.mark.parametrize("mixer", list(MADE_AGAIN))
def test_full_recompute_runs_it_a_third_time(mixer: str) -> None:
    _, cost = _layer(mixer, "full")
    again = [
        label for label, phase in zip(cost.backward.label, cost.backward.phase, strict=True) if phase == "recompute"
    ]
    assert all(again.count(label) == 2 for label in MADE_AGAIN[mixer])


@pytest.mark.parametrize("mixer", list(MADE_AGAIN))
def test_what_is_made_again_is_not_kept(mixer: str) -> None:
    work = _work(mixer)
    graph = graph_of(work, resolve(work, Plan(recompute="none"), 8), _layer(mixer, "none")[0], 1)
    made = {t.name for op in graph.ops if op.remade for t in op.outputs}
    kept = {keep.tensor.name for op in graph.ops for keep in op.keeps}
    assert {op.label for op in graph.ops if op.remade} == set(MADE_AGAIN[mixer])
    assert not made & kept
