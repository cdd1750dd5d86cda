"""Two ways to what meshes exchange: derived operation by operation from a layout, and as rows of a plan, in panels or gathered and kept."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.lowering import resolve
from simulator.lowering.layers.expand import layer_costs
from simulator.partition.derive import derive
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.lowered import graph_of

AT_ONCE = {"broadcast": "all_gather", "reduce": "reduce_scatter"}
"""What panels, one after the other, are together."""
BIASES = "gradient of biases"
"""Of relative positions, the same for all sequences: what each row has of it is added up with the gradient of its table, once a step."""
Found = Counter[tuple[str, str, str]]
"""(direction, collective, axis) -> bytes."""


KINDS = [
    ("gpt3_13b", "layer"),
    ("gpt3_13b", "head"),
    ("llama2_7b", "layer"),
    ("bert_large", "encoder layer"),
    ("bert_large", "head"),
    ("t5_base", "encoder layer"),
    ("t5_base", "cross layer"),
    ("t5_base", "head"),
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize(("layout", "ranks"), [("summa_2d", 4), ("tesseract", 8), ("cubic_3d", 8)])
def test_the_rows_of_a_plan_exchange_what_its_layout_does(layout: str, ranks: int, name: str, kind: str) -> None:
    model, sequences = load_model(name), 8
    work = Workload(model=model, sequence_length=model.sequence_length, global_batch_size=sequences)
    plan = Plan(tensor_parallel=ranks, layout=layout, microbatch_size=sequences, recompute="none")
    resolved = resolve(work, plan, ranks)
    cost, rows = layer_costs(work, resolved)[kind], Counter()
    for direction, table in (("forward", cost.forward), ("backward", cost.backward)):
        for i in range(len(table)):
            if table.kind[i] == COLLECTIVE:
                at_once = AT_ONCE.get(table.work[i], table.work[i])
                rows[direction, at_once, table.group[i][0]] += round(float(table.message[i]))
    graph = graph_of(work, resolved, kind, sequences)
    weights = {w.name for w in graph.weights}
    derived: Found = Counter()
    for op in derive(graph, resolved.layout):
        for c in op.collectives:
            of_weights = "weight" in c.tensor or c.tensor.removeprefix("gradient of ") in weights
            once_a_step = c.kind == "all_reduce" and (of_weights or c.tensor == BIASES)
            again = c.direction == "backward" and "gradient" not in c.tensor and c.kind in ("all_gather", "all_to_all")
            if not once_a_step and not (again and resolved.layout.keeps_gathered):
                assert 1 == len(c.axes)
                derived[c.direction, c.kind, c.axes[0]] += round(c.bytes)
    assert derived == rows
    assert sum(rows.values()) > 0
