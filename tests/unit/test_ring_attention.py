"""Attention whose keys travel round: the work of each block, what it exchanges, and how partial results are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, OperatorTable, Segment
from simulator.program.spec import verify
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

LENGTH = 8192


def table(name: str, framework: str, peers: int, **plan: Any) -> OperatorTable:
    kernel = None if framework == "megatron_core" else "sdpa_2025"  # keys repeated before it
    work = Workload(model=load_model("llama3_8b"), sequence_length=LENGTH, global_batch_size=8)
    program = lower(work, Plan(context_parallel=peers, framework=framework, attention=kernel, **plan), 8)
    verify(program)
    return next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == name)


def row(found: OperatorTable, label: str) -> int:
    return found.label.index(label)


def seen(found: OperatorTable, i: int) -> float:
    """Scores that a fused attention row computes, of one head."""
    sequences, _, length, _ = found.shape[i].tolist()
    call = found.call[i]
    return sequences * (length * length / 2 if call.mask == "causal" else length * float(call.keys))


@pytest.mark.parametrize("peers", [2, 4, 8])
def test_all_blocks_together_are_a_ranks_share_of_the_causal_triangle(peers: int) -> None:
    found = table("layer forward", "megatron_core", peers)
    blocks = [i for i, work in enumerate(found.work) if work == "attention"]
    assert LENGTH * LENGTH / 2 / peers == sum(seen(found, i) for i in blocks)
    assert pytest.approx(4.0 * 32 * 128 * LENGTH * LENGTH / peers) == found.flops[blocks].sum()


def test_keys_gathered_at_once_hide_beside_the_own_block_and_passed_on_beside_the_others() -> None:
    passed = table("layer forward", "megatron_core", 4)
    gathered = table("layer forward", "torchtitan_eager", 4)
    for found, beside in ((passed, "attention to other ranks' keys"), (gathered, "attention")):
        exchange = row(found, "attention keys and values all_gather")
        assert beside == found.label[found.beside[exchange]]


def test_a_compiled_graph_waits_for_every_exchange_and_joins_in_one_kernel() -> None:
    for name in ("layer forward", "layer backward"):
        traced, plain = (table(name, f, 4, recompute="none") for f in ("torchtitan", "torchtitan_eager"))
        exchanges = [i for i, label in enumerate(traced.label) if "keys and values " in label]
        assert [-1] * len(exchanges) == traced.beside[exchanges].tolist()
        joining = "attention joining of partial results"
        bytes_, launches = (
            [float(getattr(t, key)[row(t, joining)]) for t in (traced, plain)] for key in ("written", "launches")
        )
        assert bytes_[0] < bytes_[1] / 2
        assert launches[0] < launches[1]


def test_repeated_keys_travel_for_every_query_head_and_their_gradients_in_fp32() -> None:
    grouped = table("layer backward", "megatron_core", 4, recompute="none")
    repeated = table("layer backward", "torchtitan_eager", 4, recompute="none")
    keys, gradients = (
        [t.message[row(t, f"attention keys and values {name}")] for t in (grouped, repeated)]
        for name in ("all_gather", "reduce_scatter")
    )
    assert 2 * LENGTH * 8 * 128 * 2 == keys[0]
    assert 32 / 8 * keys[0] == keys[1]
    assert gradients == [keys[0], pytest.approx(2 * keys[1] * 4 / 3)]  # wider, and home again
    assert "repeated keys and values" in table("layer forward", "torchtitan", 1).label


def test_joining_grows_with_the_blocks_and_plain_operations_move_more() -> None:
    label = "attention joining of partial results"

    def moved(framework: str, peers: int) -> float:
        found = table("layer forward", framework, peers)
        i = row(found, label)
        tokens = LENGTH // peers * 32 * 128
        return float(found.read[i] + found.written[i]) / tokens

    assert [0.75 * 10 + 6, 0.75 * 30 + 6] == [moved("megatron_core", 2), moved("megatron_core", 4)]
    half, all_of_it = (6 + 32) / 2 + 8, 6 + 32
    assert 3 * ((half + all_of_it) / 2 + 4 * 2) + 6 + 6 == moved("torchtitan_eager", 4)
    assert 0.75 * 10 * 3 + 6 + 4 * 2 == moved("torchtitan", 4)
    assert label not in table("layer forward", "megatron_core", 1).label
    whole = table("layer forward", "megatron_core", 4, context_parallel_kind="all_gather")
    assert label not in whole.label
    assert 1 == np.count_nonzero(whole.kind == COLLECTIVE)


def test_no_window_bounds_what_a_rank_sees_of_others() -> None:
    found = table("layer forward", "megatron_core", 4)
    (call,) = (
        found.call[i] for i, work in enumerate(found.work) if work == "attention" and found.call[i].mask == "full"
    )
    assert 0 == call.window
