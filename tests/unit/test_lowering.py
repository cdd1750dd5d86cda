"""Lowering: what a plan puts into the program, pass by pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from simulator.lowering import lower
from simulator.lowering.steps.assign import assign_layers
from simulator.plan.plan import Plan
from simulator.program.program import COLLECTIVE, COMPUTE, TRANSFER, Link, Program, Segment
from simulator.program.spec import verify
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.lowered import links, lowered, workload


def operators(program: Program, phase: str, kind: int = COMPUTE) -> list[str]:
    """Labels of the operators of one phase in the program's blocks."""
    found = []
    for item in program.items:
        if isinstance(item, Segment):
            for table, _ in item.pieces:
                found += [
                    b for b, p, k in zip(table.label, table.phase, table.kind, strict=True) if p == phase and k == kind
                ]
    return found


# --- layers to chunks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "chunks", "expected"),
    [
        (96, 8, [12] * 8),
        (126, 16, [7, *[8] * 14, 7]),  # embedding and head count as a layer each
        (78, 12, [6, 6, 6, 7, 7, 7, 7, 7, 7, 6, 6, 6]),  # the surplus goes to the middle
        (5, 4, [1, 1, 2, 1]),
    ],
)
def test_uneven_layers_follow_the_rule(layers: int, chunks: int, expected: list[int]) -> None:
    assert expected == [c.layers for c in assign_layers(layers, chunks)]


def test_an_explicit_split_is_taken() -> None:
    program = lowered(workload(), 2, pipeline_parallel=2, layer_split=(40, 56))
    counts = {
        s.name.split(" of ")[1].split(" ")[0] for s in program.items if isinstance(s, Segment) and " of " in s.name
    }
    assert {"40", "56"} == counts


# --- pipeline ------------------------------------------------------------------------------------------------------


def test_every_boundary_is_crossed_once_forward_and_once_backward_per_microbatch() -> None:
    program = lowered(workload(), 8, pipeline_parallel=4, chunks_per_rank=2, data_parallel=2)
    microbatches, boundaries = 8, 7
    assert 2 * microbatches * boundaries == int((program.kind == TRANSFER).sum())


def test_one_rank_has_no_transfers() -> None:
    assert 0 == int((lowered(workload(), 2).kind == TRANSFER).sum())


def test_messages_are_split_over_tensor_parallel_ranks() -> None:
    whole = 2048 * 12288 * 2.0

    def message(**plan: Any) -> float:
        program = lowered(workload(), 16, tensor_parallel=8, pipeline_parallel=2, **plan)
        return next(i.message for i in program.items if isinstance(i, Link) and i.kind == TRANSFER)

    assert whole / 8 == message(sequence_parallel=True)
    assert whole == message(framework="megatron_core")
    assert whole / 8 == message(framework="megatron_lm")  # scatter-gather optimisation
    assert whole / 8 == message(framework="megatron_deepspeed")  # partitioned activations


def test_blocking_messages_hold_the_sender() -> None:
    def waits(p2p: str) -> int:
        return len(lowered(workload(), 4, pipeline_parallel=4, p2p=p2p).after)

    assert waits("blocking") > waits("latency")


# --- tensor parallelism --------------------------------------------------------------------------------------------


def test_tensor_parallelism_adds_two_all_reduces_a_layer_each_way() -> None:
    program = lowered(workload(), 8, tensor_parallel=8)
    layer = next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == "layer forward")
    reductions = [w for w, k in zip(layer.work, layer.kind, strict=True) if k == COLLECTIVE]
    assert ["all_reduce", "all_reduce"] == reductions
    assert 2048 * 12288 * 2.0 == layer.message.max()


def test_sequence_parallelism_replaces_them_by_gathers_and_scatters() -> None:
    program = lowered(workload(), 8, tensor_parallel=8, sequence_parallel=True)
    tables = {t.name: t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces}
    names = [
        w for w, k in zip(tables["layer forward"].work, tables["layer forward"].kind, strict=True) if k == COLLECTIVE
    ]
    assert ["all_gather", "reduce_scatter"] * 2 == names


def layer_collectives(table: str, **plan: Any) -> list[str]:
    """Collectives of one table of a Llama layer, in order."""
    program = lowered(workload("llama2_70b"), 8, tensor_parallel=8, **plan)
    found = next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == table)
    return [w for w, k in zip(found.work, found.kind, strict=True) if k == COLLECTIVE]


def test_separate_gate_and_up_projections_sum_an_input_gradient_each() -> None:
    assert ["all_reduce"] * 2 == layer_collectives("layer backward", framework="megatron_core")
    assert ["all_reduce"] * 3 == layer_collectives("layer backward", framework="scaling")


def test_inputs_that_are_kept_gathered_are_not_gathered_again() -> None:
    def backward(framework: str) -> tuple[int, int]:
        found = layer_collectives("layer backward", framework=framework, sequence_parallel=True)
        return found.count("all_gather"), found.count("reduce_scatter")

    assert ((4, 2), (2, 2)) == (backward("megatron_core"), backward("scaling"))


def test_products_that_are_modules_of_their_own_each_gather_their_input_and_scatter_its_gradient() -> None:
    """KempnerForge's profile of 13B on TP4 counts 12 gathers and 8 scatters per layer, forward, recomputed and backward."""
    both = Counter[str]()
    for table in ("layer forward", "layer backward"):
        both.update(layer_collectives(table, framework="kempnerforge_eager", sequence_parallel=True, data_parallel=1))
    assert {"all_gather": 5 + 2, "reduce_scatter": 2 + 5} == both
    shared = layer_collectives("layer forward", framework="torchtitan_eager", sequence_parallel=True)
    assert 2 == shared.count("all_gather")


def test_a_loss_over_the_whole_vocabulary_gathers_logits_and_is_done_by_every_rank() -> None:
    def head(framework: str) -> tuple[list[str], float]:
        program = lowered(workload("llama2_70b"), 8, tensor_parallel=8, framework=framework)
        table = next(
            t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == "head forward"
        )
        logits = sum(
            t.bytes
            for effect in program.effects
            for t in effect.tensors
            if t.category == "logits" and t.name == "logits"
        )
        return [w for w, k in zip(table.work, table.kind, strict=True) if k == COLLECTIVE], logits

    (split, part), (gathered, whole) = head("megatron_core"), head("scaling")
    assert (["all_reduce"] * 3, ["all_gather"]) == (split, gathered)
    assert whole > 7 * part


def test_products_are_divided() -> None:
    one, eight = (lowered(workload(), t, tensor_parallel=t) for t in (1, 8))

    def flops(program: Program) -> float:
        return sum(
            float(t.flops.sum())
            for i in program.items
            if isinstance(i, Segment)
            for t, _ in i.pieces
            if t.name == "layer forward"
        )

    assert flops(one) == pytest.approx(8 * flops(eight), rel=1e-12)


# --- context parallelism -------------------------------------------------------------------------------------------


def test_context_parallelism_divides_tokens_and_exchanges_keys_and_values() -> None:
    work = workload("llama3_8b", 8, 8192)
    alone, two = (lowered(work, 8, context_parallel=c, framework="megatron_core") for c in (1, 2))
    tables = [{t.name: t for i in p.items if isinstance(i, Segment) for t, _ in i.pieces} for p in (alone, two)]
    one, half = (t["layer forward"] for t in tables)
    compute = half.kind == COMPUTE
    assert half.flops.sum() == pytest.approx(one.flops.sum() / 2, rel=1e-12)
    (exchange,) = np.flatnonzero(~compute)
    assert ("all_gather", ("cp",)) == (half.work[exchange], half.group[exchange])
    assert 8192 * 2 * 8 * 128 * 2 == half.message[exchange]
    assert "attention" == half.label[half.beside[exchange]]
    backward = tables[1]["layer backward"]
    assert ["all_gather", "reduce_scatter"] == [
        w for w, k in zip(backward.work, backward.kind, strict=True) if k == COLLECTIVE
    ]


def test_gradients_are_added_over_context_ranks_too() -> None:
    program = lowered(workload("llama3_8b", 8, 8192), 8, context_parallel=2)
    groups = {
        i.group for i in program.items if isinstance(i, Link) and i.collective == "all_reduce" and " layer" in i.name
    }
    assert {("cp", "dp")} == groups
    only = lowered(workload("llama3_8b", 8, 8192), 8, context_parallel=8, zero_stage=1)
    assert any(i.collective == "reduce_scatter" for i in only.items if isinstance(i, Link))


def test_ulysses_deals_out_heads() -> None:
    program = lowered(workload("llama3_8b", 8, 8192), 8, context_parallel=4, context_parallel_kind="ulysses")
    layer = next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == "layer forward")
    attention = layer.label.index("attention")
    assert [1, 8, 8192, 128] == layer.shape[attention].tolist()
    assert ["all_to_all", "all_to_all"] == [w for w, k in zip(layer.work, layer.kind, strict=True) if k == COLLECTIVE]


# --- recompute -----------------------------------------------------------------------------------------------------


def test_full_recompute_repeats_the_whole_layer_and_selective_its_attention() -> None:
    assert [] == operators(lowered(workload(), 1, framework="megatron_lm", recompute="none"), "recompute")
    selective = operators(lowered(workload(), 1, framework="megatron_lm", recompute="selective"), "recompute")
    assert {"attention scores", "softmax", "attention dropout", "attention context", "attention transpose"} == set(
        selective
    )
    full = lowered(workload(), 1, framework="megatron_lm", recompute="full")
    layer = next(t for i in full.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == "layer forward")
    assert list(layer.label) == operators(full, "recompute")


# --- data parallelism ----------------------------------------------------------------------------------------------


def test_without_overlap_gradients_are_reduced_once_per_rank_after_the_last_backward() -> None:
    program = lowered(workload(), 4, pipeline_parallel=2, data_parallel=2, framework="megatron_lm")
    found = [(i, n) for i, n in links(program, "all_reduce") if "gradients of rank" in i.name]
    assert [1, 1] == [n for _, n in found]
    held = sum(t.bytes for r in program.resident for t in r.tensors if t.name == "gradient buffers")
    assert held == sum(i.message for i, _ in found)


def test_buckets_cut_the_last_backward_and_cover_all_gradients() -> None:
    program = lowered(workload(), 2, data_parallel=2, framework="pytorch_ddp", bucket_size=3e9)
    found = links(program, "all_reduce")
    buckets = [(i, n) for i, n in found if "gradients of" in i.name]
    assert 10 < sum(n for _, n in buckets) < 98
    held = sum(t.bytes for t in program.resident[0].tensors if t.name == "gradient buffers")
    head = program.items  # tied weights are reduced with the embedding and with the head
    assert sum(i.message * n for i, n in buckets) == pytest.approx(held, rel=0.01), head


def test_zero_stages_change_collectives_and_memory() -> None:
    def shape(stage: int) -> tuple[set[str], float]:
        program = lowered(workload(), 8, tensor_parallel=2, data_parallel=4, zero_stage=stage)
        return (
            {i.collective for i in program.items if isinstance(i, Link) and i.group == ("dp",)},
            sum(t.bytes for t in program.resident[0].tensors),
        )

    kinds, bytes_held = zip(*(shape(s) for s in range(4)), strict=True)
    assert ({"all_reduce"}, *[{"reduce_scatter", "all_gather"}] * 3) == kinds
    assert sorted(bytes_held, reverse=True) == list(bytes_held)
    assert bytes_held[3] < bytes_held[2] < bytes_held[1] < bytes_held[0]


def test_a_framework_may_sum_all_gradients_in_fp32_though_each_rank_uses_its_shard() -> None:
    def reduced(framework: str) -> tuple[str, float]:
        program = lowered(workload(), 4, data_parallel=4, zero_stage=1, framework=framework)
        found = [
            i
            for kind in ("all_reduce", "reduce_scatter")
            for i, _ in links(program, kind)
            if "gradients of rank" in i.name
        ]
        return found[0].collective, found[0].message

    (scattered, narrow), (summed, wide) = reduced("megatron_deepspeed"), reduced("scaling")
    assert ("reduce_scatter", "all_reduce", 2.0) == (scattered, summed, pytest.approx(wide / narrow, rel=0.01))


def test_owners_of_whole_tensors_broadcast_what_they_updated() -> None:
    """One broadcast per rank that owns something: no more than there are tensors, and as much in all as a gather brings."""

    def sent(kind: str, framework: str, ranks: int) -> tuple[int, float]:
        model = load_model("llama3_8b")
        work = Workload(model=model, sequence_length=8192, global_batch_size=ranks)
        program = lowered(work, ranks, data_parallel=ranks, zero_stage=1, framework=framework)
        found = [(i, n) for i, n in links(program, kind) if "weights of rank" in i.name]
        return sum(n for _, n in found), sum(i.message * n for i, n in found)

    _, whole = sent("all_gather", "megatron_lm", 8)
    tensors = 32 * 7 + 3  # two norms, qkv, output, gate, up and down; the ends
    assert {8: 8, 512: tensors} == {ranks: sent("broadcast", "internevo", ranks)[0] for ranks in (8, 512)}
    assert pytest.approx(whole) == sent("broadcast", "internevo", 512)[1]
    assert sent("all_gather", "internevo", 8)[0] == 0


def test_zero_2_reduces_after_every_microbatch() -> None:
    one, two = (lowered(workload(), 2, data_parallel=2, zero_stage=z) for z in (1, 2))
    count = [sum(n for _, n in links(p, "reduce_scatter")) for p in (one, two)]
    assert 8 * count[0] == count[1]


def test_fsdp_gathers_each_layer_for_forward_and_backward() -> None:
    model = load_model("llama3_8b")
    work = Workload(model=model, sequence_length=8192, global_batch_size=8)
    program = lowered(work, 8, zero_stage=3, framework="torchtitan")
    counts = {i.name: n for i, n in links(program, "all_gather")}
    assert {"all_gather weights of embedding + head": 1, "all_gather weights of layer": 64} == counts
    kept = lowered(work, 8, zero_stage=3, framework="torchtitan", reshard_after_forward=False)
    assert 33 == sum(n for _, n in links(kept, "all_gather"))


def test_fsdp_prefetch_waits_for_the_buffer_that_far_back() -> None:
    """gather(u) waits for the END of segment u - 1 - d (design: the rate limiter)."""
    work = Workload(model=load_model("llama3_8b"), sequence_length=8192, global_batch_size=8)
    for depth in (0, 1, 3):
        program = lowered(work, 8, zero_stage=3, framework="torchtitan", fsdp_prefetch=depth)
        gathers = [
            i
            for i in np.flatnonzero(program.kind == COLLECTIVE)
            if program.items[program.item[i]].name.startswith("all_gather")
        ]
        consumers = {}
        for row in np.flatnonzero(program.kind == COMPUTE):
            for on in program.after[program.after_offsets[row] : program.after_offsets[row + 1]]:
                consumers[int(on)] = int(row)
        fifth = gathers[5]
        waits = program.after[program.after_offsets[fifth] : program.after_offsets[fifth + 1]].tolist()
        assert [consumers[int(gathers[5 - 1 - depth])]] == waits


def test_chimera_holds_two_copies_and_adds_their_gradients() -> None:
    plain = lowered(workload("gpt2_64l", 16, 632), 4, pipeline_parallel=4, schedule="1f1b", framework="pytorch_ddp")
    both = lowered(workload("gpt2_64l", 16, 632), 4, pipeline_parallel=4, schedule="chimera", framework="pytorch_ddp")

    def weights(program: Program) -> float:
        return sum(t.bytes for r in program.resident for t in r.tensors if t.category == "weights")

    assert 2 * weights(plain) == weights(both)
    assert [(0, 3), (1, 2), (1, 2), (0, 3)] == [
        i.pipeline_ranks
        for i in sorted((i for i, _ in links(both, "all_reduce") if "chunk" in i.name), key=lambda i: i.name)
    ]


def test_tied_embeddings_on_two_ranks_are_added() -> None:
    tied = lowered(workload(), 2, pipeline_parallel=2)
    assert [(0, 1)] == [i.pipeline_ranks for i, _ in links(tied, "all_reduce") if "tied" in i.name]
    untied = lowered(workload("llama3_8b"), 2, pipeline_parallel=2)
    assert [] == [i for i, _ in links(untied, "all_reduce") if "tied" in i.name]


# --- memory --------------------------------------------------------------------------------------------------------


def test_activations_of_a_chunk_are_those_of_its_layers() -> None:
    program = lowered(workload(), 64, tensor_parallel=8, pipeline_parallel=8, framework="megatron_lm", recompute="none")
    start = program.start_effect[(program.rank == 3) & (program.action == 0)]
    held = float(program.effect_bytes[start[0]].sum())
    s, h = 2048, 12288
    assert held == pytest.approx(12 * s * h * (10 + 24 / 8 + 5 * 96 * s / (h * 8)), rel=1e-12)


def test_mixed_precision_states_are_eighteen_bytes_with_fp32_gradients() -> None:
    program = lowered(workload(), 1, framework="megatron_lm")
    states = sum(
        t.bytes for t in program.resident[0].tensors if t.category in ("weights", "gradients", "optimizer_states")
    )
    padded = (50304 - workload().model.vocabulary) * 12288 if workload().model.vocabulary < 50304 else 0
    assert states == pytest.approx(18 * (workload().model.parameters + padded), rel=1e-3)


def test_fp32_keeps_no_second_copy() -> None:
    program = lowered(workload("gpt2_124m", 8, 1024, "fp32"), 1, framework="pytorch_ddp")
    states = {t.category: t.bytes for t in program.resident[0].tensors}
    parameters = workload("gpt2_124m").model.parameters
    assert (4 * parameters, 4 * parameters, 8 * parameters) == (
        states["weights"],
        states["gradients"],
        states["optimizer_states"],
    )


def test_sharded_weights_of_every_slice_of_a_sequence_are_dropped() -> None:
    """A slice's head stays gathered until the backward of that very slice."""
    workload = Workload(model=load_model("gpt2_124m"), sequence_length=256, global_batch_size=16)
    plan = Plan(pipeline_parallel=2, zero_stage=3, schedule="seq1f1b", chunks_per_rank=2, data_parallel=2)
    verify(lower(workload, plan, 4))
