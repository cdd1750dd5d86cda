"""What frameworks keep in memory: every habit of a profile changes it, and published peaks come out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.accuracy.attempt import attempt
from simulator.accuracy.memory import memory_outcomes
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, Program, Segment
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.profiles import profile

FSDP = {"model": "llama3_8b", "plan": {"zero_stage": 3, "data_parallel": 8}, "batch": 8}
PIPELINE = {"model": "llama3_8b", "plan": {"pipeline_parallel": 4, "data_parallel": 2}, "batch": 16}
SHARDED = {"model": "llama3_8b", "plan": {"zero_stage": 1, "data_parallel": 8, "gradient_dtype": "bf16"}, "batch": 8}
TENSOR = {"model": "llama3_8b", "plan": {"tensor_parallel": 4, "sequence_parallel": True}, "batch": 2}
HABITS: dict[str, dict[str, Any]] = {
    "copies_attention_output": {**TENSOR, "plan": {**TENSOR["plan"], "attention": "flash2"}},
    "gathers_logits": TENSOR,
    "gathers_rotary": TENSOR,
    "keeps_gathered_inputs": TENSOR,
    "makes_gradients": {**TENSOR, "plan": {**TENSOR["plan"], "microbatch_size": 2}, "length": 8192},
    "divides_checkpoints": {"model": "llama3_8b", "plan": {"tensor_parallel": 4, "recompute": "full"}, "batch": 2},
    "keeps_idle_products": {**TENSOR, "plan": {"recompute": "operators"}},
    "copies_gathered": FSDP,
    "fsdp_root_unit": FSDP,
    "keeps_outputs": PIPELINE,
    "receives_ahead": PIPELINE,
    "returns_outputs": PIPELINE,
    "split_keeps_graph": {**PIPELINE, "plan": {**PIPELINE["plan"], "schedule": "zb_interleaved", "chunks_per_rank": 2}},
    "pipeline_keeps_unsharded": {**PIPELINE, "plan": {**PIPELINE["plan"], "zero_stage": 3}},
    "keeps_compute_gradients": {**SHARDED, "plan": {**SHARDED["plan"], "gradient_dtype": "fp32"}},
    "flattens_gradients": SHARDED,
    "holds_buckets": {**SHARDED, "plan": {**SHARDED["plan"], "zero_stage": 2}},
    "updates_in_lists": FSDP,
    "keeps_buckets": {"model": "llama3_2_1b", "plan": {"data_parallel": 8}, "batch": 8},
    "drops_gradients": FSDP,
    "states_break_places": FSDP,
    "widens_fused_loss": {**TENSOR, "plan": {**TENSOR["plan"], "fused_cross_entropy": True}},
    "weights_in_experts": {"model": "mixtral_8x7b", "plan": {"data_parallel": 8, "expert_parallel": 8}, "batch": 8},
}


def effects(program: Program) -> list[tuple[str, str, float]]:
    """Everything that a row or rank holds, and how often a row allocates: name, category, bytes."""
    held = [t for e in (*program.effects, *program.resident) for t in e.tensors]
    held += [t for i in program.start_effect if i >= 0 for t in program.effects[i].tensors]
    return sorted((t.name, t.category, t.bytes) for t in held)


def lowered(case: dict[str, Any], framework: str) -> Program:
    work = Workload(
        model=load_model(case["model"]), sequence_length=case.get("length", 2048), global_batch_size=case["batch"]
    )
    return lower(work, Plan(**{"framework": framework, **case["plan"]}))


@pytest.mark.parametrize("habit", HABITS)
def test_every_memory_habit_of_a_profile_changes_what_stands(
    habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    off, on = (profile(tmp_path, f"{word}_{habit}", **{habit: word}) for word in ("false", "true"))
    without, having = lowered(HABITS[habit], off), lowered(HABITS[habit], on)
    assert effects(without) != effects(having)


def standing(program: Program, rank: int = 0) -> dict[str, float]:
    return {t.name: t.bytes for t in program.resident[rank].tensors}


@pytest.mark.parametrize(
    ("plan", "read", "written"),
    [
        ({"zero_stage": 1, "data_parallel": 4}, 2 + 4 / 4, 2 + 6 / 4),
        ({"data_parallel": 4}, 4 + 6, 4 + 8),
        ({}, 2 * 2, 2 + 4),
        ({"data_parallel": 4, "gradient_dtype": "fp32"}, 8, 8),
    ],
)
def test_flat_copies_of_gradients_take_the_time_of_their_bytes(
    plan: dict[str, Any], read: float, written: float
) -> None:
    """A bucket in (and out, but where ZeRO-1 reduces to owners), then flattened and cast to fp32, or the other way round."""
    program = lowered({"model": "gpt3_1_3b", "plan": plan, "batch": 4}, "megatron_deepspeed")
    (segment,) = [i for i in program.items if isinstance(i, Segment) and i.name == "optimizer"]
    (table,) = [t for t, _ in segment.pieces if t.name == "optimizer"]
    row = table.label.index("flatten gradients")
    weights = standing(program)["weights"] / 2
    assert (table.read[row] / weights, table.written[row] / weights) == pytest.approx((read, written), rel=0.01)


def test_deepspeed_reduces_through_a_bucket_and_joins_gradients_when_it_updates() -> None:
    """ZeRO-1 of four: 2 + 4 bytes per parameter of the shard come as the other shards' 6 go; without ZeRO 4 + 4 bytes of every gradient."""
    case = {"model": "gpt3_13b", "plan": {"zero_stage": 1, "data_parallel": 4}, "batch": 4}
    sharded = lowered(case, "megatron_deepspeed")
    assert standing(sharded)["flat copies of gradients, place idle"] == pytest.approx(1e9)
    assert copies(sharded) == 0.0
    whole = lowered({**case, "plan": {"data_parallel": 4}}, "megatron_deepspeed")
    assert copies(whole) == pytest.approx(8 * standing(whole)["weights"] / 2)


def copies(program: Program) -> float:
    """Bytes of the flat copies that stand while a rank updates."""
    return sum(t.bytes for e in program.effects for t in e.tensors if t.name == "flat copies of gradients")


@pytest.mark.parametrize(("recompute", "stage", "weights"), [("none", 3, 6.476e9), ("full", 3, 0.0), ("none", 2, 0.0)])
def test_products_of_torchs_own_keep_the_weights_that_zero_gathered(recompute: str, stage: int, weights: float) -> None:
    """FlagPerf's zero.Init(mem_efficient_linear=False): 2 bytes for all but the two tables of Llama 2 7B, until each layer's backward; a
    layer that runs again gathers its own."""
    case = {"model": "llama2_7b", "plan": {"zero_stage": stage, "data_parallel": 8, "recompute": recompute}, "batch": 8}
    effects = lowered(case, "hugging_face_deepspeed_plain").effects
    kept = [t.bytes for e in effects for t in e.tensors if t.name == "weights that products keep"]
    assert max(kept, default=0.0) == pytest.approx(2 * weights, rel=0.001)


def test_fsdp_under_torch_pipelining_keeps_whole_weights_and_gradients() -> None:
    """Gathered once and reduced once per step: 4 bytes of gradient per parameter of the rank stand from the first backward to that."""
    case = {"model": "llama3_8b", "plan": {"zero_stage": 3, "data_parallel": 2, "pipeline_parallel": 4}, "batch": 16}
    program = lowered(case, "torchtitan")
    reductions = sum(
        1 for i, item in enumerate(program.item) if "reduce_scatter" in program.label(i) and program.rank[i] == 1
    )
    assert load_model("llama3_8b").layers // 4 == reductions
    held = standing(program, rank=1)
    # fp32 shards: 4 bytes per parameter over 2 replicas
    begins = [
        (program.action[row], program.microbatch[row], tensor.bytes)
        for row in range(program.size)
        if program.rank[row] == 1 and program.start_effect[row] >= 0
        for tensor in program.effects[program.start_effect[row]].tensors
        if tensor.name == "unsharded gradients of layer"
    ]
    assert {(1, 0)} == {(action, microbatch) for action, microbatch, _ in begins}
    assert held["weights"] * 2 == pytest.approx(sum(size for _, _, size in begins))


def gpt_row(**changes: str) -> dict[str, str]:
    """A tiny GPT of Megatron-LM's own tests: 12 layers of 512, 4 sequences of 1024 tokens."""
    row = {
        "case_id": "x",
        "source": "Megatron-LM functional tests",
        "arch_layers": "12",
        "hidden": "512",
        "heads": "8",
        "kv_heads": "8",
        "ffn_hidden": "2048",
        "gated_mlp": "0",
        "seq_len": "1024",
        "gpu": "A100-80GB-SXM",
        "gpus_per_node": "8",
        "n_gpus": "8",
        "precision": "bf16",
        "tp": "1",
        "pp": "1",
        "dp": "8",
        "zero_stage": "1",
        "mbs": "4",
        "gbs": "32",
        "recompute": "none",
        "schedule": "1F1B",
        "framework": "Megatron-LM (dev)",
        "mem_unit": "MiB",
        "mem_kind": "torch allocated_bytes.all.peak",
        "mem_rank": "last rank",
        "quality": "A",
    }
    return {**row, **changes}


@pytest.mark.parametrize(
    ("peak", "changes"),
    [
        ("4484.6", {"attn_kernel": "TE unfused"}),
        ("2616.0", {"attn_kernel": "TE fused/flash"}),
        ("3464.4", {"attn_kernel": "local unfused", "pp": "2", "dp": "4", "zero_stage": "0"}),
        (
            "2103.8",
            {"attn_kernel": "TE fused/flash", "pp": "4", "dp": "2", "zero_stage": "0", "gbs": "40", "tied_emb": "0"},
        ),
    ],
)
def test_peaks_of_megatrons_own_tests_come_out(peak: str, changes: dict[str, str]) -> None:
    """Golden values of NVIDIA/Megatron-LM tests/functional_tests (gpt3_mcore_te_tp1_*): within 3 %."""
    (outcome,) = next(iter(memory_outcomes([gpt_row(peak_mem=peak, **changes)])))
    assert outcome.error is not None
    assert 0.0 == pytest.approx(outcome.error, abs=0.03)
    assert outcome.low is not None
    assert outcome.high is not None
    assert outcome.low < float(peak) * 2**20 < outcome.high


def test_a_source_says_what_its_peaks_count_and_in_which_unit() -> None:
    row = gpt_row(peak_mem="2", mem_unit="GB", mem_kind="reported peak (allocator)")
    plain = next(iter(memory_outcomes([row])))[0]
    zero_bubble = next(iter(memory_outcomes([{**row, "source": "Zero Bubble Table 4"}])))[0]
    titan = next(iter(memory_outcomes([{**row, "source": "torchtitan benchmarks"}])))[0]
    assert (2e9, 2e9, 2e9) == (plain.measured, zero_bubble.measured, titan.measured)
    assert "allocated by tensors" in plain.assumed[-1]
    assert "reserved by the allocator" in titan.assumed[-1]


def test_terms_of_a_peak_sum_to_it_and_name_categories() -> None:
    (outcome,) = next(iter(memory_outcomes([gpt_row(peak_mem="2616", attn_kernel="TE fused/flash")])))
    assert set(dict(outcome.terms)) < set(CATEGORIES)
    assert outcome.predicted == pytest.approx(sum(dict(outcome.terms).values()))


def test_fsdp_without_mixed_precision_gathers_fp32_weights_under_autocast() -> None:
    narrow, wide = (
        sum(size for name, _, size in effects(lowered(FSDP, code)) if name.startswith("gathered weights"))
        for code in ("pytorch_fsdp", "pytorch_fsdp_autocast")
    )
    assert wide == pytest.approx(2 * narrow)


def test_the_first_layer_of_a_backward_is_gathered_behind_the_loss() -> None:
    """It stands beside the head's backward, but not where gradients of the logits are largest."""
    program = lowered(FSDP, "torchtitan_2026_eager")
    head = next(
        sum(t.bytes for t in effect.tensors if t.category == "workspace")
        for effect in program.effects
        if any(t.name == "head gradients of activations" for t in effect.tensors)
    )
    names = ("gathered weights of layer", "unsharded gradients of head")
    later = {t.name: t.bytes for effect in program.effects for t in effect.tensors if t.name in names}

    assert head + sum(later.values()) == pytest.approx(2 * 4.0 * 2048 * 128256)


def test_shards_of_gradients_that_are_added_up_whole_stand_in_no_step_of_a_pipeline() -> None:
    """The last backward makes them, and lets the whole ones go."""
    case = {**PIPELINE, "plan": {**PIPELINE["plan"], "zero_stage": 3}}
    names = {t.name for rank in lowered(case, "torchtitan_2026_eager").resident for t in rank.tensors}

    assert not any("gradient" in name for name in names)


@pytest.mark.parametrize(
    ("said", "stage"),
    [("rank 0", 0), ("1", 0), ("rank 2", 1), ("rank 5 (third stage)", 2), ("rank 7", 3), ("last rank", 3)],
)
def test_a_rank_by_its_number_is_the_stage_it_runs(said: str, stage: int) -> None:
    """Pipelines are the outermost axis of ranks (Megatron-LM's order tp-cp-ep-dp-pp), so eight ranks are four stages of two."""
    row = gpt_row(peak_mem="2000", pp="4", dp="2", zero_stage="0", gbs="40", mem_rank=said)
    (outcome,) = next(iter(memory_outcomes([row])))
    assert placed_peaks(row)[stage] == pytest.approx(outcome.predicted)
    assert f"pipeline rank {stage + 1} of 4" in outcome.assumed[-1]


def placed_peaks(row: dict[str, str]) -> list[float]:
    """Peaks of the pipeline ranks, without what the allocator does not count."""
    prediction = attempt(row, False).prediction
    assert prediction is not None
    counted = [i for i, name in enumerate(CATEGORIES) if name not in ("context", "fragmentation")]
    peaks = [float(peak) for peak in prediction.memory.by_category[:, counted].sum(axis=1)]
    assert 4 == len(set(peaks))
    return peaks


def test_a_rank_beyond_the_gpus_is_refused() -> None:
    (outcome,) = next(iter(memory_outcomes([gpt_row(peak_mem="2000", mem_rank="rank 8")])))
    assert outcome.predicted is None
    assert "mem_rank = rank 8" in outcome.reason
    assert "8 GPUs" in outcome.reason
