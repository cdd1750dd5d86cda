"""Kinds of layers beyond the plain decoder: windows, prediction of further tokens, encoders, two stacks, relative positions."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from simulator.costs.attention import attention_seconds
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.compute_coefficients import load_attention_coefficients
from simulator.hardware.gpu import load_gpu
from simulator.job import job_from_names
from simulator.lowering import lower
from simulator.lowering.layers import contexts, expand
from simulator.lowering.layers.expand import layer_costs, layer_kinds
from simulator.lowering.layers.scores import scores_left
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.lowering.steps.assign import assign_layers
from simulator.plan.plan import Plan
from simulator.program.program import OperatorTable, Segment
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.specs import find_spec, names
from simulator.workload.layer_case import LayerCase
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload


def small(name: str, **changes: Any) -> Model:
    return load_model(name).model_copy(update={"vocabulary": 32000, **changes})


def run(model: Model, length: int = 2048, gpus: int = 8, batch: int = 16, **plan: Any) -> Prediction:
    cluster = load_cluster("dgx_h100", gpus)
    workload = Workload(model=model, sequence_length=length, global_batch_size=batch)
    return simulate(workload, Plan(**plan), cluster)


@pytest.mark.parametrize("name", names("models"))
def test_the_operators_own_exactly_the_parameters_that_are_counted(name: str) -> None:
    model = load_model(name)
    length = model.sequence_length if model.network else min(model.sequence_length, 256)
    workload = Workload(model=model, sequence_length=length, global_batch_size=1)
    resolved = replace(resolve(workload, Plan(), 1), vocabulary=model.vocabulary)
    costs = layer_costs(workload, resolved)
    total = costs["embedding"].parameters + costs["head"].parameters
    total += sum(n * costs[kind].parameters for kind, n in Counter(model.layer_kinds).items())
    table = model.vocabulary * model.hidden
    total -= table if model.tied_embeddings else 0
    if model.encoder_layers:
        total += costs["decoder embedding"].parameters - table
    assert model.parameters == total
    if model.mtp_layers:
        extra = costs["mtp layer"].parameters + costs["mtp head"].parameters - 2 * table
        assert model.mtp_parameters == model.mtp_layers * extra


def test_a_pattern_of_windows_is_repeated_over_the_layers() -> None:
    kinds = load_model("gemma3_27b").layer_kinds
    assert 62 == len(kinds)
    assert (["window layer"] * 5 + ["layer"]) * 2 == list(kinds[:12])
    assert {"window layer"} == set(load_model("mistral_7b").layer_kinds)


def test_a_window_without_layers_that_have_one_is_refused() -> None:
    held = load_model("llama3_8b").model_dump(exclude={"parameters_published"})
    with pytest.raises(ValueError, match="give both or neither"):
        Model(**{**held, "window": 128, "mixers": ("full",)})
    with pytest.raises(ValueError, match="give both or neither"):
        Model(**{**held, "mixers": ("window",)})


@pytest.mark.parametrize(
    ("window", "chunked"), [(1, False), (3, False), (7, True), (16, True), (40, False), (0, False)]
)
def test_scores_left_are_those_that_masks_leave(window: int, chunked: bool) -> None:
    """Counted one by one on a fine grid: each token cut in 50."""
    keys, fine = 40, 50
    place = (np.arange(keys * fine) + 0.5) / fine
    back = place[:, None] - place[None, :]
    mask = back > 0
    if window:
        mask &= (place[:, None] // window == place[None, :] // window) if chunked else back < window
    assert scores_left(keys, window, chunked) == pytest.approx(mask.sum() / fine**2, rel=0.02)


def seconds(window: int, direction: str = "forward", length: int = 32768, **more: Any) -> float:
    gpu = load_gpu("h100_80gb_sxm")
    numbers = load_attention_coefficients(gpu)
    shape = (1, 32, 8, length, length, 128)
    value = attention_seconds(*shape, True, direction, "flash2", "bf16", gpu, numbers, window=window, **more)
    return float(value)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_attention_costs_by_its_window(direction: str) -> None:
    whole = seconds(0, direction)
    assert whole == seconds(32768, direction) == seconds(10**6, direction)
    times = [seconds(w, direction) for w in (512, 2048, 8192, 16384)]
    assert times == sorted(times)
    assert times[-1] < whole
    share = scores_left(32768, 2048, False) / scores_left(32768, 0, False)
    assert share < times[1] / whole < 1.4 * share


def test_chunks_cost_half_of_a_window_of_their_size() -> None:
    assert 0.4 < seconds(8192, chunked=True) / seconds(8192) < 0.65
    assert seconds(0) == seconds(32768, chunked=True)


def test_a_kernel_without_windows_computes_all_scores() -> None:
    def attention(kernel: str) -> float:
        return run(small("mistral_7b"), 32768, zero_stage=3, attention=kernel, recompute="full").step_time

    narrow = small("mistral_7b")
    wide = narrow.model_copy(update={"window": 0})
    plan = {"zero_stage": 3, "recompute": "full"}
    assert attention("flash1") == run(wide, 32768, attention="flash1", **plan).step_time
    assert attention("flash2") < run(wide, 32768, attention="flash2", **plan).step_time


@pytest.mark.parametrize("kind", ["ring", "all_gather", "ulysses"])
def test_windows_save_time_under_context_parallelism(kind: str) -> None:
    narrow = small("mistral_7b")
    plan = {"zero_stage": 3, "context_parallel": 4, "context_parallel_kind": kind, "recompute": "full"}
    times = [run(narrow.model_copy(update={"window": w}), 65536, **plan).step_time for w in (4096, 16384, 0)]
    assert times == sorted(times)
    assert times[0] < 0.7 * times[2]


def test_model_flops_count_windows_as_full_attention() -> None:
    narrow = small("mistral_7b")
    wide = narrow.model_copy(update={"window": 0})
    assert run(narrow).mfu * run(narrow).step_time == pytest.approx(run(wide).mfu * run(wide).step_time)


MTP = {"layers": 4, "experts": 8, "experts_per_token": 2, "dense_layers": 1}


def test_token_prediction_adds_a_layer_and_a_head_on_the_last_rank() -> None:
    model = small("deepseek_v3", **MTP)
    plain = model.model_copy(update={"mtp_layers": 0})
    costs = layer_costs(w := Workload(model=model, sequence_length=1024, global_batch_size=4), resolve(w, Plan(), 1))
    assert ("embedding", "layer", "moe layer", "head", "mtp layer", "mtp head") == layer_kinds(model) == tuple(costs)
    assert [4, 0] == [c.layers for c in assign_layers(4, 2, None, model.layer_kinds, 1)]
    chunks = assign_layers(4, 2, (2, 2), model.layer_kinds, 1)
    assert [("embedding", "layer", "moe layer"), ("moe layer", "moe layer", "head", "mtp layer", "mtp head")] == [
        c.kinds for c in chunks
    ]
    with_it, without = (run(m, 1024, 2, 8, pipeline_parallel=2, layer_split=(2, 2)) for m in (model, plain))
    assert with_it.step_time > 1.15 * without.step_time
    first, last = (sum(with_it.memory.by_category[r]) - sum(without.memory.by_category[r]) for r in (0, 1))
    assert first == 0 < last


def test_token_prediction_shares_the_embedding_across_the_pipeline() -> None:
    model = small("deepseek_v3", **MTP)
    workload = Workload(model=model, sequence_length=1024, global_batch_size=8)

    def shared(plan: Plan, world: int) -> list[str]:
        return [i.name for i in lower(workload, plan, world).items if "embedding gradients" in i.name]

    assert ["all_reduce shared embedding gradients"] == shared(Plan(pipeline_parallel=2), 2)
    assert [] == shared(Plan(), 1)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("bert_large", {"tensor_parallel": 2, "sequence_parallel": True}),
        ("bert_large", {"pipeline_parallel": 4, "context_parallel": 2}),
        ("vit_l_16", {"pipeline_parallel": 2, "tensor_parallel": 2, "attention": "unfused"}),
        ("t5_large", {"pipeline_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}),
        ("t5_large", {"zero_stage": 3, "recompute": "full"}),
        ("t5_base", {"attention": "unfused", "recompute": "selective"}),
        ("gopher_280b", {"tensor_parallel": 8, "recompute": "full"}),
        ("switch_c_2048", {"expert_parallel": 8}),
        ("glam_64b_64e", {"expert_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}),
        ("gpt_oss_20b", {"pipeline_parallel": 2, "chunks_per_rank": 3, "expert_parallel": 4}),
        ("gemma2_9b", {"pipeline_parallel": 2, "schedule": "zb_h1"}),
        ("nemotron_h_8b", {"tensor_parallel": 4, "sequence_parallel": True, "pipeline_parallel": 2}),
        ("nemotron_h_8b", {"zero_stage": 3, "recompute": "operators"}),
        ("qwen3_next_80b_a3b", {"expert_parallel": 8, "recompute": "full", "pipeline_parallel": 1}),
        ("mamba2_2_7b", {"pipeline_parallel": 4, "recompute": "selective"}),
        ("glm4_5_air", {"pipeline_parallel": 2, "expert_parallel": 4, "schedule": "zbv"}),
    ],
)
def test_every_family_runs_through_every_split(name: str, plan: dict[str, Any]) -> None:
    model = load_model(name)
    length = min(model.sequence_length, 1024)
    if plan.get("schedule") == "zbv":
        plan = {**plan, "chunks_per_rank": 2}
    predicted = run(model, length, 8, 16, **plan)
    assert predicted.step_time == pytest.approx(sum(predicted.breakdown.values()))
    assert 0 < predicted.mfu < 1


def test_a_decoder_works_on_its_own_length() -> None:
    def time(source: int, target: int) -> float:
        workload = Workload(
            model=load_model("t5_large"), sequence_length=source, global_batch_size=64, target_length=target
        )
        return simulate(workload, Plan(microbatch_size=8), load_cluster("dgx_h100", 8)).step_time

    assert time(512, 128) < time(512, 512) < time(1024, 512)
    workload = Workload(model=load_model("t5_large"), sequence_length=512, global_batch_size=64)
    assert (128, 64 * 640) == (workload.decoder_length, workload.tokens)


def test_lengths_and_slices_that_a_model_has_not_are_refused() -> None:
    job = job_from_names("llama3_8b", "dgx_h100", ["workload.target_length=128"])
    with pytest.raises(PlanError, match="one stack"):
        simulate(job.workload, job.plan, job.cluster)
    with pytest.raises(PlanError, match="cuts sequences in slices"):
        run(load_model("bert_large"), 512, 8, 8, pipeline_parallel=8, schedule="seq1f1b", chunks_per_rank=2)
    with pytest.raises(PlanError, match="one kind of sequence"):
        run(load_model("t5_large"), 512, 8, 8, context_parallel=2)


@pytest.mark.parametrize("name", ["t5_large", "vit_l_16", "gopher_280b", "mamba2_2_7b"])
def test_packed_documents_are_refused_where_no_attention_would_be_shorter(name: str) -> None:
    model = load_model(name)
    workload = Workload(model=model, sequence_length=192, global_batch_size=8, document_length=64.0)
    with pytest.raises(PlanError, match="packed documents shorten attention"):
        resolve(workload, Plan(), 8)


def test_full_attention_of_an_encoder_costs_more_than_a_causal_one() -> None:
    encoder = load_model("bert_large").model_copy(update={"sequence_length": 8192, "vocabulary": 32000})
    causal = encoder.model_copy(
        update={"architecture": "transformer", "token_types": 0, "head_transform": False, "pooler": False}
    )
    assert run(encoder, 8192).step_time > run(causal, 8192).step_time


def test_a_head_that_sees_masked_tokens_alone_computes_15_per_cent() -> None:
    """NVIDIA/DeepLearningExamples: at most 20 of 128 tokens have a label."""
    work = Workload(model=load_model("bert_large"), sequence_length=128, global_batch_size=32)
    codes = ("nvidia_bert", "nvidia_bert_2022")
    made = [layer_costs(work, resolve(work, Plan(framework=code), 8)) for code in codes]
    for costs in ("forward", "backward"):
        whole, picked = ({kind: getattr(cost, costs).flops.sum() for kind, cost in one.items()} for one in made)
        assert picked["head"] / whole["head"] == pytest.approx(20 / 128, rel=0.02)
        assert {**picked, "head": 0.0} == pytest.approx({**whole, "head": 0.0})


def test_capacity_pads_the_rows_of_experts_and_leaves_no_imbalance() -> None:
    model = small("mixtral_8x7b", layers=4)
    padded = model.model_copy(update={"capacity_factor": 1.5})
    assert run(padded, expert_parallel=8).step_time > 1.1 * run(model, expert_parallel=8).step_time
    with pytest.raises(PlanError, match="fills or drops"):
        run(padded, expert_parallel=8, expert_imbalance=1.2)


@pytest.mark.parametrize("name", ["mamba2_2_7b", "qwen3_next_80b_a3b"])
def test_layers_that_carry_a_state_take_time_in_proportion_to_the_sequence(name: str) -> None:
    """Per token, attention's time grows with the sequence and a state's does not."""
    model = small(name, layers=4, experts=0, experts_per_token=0, expert_ffn=0, shared_expert_ffn=0, mtp_layers=0)
    model = model.model_copy(update={"mixers": (model.layer_mixers[0],)})
    attends = model.model_copy(update={"mixers": ("full",)})

    def growth(m: Model) -> float:
        short, long = (run(m, n, zero_stage=3, recompute="full").step_time / n for n in (8192, 65536))
        return long / short

    assert growth(model) < 1.05
    assert growth(attends) > 1.5


def test_ranks_that_share_a_sequence_have_all_tokens_of_some_heads_where_a_state_is_carried() -> None:
    """Five exchanges before the convolution and one behind the scan, each way: Megatron-Core's mamba_context_parallel.py."""
    model = load_model("nemotron_h_8b")
    work = Workload(model=model, sequence_length=8192, global_batch_size=8)
    program = lower(work, Plan(context_parallel=2, recompute="none"), 8)
    tables = [t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if "convolution" in t.label]
    for table in (next(t for t in tables if t.name.endswith(way)) for way in ("forward", "backward")):
        sent = [table.message[i] for i, label in enumerate(table.label) if "swapped all_to_all" in label]
        inner, keys = 128 * 64, 8 * 128
        widths = [inner, inner, keys, keys, 128, inner]
        assert sorted(2.0 * 4096 * width for width in widths) == pytest.approx(sorted(sent))
    whole = run(model, length=8192, recompute="full")
    shared = run(model, length=8192, context_parallel=2, recompute="full")
    assert shared.breakdown["cp"] > 0
    assert shared.peak_memory < whole.peak_memory


def test_what_a_state_does_not_allow_is_refused() -> None:
    with pytest.raises(PlanError, match=r"carry a state .* Nearest: context_parallel = 8"):
        run(load_model("nemotron_h_8b"), length=2304, context_parallel=24, gpus=24, batch=24)
    with pytest.raises(PlanError, match="ssm_groups"):
        run(load_model("mamba2_2_7b"), tensor_parallel=2)
    with pytest.raises(ValueError, match="give all or none"):
        Model(**{**load_model("nemotron_h_8b").model_dump(exclude={"parameters_published"}), "ssm_state": 0})


def test_a_token_that_may_use_fewer_groups_of_experts_crosses_fewer_nodes() -> None:
    free = small("deepseek_v3", layers=4, mtp_layers=0, dense_layers=1, expert_groups=0, groups_per_token=0)
    bound = free.model_copy(update={"expert_groups": 8, "groups_per_token": 2})
    plan = {"expert_parallel": 64, "gpus": 64, "batch": 64, "recompute": "full"}
    several, once = ({**plan, "expert_exchange": kind} for kind in ("all_to_all", "once_per_node"))
    assert run(bound, **once).breakdown["ep"] < 0.8 * run(free, **once).breakdown["ep"]
    assert run(bound, **several).step_time == run(free, **several).step_time
    with pytest.raises(ValueError, match="give both or neither"):
        Model(**{**free.model_dump(exclude={"parameters_published"}), "expert_groups": 8})


def test_a_name_without_a_published_shape_says_so() -> None:
    for name in ("wudao_2_0", "Wudao-2.0", "AmoebaNet-D"):
        with pytest.raises(SpecError, match="known by name only"):
            find_spec("models", name)


def columns(made: OperatorTable) -> list[Any]:
    found = [getattr(made, field.name) for field in fields(made)]
    return [column.tolist() if isinstance(column, np.ndarray) else column for column in found]


@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v3"])
@pytest.mark.parametrize(
    "plan", [{"expert_parallel": 4}, {"tensor_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 1}]
)
def test_layers_without_experts_are_those_of_a_plan_that_deals_none_out(name: str, plan: dict[str, Any]) -> None:
    model = load_model(name)
    work = Workload(model=model, sequence_length=512, global_batch_size=16)
    resolved = resolve(work, Plan(**{"sequence_parallel": "tensor_parallel" in plan, **plan}), 8)
    found, around = layer_costs(work, resolved), contexts._context(resolved, work, 1, 512)
    for kind, cost in found.items():
        case = LayerCase(
            model=model,
            kind=kind,
            sequences=1,
            length=512,
            precision=around.precision,
            style=around.style,
            vocabulary=resolved.vocabulary,
        )
        policy = expand._policy(kind, "", resolved.recomputes)
        with_experts = expand._layer_cost(around, case, policy, "", resolved.experts_apart, resolved.cuda_graphs, False)
        for table in ("forward", "backward"):
            assert columns(getattr(cost, table)) == columns(getattr(with_experts, table)), (kind, table)
        for figure in (
            "saved",
            "forward_mark",
            "backward_mark",
            "parameters",
            "summed",
            "input_bytes",
            "expert_parameters",
            "tensors",
        ):
            assert getattr(cost, figure) == getattr(with_experts, figure), (kind, figure)
