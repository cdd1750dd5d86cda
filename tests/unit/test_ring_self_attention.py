"""Ring self-attention (Li et al., arXiv 2105.13120): what it moves, computes, keeps and refuses, and what fits with it."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.importers.write_megatron import megatron_script
from simulator.job import load_job
from simulator.lowering import lower
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.partition.strategies.context import QUERIES, attention_exchange
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, OperatorTable, Program, Segment
from simulator.program.spec import verify
from simulator.report.memory import CATEGORIES
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

BATCH, LENGTH, HIDDEN, LAYERS = 8, 512, 768, 12
RING = {"context_parallel_kind": "ring_self_attention", "framework": "megatron_lm_2021", "recompute": "none"}
UNITS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Messages times (p - 1)/p that a rank sends, by the ring."""


def program(ranks: int, **plan: Any) -> Program:
    model, batch = plan.pop("model", "bert_base"), plan.pop("batch", BATCH)
    work = Workload(model=load_model(model), sequence_length=LENGTH, global_batch_size=batch, precision="fp16")
    made = lower(work, Plan(context_parallel=ranks, microbatch_size=batch, **{**RING, **plan}), ranks)
    verify(made)
    return made


def tables(made: Program) -> list[OperatorTable]:
    return [t for i in made.items if isinstance(i, Segment) for t, _ in i.pieces]


def sent(made: Program, phase: str, ranks: int) -> float:
    """Elements that a rank sends in the layers of a step in one phase."""
    out = 0.0
    for item in made.items:
        for t, times in item.pieces if isinstance(item, Segment) else ():
            rows = [i for i in np.flatnonzero(t.kind == COLLECTIVE) if t.phase[i] == phase]
            out += times * sum(UNITS[t.work[i]] * float(t.message[i]) / 2 for i in rows) * (ranks - 1) / ranks
    return out


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_whole_step_moves_what_section_3_2_2_says(ranks: int) -> None:
    turn = (ranks - 1) * BATCH * LENGTH / ranks * HIDDEN * LAYERS
    made = program(ranks)
    assert 2 * turn == pytest.approx(sent(made, "forward", ranks))
    assert 6 * turn == pytest.approx(sent(made, "backward", ranks))
    again = program(ranks, recompute="full")
    assert 2 * turn == pytest.approx(sent(again, "recompute", ranks))


def test_tensor_parallelism_moves_as_much() -> None:
    work = Workload(model=load_model("bert_base"), sequence_length=LENGTH, global_batch_size=BATCH, precision="fp16")
    plan = Plan(tensor_parallel=4, microbatch_size=BATCH, framework="megatron_lm_2021", recompute="none")
    layers = [t for t in tables(lower(work, plan, 4)) if t.name.startswith("encoder layer")]
    found = (
        sum(UNITS[t.work[i]] * t.message[i] / 2 for t in layers for i in np.flatnonzero(t.kind == COLLECTIVE)) * 3 / 4
    )
    assert found == pytest.approx(8 * 3 * BATCH * LENGTH / 4 * HIDDEN)


def test_blocks_together_compute_what_one_rank_would_and_weights_lie_whole_on_all() -> None:
    alone, shared = program(1, context_parallel_kind=None), program(8)

    def flops(made: Program) -> float:
        return sum(float(t.flops.sum()) for t in tables(made) if t.name.startswith("encoder layer"))

    assert flops(shared) * 8 == pytest.approx(flops(alone))
    assert cost(8).parameters == cost(1, context_parallel_kind=None).parameters
    gradients = {i.group for i in shared.items if not isinstance(i, Segment) and "gradients of" in i.name}  # type: ignore[union-attr]
    assert {("cp", "dp")} == gradients


def cost(ranks: int, ffn: int = 3072, **plan: Any) -> LayerCost:
    model = load_model("bert_base").model_copy(update={"ffn": ffn})
    work = Workload(model=model, sequence_length=LENGTH, global_batch_size=BATCH, precision="fp16")
    made = Plan(context_parallel=ranks, microbatch_size=BATCH, **{**RING, **plan})
    return layer_costs(work, resolve(work, made, ranks))["encoder layer"]


def test_scores_of_all_keys_are_kept() -> None:
    for ranks in (2, 8):
        found = cost(ranks)
        scores = BATCH * 12 * (LENGTH / ranks) * LENGTH
        kept = {t.name: t.bytes for t in found.saved}
        assert (2 * scores, scores, 2 * scores) == tuple(
            kept[name] for name in ("softmax output", "attention dropout mask", "attention dropout output")
        )
        whole = BATCH * LENGTH * HIDDEN * 2  # gradient of all keys, before a rank cuts its part out
        assert scores + whole <= sum(t.bytes for t in cost(ranks, ffn=64).backward_mark)


def test_blocks_are_put_in_their_place_or_added_up_turn_by_turn() -> None:
    ranks, e = 4, 2
    found = cost(ranks)
    scores = BATCH * 12 * LENGTH / ranks * LENGTH * e
    out = BATCH * LENGTH / ranks * HIDDEN * e
    put = "blocks put together"
    wanted = {
        ("forward", f"attention scores {put}"): (scores, scores, ranks),
        ("forward", f"attention context {put}"): (2 * ranks * out, (ranks + 1) * out, ranks + 1),
        ("backward", f"attention scores gradient {put}"): (2 * ranks * out, (ranks + 1) * out, ranks + 1),
        ("backward", f"attention context gradient {put}"): (2 * scores, 2 * scores, ranks + 1),
    }
    for (table, label), (read, written, launches) in wanted.items():
        rows: OperatorTable = getattr(found, table)
        i = rows.label.index(label)
        assert (read, written, launches) == (rows.read[i], rows.written[i], rows.launches[i])
    products = [i for i, label in enumerate(found.forward.label) if label in ("attention scores", "attention context")]
    assert [[BATCH * 12 * ranks, 128, 128, 64], [BATCH * 12 * ranks, 128, 64, 128]] == found.forward.shape[
        products
    ].tolist()
    assert [ranks, ranks] == found.forward.launches[products].tolist()


def test_the_derived_collectives_give_the_gradients_of_one_rank() -> None:
    ranks, tokens, width = 4, 3, 5
    draw = np.random.default_rng(3)
    q, k, v, upstream = (draw.normal(size=(ranks * tokens, width)) for _ in range(4))
    exchange = attention_exchange(QUERIES, whole_gradients=True)
    assert ("all_gather", "all_reduce") == (exchange.keys, exchange.gradients)

    def softmax(scores: Any) -> Any:
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def attend(mine: Any, given: Any) -> tuple[Any, Any, Any, Any]:
        """Output and gradients of queries, keys and values, of some queries against all keys."""
        p = softmax(mine @ k.T)
        weights = given @ v.T
        scores = p * (weights - (weights * p).sum(-1, keepdims=True))
        return p @ v, scores @ k, scores.T @ mine, p.T @ given

    whole = attend(q, upstream)
    parts = [slice(r * tokens, (r + 1) * tokens) for r in range(ranks)]
    each = [attend(q[part], upstream[part]) for part in parts]
    summed = [sum(rank[i] for rank in each) for i in (2, 3)]
    for part, rank in zip(parts, each, strict=True):
        found = (rank[0], rank[1], summed[0][part], summed[1][part])
        assert all(np.allclose(a, b[part]) for a, b in zip(found, whole, strict=True))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"context_parallel": 1}, "context_parallel = 1"),
        (
            {"context_parallel": 4, "attention": "flash2"},
            "attention = 'flash2' makes none. Way out: attention = 'unfused'",
        ),
        ({"context_parallel": 4, "framework": "megatron_core"}, "makes none"),
        ({"context_parallel": 3}, "512 / 3 is no whole number. Nearest: sequence_length = 513"),
        ({"context_parallel": 4, "context_parallel_inner": 2}, "context_parallel_kind = 'ring_self_attention'"),
    ],
)
def test_what_cannot_be_is_refused(plan: dict[str, Any], said: str) -> None:
    work = Workload(model=load_model("bert_base"), sequence_length=LENGTH, global_batch_size=12)
    with pytest.raises(PlanError) as caught:
        resolve(work, Plan(**{**RING, **plan}), plan["context_parallel"])
    assert said in str(caught.value)


def test_one_piece_per_rank_is_enough() -> None:
    work = Workload(model=load_model("bert_base"), sequence_length=500, global_batch_size=4)
    assert 4 == resolve(work, Plan(context_parallel=4, **RING), 4).context_parallel
    with pytest.raises(PlanError, match="two pieces per rank"):
        resolve(work, Plan(context_parallel=4, **{**RING, "context_parallel_kind": "ring"}), 4)


def test_megatron_has_no_word_for_it() -> None:
    said = [
        "plan.context_parallel=2",
        "plan.context_parallel_kind=ring_self_attention",
        "plan.attention=unfused",
        "plan.data_parallel=1",
    ]
    with pytest.raises(PlanError, match="cp-comm-type"):
        megatron_script(load_job("gpt2_124m_2gpu", said))


def test_causal_models_share_keys_between_heads() -> None:
    made = program(4, model="llama3_8b", batch=1)
    rows = [
        (t, i) for t in tables(made) for i in range(len(t.label)) if t.label[i] == "attention scores keys all_gather"
    ]
    assert {1 * LENGTH * 8 * 128 * 2.0} == {float(t.message[i]) for t, i in rows}


TABLE_4 = [
    (1, 64, 512, 8477.28, 8477.53),
    (2, 128, 512, 9520.47, 8478.76),
    (4, 256, 512, 12232.52, 8481.26),
    (8, 512, 512, None, 8490.75),
    (1, 64, 256, 3707.39, 3707.01),
    (2, 64, 512, 4993.43, 4670.64),
    (4, 64, 1024, 8175.93, 6601.88),
    (8, 64, 2048, 14862.09, 10536.38),
]
"""Ranks, batch, tokens, MiB of tensor and of sequence parallelism: Li et al., arXiv 2105.13120, table 4; eight pipeline ranks of P100."""


def peak(model: str, batch: int, length: int, gpus: int, **plan: Any) -> tuple[float, bool]:
    """MiB of tensors on the first rank, and whether the step fits everywhere; the position table as long as it must be."""
    longer = load_model(model).model_copy(update={"sequence_length": max(512, length)})
    work = Workload(model=longer, sequence_length=length, global_batch_size=batch, precision="fp16")
    made = {"microbatch_size": batch, "framework": "megatron_lm_2021", "recompute": "none", **plan}
    found = simulate(work, Plan(**made), load_cluster("piz_daint", gpus))
    tensors = [i for i, name in enumerate(CATEGORIES) if name not in ("context", "fragmentation")]
    return float(found.memory.by_category[0, tensors].sum()) / 2**20, found.fits


@pytest.mark.parametrize(("ranks", "batch", "length", "tensor", "sequence"), TABLE_4)
def test_memory_of_weak_scaling_is_that_of_table_4(
    ranks: int, batch: int, length: int, tensor: float | None, sequence: float
) -> None:
    context = {"context_parallel": ranks, **(RING if ranks > 1 else {})}
    ours, _ = peak("bert_large", batch, length, 8 * ranks, pipeline_parallel=8, **context)
    assert sequence == pytest.approx(ours, rel=0.22)
    ours, fits = peak("bert_large", batch, length, 8 * ranks, pipeline_parallel=8, tensor_parallel=ranks)
    if tensor is None:
        assert not fits
    else:
        assert tensor == pytest.approx(ours, rel=0.12)


def test_what_fits_64_gpus_against_tensor_parallelism_on_12() -> None:
    """Figure 3a and 5a: 13.7 times the batch, 3.0 times the length; docs/surveys.md says what is missing of the first."""
    sequence = {"context_parallel": 64, **RING}

    def largest(gpus: int, sizes: range, plan: dict[str, Any], of_batch: bool) -> int:
        def too_large(n: int) -> bool:
            return not peak("bert_base", *((n, 512) if of_batch else (64, n)), gpus, **plan)[1]

        return sizes[bisect.bisect_left(sizes, True, key=too_large) - 1]

    batches = largest(64, range(64, 4000, 8), sequence, True), largest(12, range(8, 500), {"tensor_parallel": 12}, True)
    lengths = (
        largest(64, range(128, 8192, 64), sequence, False),
        largest(12, range(64, 4096, 64), {"tensor_parallel": 12}, False),
    )
    assert 1600 == pytest.approx(batches[0], rel=0.15)
    assert 9.5 < batches[0] / batches[1] < 13.7
    assert 3.0 == pytest.approx(lengths[0] / lengths[1], rel=0.2)
