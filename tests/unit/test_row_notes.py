"""What a row's own words say of kept number formats, optimizer and loss; which profile and model they mean."""

from __future__ import annotations

import pytest

from simulator.accuracy.attempt import predict
from simulator.accuracy.memory import memory_outcomes
from simulator.importers.table.row_framework import named_framework
from simulator.importers.table.row_notes import keeps_16_bits, row_dropout, row_loss, row_optimizer
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.table.rows import CannotPlace
from simulator.importers.vocabulary.names import load_names
from simulator.workload.model import load_model
from tests.rows import ROW, placed


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        ({"quality_note": "full bf16 training"}, True),
        ({"quality_note": "pure PP; bf16"}, False),
        ({"framework": "HF Trainer (bf16-true)"}, True),
        ({"quality_note": "bf16 all-gather"}, False),
        ({"quality_note": "weights in bf16 without fp32 masters"}, True),
        ({"quality_note": "no master copy"}, True),
        ({"quality_note": "fp32 master weights"}, False),
    ],
)
def test_words_for_training_in_16_bits_alone(words: dict[str, str], alone: bool) -> None:
    assert alone == keeps_16_bits(words)


def test_the_optimizer_is_adam_unless_the_row_says_otherwise() -> None:
    found = {
        "": "adam",
        "8-bit AdamW": "adam_8bit",
        "BNB optimizer": "adam_8bit",
        "Adafactor": "adafactor",
        "autocast, fused AdamW": "adam_fused",
        "optim=adamw_torch_fused": "adam_fused",
        "plain AdamW; fused kernels": "adam",
    }
    assert found == {words: row_optimizer({"quality_note": words})[0] for words in found}


def test_a_loss_in_chunks_is_counted_as_its_library_does() -> None:
    """Liger: 128,256 / 4,096 rounded up is 32 parts of 16,384 tokens, 512 each; torchtitan: chunks of so many tokens."""
    model = load_model("llama3_8b")
    assert {"loss_chunks": 32, "fused_cross_entropy": True} == row_loss({"framework": "HF + Liger"}, model, 16384)
    assert 5 == row_loss({"quality_note": "loss in chunks of 8,192 tokens"}, model, 40_000)["loss_chunks"]
    assert {"fused_cross_entropy": True} == row_loss({"quality_note": "chunked cross entropy"}, model, 4096)
    assert {} == row_loss({"quality_note": "plain"}, model, 4096)
    assert {} == row_loss({"framework": "HF", "quality_note": "within 1.5 % with and without Liger"}, model, 16384)
    assert 8 == row_loss({"quality_note": "loss in pieces"}, model, 4096)["loss_chunks"]
    assert 8 == row_loss({"quality_note": "Cut Cross Entropy"}, model, 4096)["loss_chunks"]
    assert {} == row_loss({"quality_note": "without Cut Cross Entropy"}, model, 4096)
    assert {"fused_cross_entropy": False} == row_loss({"quality_note": "loss outside the graph"}, model, 4096)


def test_a_month_in_a_sources_text_tells_the_profile_of_its_time() -> None:
    names = load_names()
    told = [
        names.framework_today("torchtitan", "", gpu, where)
        for gpu, where in (
            ("hopper", "benchmarks/llama3_h100_202412_torchtitan.md"),
            ("hopper", "benchmarks/llama3-8b_h200_202506.md"),
            ("hopper", "arXiv 2012.12345"),
            ("blackwell", "no date"),
        )
    ]
    assert [None, "torchtitan_2025", None, "torchtitan_2025"] == [later and later.profile for later in told]


@pytest.mark.parametrize("version", ["2024-07", "nightly-20240814"])
def test_the_month_that_a_row_tells_goes_before_the_one_in_which_its_page_was_read(version: str) -> None:
    row = {
        **ROW,
        "framework": "torchtitan (FSDP2) + torch.compile",
        "gpu": "H100-80GB-SXM",
        "source_loc": "pull/382@2026-11",
    }
    assert "torchtitan" == named_framework({**row, "version": version}, [])
    assert "torchtitan_2025" == named_framework({**row, "version": ""}, [])


def test_a_code_that_shards_nothing_runs_under_ddp_and_adapters_are_those_of_its_code() -> None:
    torch = {
        **ROW,
        "tp": "1",
        "pp": "1",
        "zero_stage": "0",
        "framework": "HF Trainer",
        "mbs": "1",
        "gbs": ROW["n_gpus"],
        "dp": "",
    }
    torch = {**torch, "vp": "", "schedule": "", "seq_parallel": "0"}
    assert "hugging_face_ddp" == row_simulation(torch).fields["framework"]
    assert "hugging_face_fsdp" == row_simulation({**torch, "zero_stage": "3"}).fields["framework"]
    low = row_simulation({**torch, "framework": "LitGPT qlora"}).workload.model
    assert (32, ("query", "value"), "nf4") == (low.lora_rank, low.lora_modules, low.frozen_format)
    assert 0 == row_simulation(torch).workload.model.lora_rank
    with pytest.raises(CannotPlace, match="adapters of code 'peft dora'"):
        row_simulation({**torch, "framework": "PEFT DoRA"})


def test_the_library_peft_in_a_code_s_name_is_no_other_task() -> None:
    row = {**ROW, "tp": "1", "pp": "1", "vp": "", "schedule": "", "seq_parallel": "0", "dp": ROW["n_gpus"]}
    row |= {"framework": "axolotl (Hugging Face Trainer, PEFT)", "gbs": ROW["n_gpus"], "mbs": "1"}
    assert "nf4" == row_simulation({**row, "task": "qlora"}).workload.model.frozen_format
    with pytest.raises(CannotPlace, match="adapters of code"):
        row_simulation(row)
    with pytest.raises(CannotPlace, match="task 'lora'"):
        row_simulation({**row, "framework": "PEFT DoRA", "task": "lora"})


def test_fine_tuning_packs_the_documents_of_its_code() -> None:
    for task, length in (("", None), ("sft", 190.0), ("lora", 190.0)):
        assert length == row_simulation({**ROW, "task": task, "framework": "NeMo"}).workload.document_length
    assert (
        512.0
        == row_simulation(
            {**ROW, "task": "sft", "framework": "NeMo", "document_length": "512"}
        ).workload.document_length
    )
    assert row_simulation({**ROW, "task": "lora", "framework": "NeMo"}).workload.model.lora_modules == (
        "query",
        "key",
        "value",
    )


def test_usual_documents_are_not_claimed_of_a_row_that_tells_its_own() -> None:
    row = {**ROW, "task": "lora", "framework": "NeMo"}
    assert "of documents of 190 tokens" in "; ".join(row_simulation(row).assumed)
    for length in ("512", ROW["seq_len"]):
        assert "190" not in "; ".join(row_simulation({**row, "document_length": length}).assumed)


@pytest.mark.parametrize(
    ("gpu", "memory", "note", "kept"),
    [
        ("B200-180GB-SXM", "180", "frozen weights in 8 bits", "fp8"),
        ("B200-180GB-SXM", "180", "fp8_params: true", "fp8"),
        ("B200-180GB-SXM", "180", "", ""),
        ("H100-80GB-SXM", "80", "fp8_params: true", "fp8"),
    ],
)
def test_frozen_weights_stand_in_8_bits_where_a_row_says_so(gpu: str, memory: str, note: str, kept: str) -> None:
    row = {**ROW, "task": "lora", "framework": "NeMo", "precision": "fp8", "gpu": gpu, "gpu_mem_gb": memory}
    row |= {"quality_note": note, "gpu_peak_bf16_tflops": ""}
    assert kept == row_simulation(row).workload.model.frozen_format


@pytest.mark.parametrize(
    ("note", "source", "rank", "modules", "drops"),
    [
        ("", "", 32, ("query", "key", "value"), False),
        ("adapters of rank 16 beside attention; fp8", "MLPerf v4.1", 16, ("query", "key", "value", "output"), True),
        ("adapters of rank 8 beside q and v", "", 8, ("query", "value"), False),
        ("adapters of rank 8 beside query, value", "", 8, ("query", "value"), False),
        ("adapters of rank 64", "", 64, ("query", "key", "value"), False),
        ("adapters of rank 0", "", 32, ("query", "key", "value"), False),
    ],
)
def test_a_row_says_which_adapters_it_has(
    note: str, source: str, rank: int, modules: tuple[str, ...], drops: bool
) -> None:
    row = {**ROW, "task": "lora", "framework": "NeMo", "quality_note": note, "source": source}
    model = row_simulation(row).workload.model
    assert (rank, modules, drops) == (model.lora_rank, model.lora_modules, model.lora_dropout)


@pytest.mark.parametrize(
    ("note", "ranks", "kind"),
    [
        ("cp_comm_type a2a", "4", "ulysses"),
        ("with Ulysses", "4", "ulysses"),
        ("cp_comm_type=a2a+p2p", "4", None),
        ("with Ulysses", "1", None),
        ("with Ulysses", "64", None),
    ],
)
def test_a_row_says_how_ranks_share_sequences(note: str, ranks: str, kind: str | None) -> None:
    row = {**ROW, "quality_note": note, "cp": ranks, "tp": "1", "pp": "1", "dp": "", "n_gpus": "64", "gbs": "128"}
    assert row_simulation(row).fields.get("context_parallel_kind") == kind


def test_a_hybrid_model_is_told_by_its_sizes_and_the_first_word_of_its_family() -> None:
    sizes = {"arch_layers": "52", "hidden": "2688", "heads": "32", "kv_heads": "2", "moe_experts": "128"}
    sizes |= {"moe_topk": "6", "moe_ffn_hidden": "1856", "ffn_hidden": "1856", "head_dim": "128"}
    row = {**ROW, **sizes, "tp": "1", "pp": "1", "ep": "8", "vp": "", "dp": "", "mbs": "1", "gbs": ROW["n_gpus"]}
    assert "nemotron3_nano_30b_a3b" == row_simulation({**row, "model": "ci-nemotron"}).workload.model.name
    assert "nemotron3_nano_30b_a3b" != row_simulation({**row, "model": "unlike"}).workload.model.name


def test_a_table_of_peaks_needs_no_batch_and_takes_fine_tuning_of_all_weights() -> None:
    row = {**ROW, "gbs": "", "peak_mem": "40", "mem_unit": "GB", "step_time_s": "", "task": "sft"}
    assert row_simulation(row).workload.global_batch_size > 0
    with pytest.raises(CannotPlace, match="task"):
        row_simulation({**row, "task": "dpo"})


def test_an_unknown_gpu_of_a_table_of_peaks_needs_its_memory_alone() -> None:
    row = {
        **ROW,
        "gpu": "Titan Xp",
        "gpu_mem_gb": "12",
        "gpu_peak_bf16_tflops": "",
        "intra_link": "",
        "step_time_s": "",
    }
    assert (
        12e9 == row_simulation({**row, "peak_mem": "10", "mem_unit": "GB", "mem_kind": "nvidia-smi"}).cluster.gpu.memory
    )
    with pytest.raises(CannotPlace, match="not known"):
        row_simulation({**row, "step_time_s": "3"})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"quality_note": "dropout 0.1 as in the script"}, {"dropout": True}),
        ({"quality_note": "without dropout", "model": "gpt2-124m", "framework": "HF Trainer"}, {"dropout": False}),
        ({"quality_note": "dropout 0.0"}, {"dropout": False}),
        ({"model": "gpt2-1.5b", "framework": "Lightning DDP (Hugging Face GPT-2)"}, {"dropout": True}),
        ({"model": "gpt2-1.5b", "framework": "nanoGPT (PyTorch DDP)"}, {}),
        ({"model": "T5-small", "framework": "Hugging Face T5, PyTorch DDP (Accelerate)"}, {"dropout": True}),
        ({"model": "T5-v1.1-large", "framework": "T5X (JAX)"}, {}),
        ({"model": "llama3-8b", "framework": "HF Trainer"}, {}),
    ],
)
def test_dropout_is_told_by_words_or_by_the_configuration_of_the_model(
    row: dict[str, str], expected: dict[str, bool]
) -> None:
    assert expected == row_dropout(row, load_model("llama3_8b"), "hugging_face_fsdp")[0]


@pytest.mark.parametrize(
    ("row", "model", "profile", "expected"),
    [
        ({}, "gpt3_175b", "megatron_core", {"dropout": True}),
        ({"quality_note": "no dropout"}, "gpt3_175b", "megatron_core", {"dropout": False}),
        ({}, "llama3_8b", "megatron_core", {}),
        ({}, "gpt3_175b", "nemo", {}),
    ],
)
def test_megatron_s_script_trains_its_own_layers_with_dropout_unless_told_otherwise(
    row: dict[str, str], model: str, profile: str, expected: dict[str, bool]
) -> None:
    assert expected == row_dropout(row, load_model(model), profile)[0]


def test_t5_of_hugging_face_multiplies_and_normalises_scores_in_memory() -> None:
    t5 = {
        "model": "T5-small",
        "framework": "Hugging Face T5, PyTorch DDP",
        "tp": "1",
        "pp": "1",
        "dp": "16",
        "schedule": "",
    }
    assert placed(**t5).fields["attention"] == "unfused"
    assert placed(**{**t5, "attn_kernel": "flash"}).fields["attention"] != "unfused"


@pytest.mark.parametrize(("precision", "kept"), [("bf16", True), ("fp8", True), ("fp32", None), ("fp16", None)])
def test_remainders_of_weights_are_of_16_bit_brain_floats_alone(precision: str, kept: bool | None) -> None:
    row = placed(precision=precision, zero_stage="1", gpu="H100-80GB-SXM", quality_note="precision-aware optimizer")
    assert kept == row.fields.get("splits_master_weights")
    assert predict(row)[0].fits


def test_sequences_of_like_length_run_with_their_mean() -> None:
    """The row's own length is the most; a mean that is no shorter, or another row's words, change nothing."""
    told = "bins of 64 tokens: 1,088 tokens in the mean"
    assert placed(seq_len="2048", quality_note=told).workload.sequence_length == 1088
    assert "sequences of 1088 tokens" in str(placed(seq_len="2048", quality_note=told).assumed)
    assert [placed(seq_len=length, quality_note=told).workload.sequence_length for length in ("1088", "512")] == [
        1088,
        512,
    ]
    assert placed(seq_len="2048").workload.sequence_length == 2048


def test_words_on_how_fsdp_wraps_and_what_it_gathers() -> None:
    torch = {
        **ROW,
        "tp": "1",
        "pp": "1",
        "vp": "",
        "dp": "",
        "schedule": "",
        "seq_parallel": "0",
        "mbs": "1",
        "gbs": ROW["n_gpus"],
    }
    torch |= {"zero_stage": "3", "framework": "PyTorch FSDP, eager"}
    usual = row_simulation(torch).fields
    whole = row_simulation({**torch, "quality_note": "the whole model one unit; without MixedPrecision"}).fields
    assert ("pytorch_fsdp", None) == (usual["framework"], usual.get("fsdp_unit"))
    assert ("pytorch_fsdp_autocast", "chunk") == (whole["framework"], whole["fsdp_unit"])


def test_states_of_a_paged_optimizer_are_in_no_allocator() -> None:
    row = {
        **ROW,
        "step_time_s": "",
        "peak_mem": "10",
        "mem_unit": "GB",
        "mem_kind": "reserved",
        "quality_note": "AdamW",
    }
    (whole,), (paged,), (device,) = (
        [o for o in some if o.quantity == "peak_memory_bytes"]
        for some in memory_outcomes(
            [
                row,
                row | {"quality_note": "paged AdamW"},
                row | {"quality_note": "paged AdamW", "mem_kind": "nvidia-smi"},
            ]
        )
    )
    states = dict(whole.terms)["optimizer_states"]
    assert states > 0
    assert (whole.predicted or 0.0) - states == pytest.approx(paged.predicted)
    assert (device.predicted or 0.0) > (whole.predicted or 0.0)


def test_a_row_may_say_that_every_group_of_experts_has_a_copy_of_the_rest() -> None:
    moe = {
        "moe_experts": "8",
        "moe_topk": "2",
        "moe_ffn_hidden": "512",
        "ep": "2",
        "zero_stage": "3",
        "shard_size": "2",
    }
    note = {"quality_note": "FSDP of 2, what is no expert stands on every group of experts"}
    assert placed(**moe, **note).fields["shard_across_experts"] is True
    assert predict(placed(**moe, **note))[0].fits
    assert "shard_across_experts" not in placed(**moe).fields
    assert "shard_across_experts" not in placed(**{**moe, **note, "ep": "1"}).fields


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("loss in pieces", {"loss_chunks": 8, "fused_cross_entropy": True}),
        ("chunked loss", {"loss_chunks": 8, "fused_cross_entropy": True}),
        ("cut cross entropy", {"loss_chunks": 8, "fused_cross_entropy": True}),
        ("linear cross entropy", {"loss_chunks": 8, "fused_cross_entropy": True}),
        ("fused_linear_cross_entropy", {"loss_chunks": 8, "fused_cross_entropy": True}),
        ("Liger", {"loss_chunks": 32, "fused_cross_entropy": True}),
        ("pieces of 1,024 tokens", {"loss_chunks": 16, "fused_cross_entropy": True}),
        ("4", {"loss_chunks": 4, "fused_cross_entropy": True}),
        ("1", {"fused_cross_entropy": True}),
        ("fused (TE)", {"fused_cross_entropy": True}),
        ("chunked cross entropy", {"fused_cross_entropy": True}),
        ("unfused", {"fused_cross_entropy": False}),
    ],
)
def test_a_column_says_how_the_loss_is_made(told: str, expected: dict[str, object]) -> None:
    assert expected == row_loss({"loss_kernel": told, "quality_note": "loss outside"}, load_model("llama3_8b"), 16384)


def test_a_loss_that_nobody_knows_is_named() -> None:
    with pytest.raises(CannotPlace, match="loss_kernel 'quantum' is not known"):
        placed(loss_kernel="quantum")
