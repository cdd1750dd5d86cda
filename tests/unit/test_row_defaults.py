"""What a row leaves unsaid: the code's own default, or that of the middle machine, said in words."""

from __future__ import annotations

import pytest

from simulator.accuracy.attempt import attempt, may_fit, predict
from simulator.importers.table.rows import CannotPlace
from tests.rows import ROW, placed


def rules(**changes: str) -> str:
    return "; ".join(placed(**changes).assumed)


def test_megatron_overlaps_gradients_where_a_row_says_so_and_nemo_always() -> None:
    row = {"framework": "Megatron-Core", "tp": "1", "pp": "1", "dp": "16", "zero_stage": "1", "schedule": ""}
    assert (False, False) == tuple(placed(**row).fields[f"overlap_{of}"] for of in ("gradients", "parameters"))
    assert "gradients are not overlapped" in rules(**row)
    for said in ("DP overlap", "TP comm overlap, DP overlap", "--overlap-grad-reduce"):
        assert "overlap_gradients" not in placed(**row, overlap=said).fields
    assert "overlap_gradients" not in placed(**row | {"framework": "NeMo"}).fields
    assert "overlap_gradients" not in placed(**row | {"n_gpus": "1", "dp": "1"}).fields


def test_an_unknown_code_that_shards_weights_and_splits_layers_splits_the_sequence_too() -> None:
    row = {"framework": "a code of our own", "zero_stage": "3", "pp": "1", "dp": "8", "schedule": ""}
    assert placed(**row).fields["sequence_parallel"]
    assert "SequenceParallel" in rules(**row)
    assert not placed(**row, seq_parallel="0").fields["sequence_parallel"], "the row says otherwise"


@pytest.mark.parametrize(
    ("code", "stage"),
    [("Megatron-Bridge", 1), ("OLMo-core", 3), ("thunder", 3), ("T5X (JAX)", 0), ("Megatron-DeepSpeed", 0)],
)
def test_a_stage_that_is_not_said_is_that_of_the_code_or_of_what_it_comes_from(code: str, stage: int) -> None:
    row = {"framework": code, "tp": "1", "pp": "1", "dp": "16", "zero_stage": "", "schedule": ""}
    assert stage == placed(**row).fields["zero_stage"]
    assert f"zero_stage = {stage} (the framework's habit)" in rules(**row)


def test_a_note_on_a_models_layers_is_read() -> None:
    row = {
        "model": "gpt-7b",
        "gated_mlp": "0",
        "hidden": "4096",
        "heads": "32",
        "kv_heads": "32",
        "ffn_hidden": "14336",
    }
    model = placed(**row).workload.model
    assert ("learned", "layer_norm", True) == (model.positions, model.norm, model.linear_bias)
    told = placed(**row, quality_note="RMSNorm, no biases; rotary positions").workload.model
    assert ("rotary", "rms_norm", False, 1.0) == (told.positions, told.norm, told.linear_bias, told.rotary_share)
    pythia = row | {"model": "pythia-1b", "hidden": "2048", "heads": "8", "kv_heads": "8", "ffn_hidden": "8192"}
    assert 0.25 == placed(**pythia).workload.model.rotary_share
    assert 1.0 == placed(**pythia, quality_note="rotary positions").workload.model.rotary_share


def test_a_network_that_is_not_named_is_that_of_the_middle_machine() -> None:
    blank = placed(inter_gbps_per_gpu="")
    assert placed(inter_gbps_per_gpu="100").cluster.levels[-1].bandwidth == blank.cluster.levels[-1].bandwidth
    assert "the middle one of 13 published machines" in "; ".join(blank.assumed)
    assert "machine" in blank.unknown
    assert "published machines" not in rules(inter_gbps_per_gpu="", n_gpus="8", dp="2"), "no network takes part"


def test_an_encoder_of_hugging_face_keeps_its_scores_in_memory() -> None:
    row = {
        "seq_len": "512",
        "tp": "1",
        "pp": "1",
        "dp": "16",
        "schedule": "",
        "framework": "Hugging Face Trainer + DDP",
    }
    for name in ("esm2-650m", "bert-large"):
        assert "unfused" == placed(**row, model=name).fields["attention"]
        assert "attention = unfused (huggingface/transformers" in rules(**row, model=name)
    assert "sdpa_2025" == placed(**row, model="bert-large", version="24.07").fields["attention"], "a kernel since"
    assert "flash2" == placed(**row, model="esm2-650m", attn_kernel="flash_attention_2").fields["attention"], "as said"
    assert "sdpa_2025" == placed(**row, model="gpt-1.3b").fields["attention"]
    assert "sdpa_2025" == placed(**row | {"framework": "PyTorch DDP"}, model="esm2-650m").fields["attention"]


def test_more_layers_to_compute_again_than_a_chunk_has_are_all_of_them() -> None:
    row = {"recompute": "full", "recompute_detail": "--recompute-method block --recompute-num-layers "}
    for told, expected in (("4", 4), ("24", 12)):
        found = placed(**row | {"recompute_detail": row["recompute_detail"] + told}).fields
        assert ("block", expected) == (found["recompute_method"], found["recompute_layers"])


def test_the_format_of_gradients_is_read_in_either_order_of_words() -> None:
    for words in ("bf16 main gradients", "weights and gradients in bf16, moments in fp32", "gradients are in bf16"):
        assert "bf16" == placed(quality_note=words).fields["gradient_dtype"]
    assert "gradient_dtype" not in placed(quality_note="gradients are clipped; moments in fp32").fields


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("inter_gbps_per_gpu", "1e30"),
        ("gpu_mem_gb", "1e30"),
        ("gpu_peak_bf16_tflops", "1e30"),
        ("intra_link", "NVLink 1.2.3 GB/s"),
    ],
)
def test_numbers_beyond_what_anything_has_are_no_numbers(column: str, told: str) -> None:
    unknown = {"gpu": "Some Card", "gpu_mem_gb": "80", "gpu_peak_bf16_tflops": "300"}
    with pytest.raises(CannotPlace) as caught:
        placed(**(unknown | {column: told}))
    assert caught.value.reason.startswith(f"{column}: ")


@pytest.mark.parametrize(
    ("words", "gpus", "machine"),
    [
        ("", "16", "a100_80gb_sxm infiniband"),
        ("RoCE", "16", "a100_80gb_sxm infiniband"),
        ("over EFA, as its owner says", "16", "a100_80gb_sxm efa"),
        ("over EFA, as its owner says", "8", "a100_80gb_sxm"),
    ],
)
def test_words_tell_the_kind_of_network_and_with_it_the_machine(words: str, gpus: str, machine: str) -> None:
    row = placed(quality_note=words, n_gpus=gpus, dp=str(int(gpus) // 4))
    assert row.cluster.machine == machine
    assert ("the row's own words" in "; ".join(row.assumed)) is (words != "" and gpus == "16")


@pytest.mark.parametrize(
    ("framework", "known"),
    [
        ("Megatron-LM (May 2021)", True),
        ("Megatron-LM (be85fc5d, 2026)", True),
        ("torchtitan (FSDP2) + torch.compile + float8 rowwise", True),
        ("Megatron-LM fork of our lab", False),
        ("torchtitan (FSDP2), eager, float8nocompile", False),
        ("PyTorch FSDP", False),
        ("XYZ", False),
    ],
)
def test_a_code_is_known_whose_name_says_nothing_beside_it(framework: str, known: bool) -> None:
    assert ("code" not in placed(framework=framework).unknown) is known


@pytest.mark.parametrize(
    ("framework", "stage", "reshards"),
    [
        ("torchtitan (FSDP2) + torch.compile", 3, False),
        ("Meta internal", 3, False),
        ("PyTorch FSDP", 2, True),
        ("Megatron-DeepSpeed", 2, True),
    ],
)
def test_the_second_stage_of_a_code_that_has_fsdp_alone_keeps_weights_from_forward_to_backward(
    framework: str, stage: int, reshards: bool
) -> None:
    for group in ("", "8"):
        row = placed(framework=framework, zero_stage="2", tp="1", pp="1", dp="16", shard_size=group)
        assert stage == row.fields["zero_stage"]
        assert group == str(row.fields.get("shard_size", ""))
        assert reshards is row.fields.get("reshard_after_forward", True)
        assert reshards is not any(said.startswith("zero_stage 3") for said in row.assumed)


def test_of_sizes_that_nobody_told_those_are_taken_that_run_well() -> None:
    """The least microbatch that is about as quick as the quickest, and chunks as many as pay."""

    def times(column: str, values: tuple[int, ...], **row: str) -> dict[int, float]:
        tried = {n: predict(placed(**row, **{column: str(n)}))[0] for n in values}
        return {n: one.step_time for n, one in tried.items() if may_fit(one)}

    small = {"n_gpus": "8", "pp": "1", "tp": "1", "dp": "8", "gbs": "128", "schedule": ""}
    found = attempt({**ROW, **small, "mbs": ""}, True)
    assert found.prediction is not None
    steps = times("mbs", (1, 2, 4, 8, 16), **small)
    least = min(n for n, step in steps.items() if step <= 1.1 * min(steps.values()))
    assert steps[least] == found.prediction.step_time
    assert least > 1
    assert f"microbatch_size = {least} (none is printed: about the quickest that may fit)" in found.assumed
    assert "plan" in found.prediction.unknown

    deep = {"n_gpus": "16", "pp": "4", "tp": "1", "dp": "4", "gbs": "16", "mbs": "1", "schedule": "1F1B-interleaved"}
    found = attempt({**ROW, **deep}, True)
    assert found.prediction is not None
    assert min(times("vp", (2, 3, 6), **deep).values()) == found.prediction.step_time
    assert (
        "2 chunks per rank (torchtitan's default)"
        in attempt({**ROW, **deep, "framework": "torchtitan (FSDP2)"}, True).assumed
    )
    assert "chunks_per_rank = 2 (" not in "; ".join(found.assumed)


def test_a_microbatch_follows_from_the_parts_of_a_batch() -> None:
    said = attempt({**ROW, "mbs": "", "gbs": "64", "grad_accum": "4"}, True).assumed
    assert "microbatch_size = 4 (the batch in 4 parts)" in said


def test_an_unknown_recompute_is_the_least_that_fits() -> None:
    prediction, assumed = predict(placed(recompute="unknown"))
    assert prediction.fits
    assert "recompute = none (the least that may fit)" in assumed
    _, assumed = predict(placed(recompute="unknown", gbs="256", mbs="64"))
    assert "recompute = full (the least that may fit)" in assumed


def test_flash_attention_of_before_its_second_release_is_the_first() -> None:
    for version, word, kernel in (
        ("2022-12", "flash", "flash1"),
        ("2023-05", "flash attention", "flash1"),
        ("2023-08", "flash attention", "flash2"),
        ("2023", "flash attention", "flash2"),
        ("2022-12", "flash attention 2", "flash2"),
        ("", "flash attention", "flash2"),
    ):
        assert kernel == placed(version=version, attn_kernel=word).fields["attention"], (version, word)
    assert "FlashAttention 1 in a run of 2022-12" in rules(version="2022-12", attn_kernel="flash")
