"""Low-rank adapters: what is frozen has no gradient, no states and no reduction; layouts, ZeRO and pipelines see small matrices more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simulator import Model, Plan, Prediction, Workload, load_cluster, load_model, simulate
from simulator.costs.tables import machine_of, price_table
from simulator.errors import PlanError
from simulator.goodput.checkpoints import checkpoint_bytes
from simulator.job import load_job
from simulator.program.program import COLLECTIVE, OperatorTable, Segment
from simulator.report.memory import CATEGORIES
from simulator.simulation import simulate_job

LAYERS, HIDDEN, KV, FFN = 32, 4096, 1024, 14336
"""Llama-3 8B."""
JOINED = 16 * LAYERS * ((2 * HIDDEN + 2 * KV) + 2 * HIDDEN + (HIDDEN + 2 * FFN) + (FFN + HIDDEN))
"""Weights of its adapters of rank 16 where queries, keys and values are one product, gate and up another (Megatron-LM)."""
BASE = 8_030_261_248


def adapted(name: str = "llama3_8b", rank: int = 16, **fields: Any) -> Model:
    model = load_model(name)
    return type(model).model_validate(model.model_dump() | {"lora_rank": rank} | fields)


def predict(model: Model, gpus: int = 8, length: int = 4096, precision: str = "bf16", **plan: Any) -> Prediction:
    work = Workload(model=model, sequence_length=length, global_batch_size=16, precision=precision)
    return simulate(work, Plan(**plan), load_cluster("dgx_h100", gpus))


def memory(prediction: Prediction) -> dict[str, float]:
    return dict(zip(CATEGORIES, prediction.memory.by_category[prediction.memory.fullest].tolist(), strict=True))


def tables(prediction: Prediction, phase: str) -> list[tuple[OperatorTable, int]]:
    """The operator tables that a rank runs in a phase of one microbatch's block."""
    items = {i for i in prediction.program.item.tolist()}
    some = [prediction.program.items[i] for i in sorted(items)]
    return [piece for s in some if isinstance(s, Segment) and s.phase == phase for piece in s.pieces]


def flops(prediction: Prediction, phase: str) -> float:
    return sum(
        times * float(table.flops[[work == "gemm" for work in table.work]].sum())
        for table, times in tables(prediction, phase)
    )


def messages(prediction: Prediction, *words: str) -> float:
    """Bytes of the collectives whose names have these words."""
    return float(
        sum(
            item.message
            for number in prediction.program.item.tolist()
            if hasattr(item := prediction.program.items[number], "message")
            and item.kind == COLLECTIVE
            and all(word in item.name for word in words)
        )
    )


@pytest.mark.parametrize(
    ("name", "fields", "trained"),
    [
        ("llama3_8b", {}, 41_943_040),  # PEFT: print_trainable_parameters, all linear layers
        ("llama3_8b", {"lora_modules": ("query", "value"), "rank": 8}, 3_407_872),
        ("llama2_7b", {"lora_modules": ("query", "value"), "rank": 8}, 4_194_304),
        ("llama2_7b", {"rank": 64}, 159_907_840),
    ],
)
def test_adapters_have_as_many_weights_as_peft_counts(name: str, fields: dict[str, Any], trained: int) -> None:
    model = adapted(name, **fields)
    assert trained == model.trained_parameters
    assert load_model(name).parameters + trained == model.parameters


def test_a_frozen_weight_has_an_output_and_an_input_gradient() -> None:
    """4 FLOP a token instead of 6; the adapters' own products are small."""
    full, low = (predict(m, microbatch_size=2, zero_stage=0) for m in (load_model("llama3_8b"), adapted(rank=1)))
    assert flops(low, "forward") == pytest.approx(flops(full, "forward"), rel=0.01)
    assert flops(low, "backward") == pytest.approx(flops(full, "backward") / 2.0, rel=0.01)
    weights = load_model("llama3_8b").parameters - HIDDEN * 128256  # all but the table of the look-up
    tokens = 4096 * 16
    saved = 2.0 * tokens * weights
    assert full.model_flops - low.model_flops == pytest.approx(saved, rel=0.01)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_gradients_and_states_are_those_of_the_adapters(stage: int) -> None:
    found = memory(predict(adapted(), microbatch_size=1, zero_stage=stage))
    shared = 8 if stage else 1
    assert found["weights"] == pytest.approx(2.0 * (BASE + JOINED), rel=0.001)
    assert found["optimizer_states"] == pytest.approx(12.0 * JOINED / shared, rel=0.001)
    assert found["gradients"] == pytest.approx(4.0 * JOINED / (8 if stage == 2 else 1), rel=0.001)


def test_replicas_add_the_gradients_of_the_adapters_alone() -> None:
    sent = messages(predict(adapted(), microbatch_size=2, zero_stage=0), "gradients of")
    assert sent == pytest.approx(4.0 * JOINED, rel=0.001)


def test_sharded_weights_are_gathered_whole_and_reduced_where_they_are_trained() -> None:
    found = predict(adapted(), microbatch_size=2, zero_stage=3)
    layers = BASE - 2 * HIDDEN * 128256
    assert messages(found, "all_gather", "weights", "layer") >= 2.0 * layers
    assert messages(found, "reduce_scatter") == pytest.approx(4.0 * JOINED, rel=0.001)
    assert memory(found)["weights"] == pytest.approx(2.0 * (BASE + JOINED) / 8, rel=0.001)


def test_four_bits_take_a_quarter_of_the_layers_and_are_widened_before_each_product() -> None:
    wide, narrow = (predict(adapted(frozen_format=f), microbatch_size=2, zero_stage=0) for f in ("", "nf4"))
    layers = load_model("llama3_8b").parameters - 2 * HIDDEN * 128256
    saved = memory(wide)["weights"] - memory(narrow)["weights"]
    assert saved == pytest.approx((2.0 - (0.5 + (1 + 4 / 256) / 64)) * layers, rel=0.001)
    assert narrow.step_time > wide.step_time
    for phase in ("forward", "backward"):
        widened = [
            times * float(table.written[j])
            for table, times in tables(narrow, phase)
            for j, label in enumerate(table.label)
            if label.endswith("widened")
        ]
        matrices = 2 * HIDDEN * (HIDDEN + KV) + 3 * HIDDEN * FFN
        assert sum(widened) == pytest.approx(2.0 * LAYERS * matrices, rel=0.001)


def test_inputs_of_frozen_products_are_kept_for_adapters_alone() -> None:
    every, some = (
        memory(predict(adapted(lora_modules=m), microbatch_size=1, zero_stage=0))
        for m in (("query", "key", "value", "output", "gate", "up", "down"), ("query", "value"))
    )
    tokens = 4096
    less = every["activations"] - some["activations"]
    # inputs of the projection, of gate and up, and of down
    assert less == pytest.approx(2.0 * LAYERS * tokens * (HIDDEN + HIDDEN + FFN), rel=0.01)
    dropped = memory(predict(adapted(lora_dropout=True), microbatch_size=1, zero_stage=0))
    assert dropped["activations"] > every["activations"]


@pytest.mark.parametrize("recompute", ["none", "operators"])
def test_a_product_whose_output_is_kept_may_have_an_adapter(recompute: str) -> None:
    found, frozen = (
        memory(predict(adapted(lora_modules=m), framework="torchtitan_eager", zero_stage=3, recompute=recompute))
        for m in (("query", "down"), ("query",))
    )
    assert found["activations"] > frozen["activations"]


def test_ranks_that_split_a_layer_send_what_is_as_wide_as_the_rank() -> None:
    plan = {"microbatch_size": 2, "tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 0}
    table = next(t for t, _ in tables(predict(adapted(), **plan), "forward") if t.name.startswith("layer"))
    sent = {label: float(size) for label, size in zip(table.label, table.message, strict=True) if size}
    low = {label: size for label, size in sent.items() if "adapter" in label}
    crossed = {label for label in low if "all_to_all" in label}
    assert {"projection output, adapter all_to_all", "mlp down output, adapter all_to_all"} == crossed
    assert {low[label] for label in crossed} == {2.0 * 2 * 4096 * HIDDEN / 2}
    assert {low[label] for label in set(low) - crossed} == {2.0 * 2 * 4096 * 16}
    whole = predict(load_model("llama3_8b"), **plan)
    usual = next(t for t, _ in tables(whole, "forward") if t.name.startswith("layer"))
    assert sum(sent.values()) - sum(low.values()) == float(usual.message.sum())


def test_eight_bits_take_half_of_the_layers_and_are_read_as_they_stand() -> None:
    """MLPerf's Llama 2 70B on B200 (fp8_params): 65 GiB less than in bf16, of 68.5 billion weights in layers."""
    plan = {"precision": "fp8", "microbatch_size": 2, "zero_stage": 1}
    wide, narrow = (predict(adapted(frozen_format=f), **plan) for f in ("", "fp8"))
    layers = load_model("llama3_8b").parameters - 2 * HIDDEN * 128256
    assert memory(wide)["weights"] - memory(narrow)["weights"] == pytest.approx(layers, rel=0.001)
    assert memory(wide)["activations"] == memory(narrow)["activations"]
    assert not [
        label
        for phase in ("forward", "backward")
        for table, _ in tables(narrow, phase)
        for label in table.label
        if label.endswith("widened")
    ]


@pytest.mark.parametrize(
    ("precision", "stage", "what"), [("bf16", 1, "precision = 'bf16'"), ("fp8", 3, "zero_stage = 3")]
)
def test_eight_bits_need_products_that_read_them_and_whole_weights(precision: str, stage: int, what: str) -> None:
    with pytest.raises(PlanError, match=what):
        predict(adapted(frozen_format="fp8"), precision=precision, microbatch_size=2, zero_stage=stage)


@pytest.mark.parametrize(
    "plan",
    [
        {"pipeline_parallel": 2, "microbatch_size": 1},
        {"pipeline_parallel": 2, "schedule": "zb_h1", "microbatch_size": 1},
        {"zero_stage": 3, "framework": "torchtitan", "recompute": "full"},
        {"zero_stage": 3, "framework": "deepspeed", "optimizer_offload": 1.0},
        {"zero_stage": 2, "framework": "hugging_face_deepspeed", "recompute": "full"},
        {"zero_stage": 3, "framework": "hugging_face_fsdp", "recompute": "full"},
        {"context_parallel": 2, "microbatch_size": 1},
        {"tensor_parallel": 4, "pipeline_parallel": 2, "sequence_parallel": True, "zero_stage": 0},
    ],
)
@pytest.mark.parametrize("fields", [{}, {"frozen_format": "nf4"}])
def test_every_plan_takes_them_and_no_bound_lies_above(plan: dict[str, Any], fields: dict[str, Any]) -> None:
    low, full = adapted("llama3_2_1b", **fields), load_model("llama3_2_1b")
    found, usual = (predict(m, **({"microbatch_size": 1} | plan)) for m in (low, full))
    assert memory(found)["optimizer_states"] <= memory(usual)["optimizer_states"] / 20
    assert found.memory.total.max() < usual.memory.total.max()
    assert np.isfinite(found.step_time)


@pytest.mark.parametrize("fields", [{}, {"frozen_format": "nf4"}])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_layer_with_more_of_them_than_a_bucket_holds_sends_them_in_parts(stage: int, fields: dict[str, Any]) -> None:
    plan = {"microbatch_size": 2, "zero_stage": stage, "overlap_parameters": True if stage else None}
    whole, cut = (predict(adapted(**fields), **plan, overlap_gradients=True, bucket_size=b) for b in ("1 GB", "1 MB"))
    assert messages(cut, "gradients", "parts of layers") > 0
    assert messages(cut, "gradients of") == pytest.approx(messages(whole, "gradients of"))
    assert messages(cut, "gradients of") == pytest.approx(4.0 * JOINED, rel=0.001)
    assert messages(cut, "weights of") == messages(whole, "weights of")
    assert memory(cut)["optimizer_states"] == memory(whole)["optimizer_states"]


def test_experts_have_adapters_each() -> None:
    model, plain = adapted("mixtral_8x7b"), load_model("mixtral_8x7b")
    per_expert = 16 * 3 * (plain.hidden + plain.expert_ffn)
    attention = 16 * (2 * (plain.hidden + 4096) + 2 * (plain.hidden + 1024))
    assert model.trained_parameters == 32 * (8 * per_expert + attention)
    found = memory(predict(model, expert_parallel=8, microbatch_size=1, zero_stage=1))
    joined = 32 * 16 * ((plain.hidden + 4096 + 2 * 1024) + 2 * plain.hidden)
    experts = 32 * 16 * ((plain.hidden + 2 * plain.expert_ffn) + plain.expert_ffn + plain.hidden)
    states = 12.0 * (experts + joined / 8)
    assert found["optimizer_states"] == pytest.approx(states, rel=0.01)


def test_a_checkpoint_holds_the_adapters() -> None:
    job = load_job("llama3_8b_fsdp_8xh100", ("model.lora_rank=16",))
    size = checkpoint_bytes(job, simulate_job(job))
    assert size == pytest.approx(14.0 * 41_943_040, rel=0.001)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ValidationError, match="frozen_format belongs to adapters, but lora_rank = 0"):
        adapted(rank=0, frozen_format="nf4")
    with pytest.raises(ValidationError, match="lora_modules names a module twice"):
        adapted(lora_modules=("query", "query"))
    with pytest.raises(PlanError, match="frozen weights stay on the GPU, but parameter_offload = 1"):
        predict(adapted(), zero_stage=3, parameter_offload=1.0, microbatch_size=1)


def _moved(prediction: Prediction) -> dict[str, tuple[float, float]]:
    """Label -> (message, written) of a layer's forward."""
    table = next(t for t, _ in tables(prediction, "forward") if t.name.startswith("layer"))
    return dict(zip(table.label, zip(table.message.tolist(), table.written.tolist(), strict=True), strict=True))


def test_what_an_adapter_reads_is_gathered_wide_and_before_the_product() -> None:
    """Transformer Engine's LayerNormLinear returns its norm's output to the adapter: neither is it written in 8 bits nor its gather
    overlapped then (with_quantized_norm, ub_overlap_ag_fprop)."""
    plan = {"precision": "fp8", "tensor_parallel": 2, "sequence_parallel": True, "tensor_parallel_splits": 4}
    some, none = (
        _moved(predict(adapted(lora_modules=m), microbatch_size=1, zero_stage=1, **plan))
        for m in (("query", "key", "value"), ("output",))
    )
    tokens = 4096
    assert some["qkv all_gather"][0] == 2.0 * tokens * HIDDEN
    assert some["qkv cast to fp8"][1] == tokens * HIDDEN
    assert "qkv cast to fp8" not in none
    assert sum(none[f"qkv piece {i} all_gather"][0] for i in range(4)) == tokens * HIDDEN
    assert "mlp up piece 0 all_gather" in some


def test_operands_of_frozen_products_have_no_copy_for_the_gradient_of_a_weight() -> None:
    """NVIDIA/TransformerEngine pytorch/module/linear.py: set_usage(columnwise=backward_needs_input)."""
    plan = {"precision": "fp8", "microbatch_size": 1, "zero_stage": 1}
    frozen, trained = _moved(predict(adapted(), **plan)), _moved(predict(load_model("llama3_8b"), **plan))
    assert "mlp down transposed" in trained
    assert not [label for label in frozen if label.endswith("transposed")]


def test_an_adapter_behind_a_gather_drops_and_multiplies_the_tokens_of_all_ranks() -> None:
    """NVIDIA/NeMo parallel_adapters.py, ParallelLinearAdapter under return_layernorm_output_gathered; else its own part."""
    plan = {"tensor_parallel": 2, "sequence_parallel": True, "microbatch_size": 1, "zero_stage": 1}
    fields = {"lora_modules": ("query", "key", "value", "output"), "lora_dropout": True}
    some = predict(adapted(**fields), **plan)
    moved, tokens = _moved(some), 4096
    assert moved["qkv adapter of q dropout"][1] == (2 + 1) * tokens * HIDDEN
    assert moved["projection adapter of projection output dropout"][1] == (2 + 1) * tokens * HIDDEN / 2
    table = next(t for t, _ in tables(some, "forward") if t.name.startswith("layer"))
    shapes = dict(zip(table.label, map(tuple, table.shape.tolist()), strict=True))
    assert shapes["qkv adapter of q A"] == (1, tokens, 16, HIDDEN)
    assert shapes["projection adapter of projection output A"] == (1, tokens, 16, HIDDEN // 2)
    plain = predict(adapted(lora_modules=fields["lora_modules"]), **plan)
    masks = memory(some)["activations"] - memory(plain)["activations"]
    assert masks == pytest.approx(LAYERS * tokens * HIDDEN * (1 + 1 / 2), rel=0.02)


def test_ranks_without_sequence_parallelism_gather_the_columns_of_an_adapter() -> None:
    plan = {"tensor_parallel": 2, "sequence_parallel": False, "microbatch_size": 1, "zero_stage": 1}
    moved = _moved(predict(adapted(lora_modules=("output",)), **plan))
    assert moved["projection output, adapter all_gather"][0] == 2.0 * 4096 * HIDDEN


def test_weights_in_8_bits_are_transposed_in_every_backward_pass_where_products_take_one_layout() -> None:
    """NVIDIA/TransformerEngine 1.11 pytorch/module/linear.py: weight_fp8.transpose_2d(), of which no cache is kept."""
    plan = {"precision": "fp8", "microbatch_size": 1, "zero_stage": 1}
    wide, narrow = (predict(adapted(frozen_format=f), **plan) for f in ("", "fp8"))
    found = {
        label: float(size)
        for table, _ in tables(narrow, "backward")
        for label, size in zip(table.label, table.written, strict=True)
        if label.endswith("weight transposed")
    }
    assert sum(found.values()) == 2 * HIDDEN * (HIDDEN + KV) + 3 * HIDDEN * FFN
    assert not [label for t, _ in tables(wide, "backward") for label in t.label if label.endswith("transposed")]
    work = Workload(model=adapted(frozen_format="fp8"), sequence_length=4096, global_batch_size=16, precision="fp8")
    b200 = simulate(work, Plan(microbatch_size=1, zero_stage=1), load_cluster("hgx_b200", 8))
    axes = b200.program.mesh_of(0)
    for table, _ in tables(b200, "backward"):
        priced = price_table(table, machine_of(b200.cluster), axes).rows.tolist()
        assert not sum(t for label, t in zip(table.label, priced, strict=True) if label.endswith("transposed"))
