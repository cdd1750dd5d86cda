"""Every model can be laid out by the usual words, by hand and by propagation."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from simulator.errors import LayoutError, UnknownNameError
from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.program.program import Segment
from simulator.simulation import simulate
from simulator.specs import names
from simulator.studies.layout_figures import LayoutFigures
from simulator.studies.layout_question import answer_layout, read_layout
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

REFUSED = {
    "falcon_7b": "heads = 71",
    "gpt2_1_5b": "heads = 25",
    "switch_c_2048": "rows = 285|copies = 285",
    "mamba2_2_7b": "'ffn'",
}
"""Models that two ranks cannot divide so."""


def figures(name: str, propagate: bool) -> LayoutFigures:
    maps = ["batch=rows", "heads=cols", "ffn=cols", "vocab=cols"]
    maps += ["experts=cols"] if load_model(name).experts else []
    return answer_layout(name, read_layout(None, "rows=2,cols=2", maps), propagate)


@pytest.mark.parametrize("first", "abcdefghijklmnopqrstuvwxyz")
def test_every_model_has_a_layout(first: str) -> None:
    for name in (name for name in names("models") if name.startswith(first) and not load_model(name).network):
        if name in REFUSED:
            with pytest.raises((LayoutError, UnknownNameError), match=REFUSED[name]):
                figures(name, False)
            continue
        by_hand = figures(name, False)
        json.dumps(by_hand.to_dict())
        propagated = figures(name, True)
        assert propagated.inferred is not None
        assert 0.5 < propagated.totals()["flops"] / by_hand.totals()["flops"] < 2.1, name


def exchanges(name: str, *maps: str) -> Counter[tuple[str, str, tuple[str, ...]]]:
    found = answer_layout(name, read_layout(None, "rows=2,cols=2", maps))
    block = next(block for block in found.blocks if "moe" in block.kind or block.kind == "layer")
    return Counter((c.direction, c.kind, c.axes) for op in block.ops for c in op.derived.collectives)


def test_experts_and_data_on_one_axis_exchange_rows_and_no_weights_of_experts() -> None:
    found = exchanges("gpt_oss_20b", "batch=rows", "batch=cols", "experts=cols")
    assert {"forward": 2, "backward": 2} == {
        way: found[way, "all_to_all", ("cols",)] for way in ("forward", "backward")
    }
    assert 2 == found["backward", "all_reduce", ("rows",)]
    assert not [key for key in found if key[1] in ("all_gather", "reduce_scatter")]


def test_latent_attention_needs_no_more_than_its_sums() -> None:
    found = exchanges("deepseek_v2_lite", "heads=cols")
    assert {"all_reduce"} == {kind for _, kind, _ in found}


@pytest.mark.parametrize("framework", ["megatron_core", "megatron_lm_2023", "megatron_bridge_library"])
def test_heads_that_ranks_share_out_are_turned_where_they_lie(framework: str) -> None:
    """Cosines and sines that are made in every layer are the same on all ranks."""
    plan = Plan(framework=framework, tensor_parallel=2, sequence_parallel=True)
    work = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=8)
    program = simulate(work, plan, load_cluster("dgx_h100", 8)).program
    tables = [t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces]
    turned = [t.work[i] for t in tables for i, label in enumerate(t.label) if label.startswith("rotary")]
    assert {"memory_bound"} == set(turned)
