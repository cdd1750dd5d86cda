"""Words that strangers' tables use for codes, number formats and kernels, and rows whose recompute is not known."""

from __future__ import annotations

import pytest

from simulator.accuracy.attempt import attempt, may_fit, predict, verdict_outcome
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.table.rows import CannotPlace
from simulator.plan.framework import load_framework
from tests.rows import ROW, placed


@pytest.mark.parametrize(
    ("framework", "zero", "expected"),
    [
        ("NeMo (Megatron-Core)", "1", "nemo"),
        ("NeMo AutoModel (FSDP2)", "3", "automodel"),
        ("MaxText (JAX)", "3", "maxtext"),
        ("Paxml", "3", "paxml"),
        ("T5X on GPUs", "0", "t5x"),
        ("Levanter on TPU", "3", "jax_xla"),
        ("llm.c (C/CUDA)", "1", "llm_c"),
        ("torchtitan (FSDP2), eager", "3", "torchtitan_eager"),
        ("prime-rl (FSDP2 + torch.compile)", "3", "prime_rl"),
        ("Megatron-Bridge, library recipe", "1", "megatron_bridge_library"),
        ("Hugging Face transformers with Transformer Engine layers", "3", "pytorch_fsdp_fused"),
        ("HAI-LLM", "1", "hai_llm"),
        ("OLMo-core", "3", "olmo_core"),
        ("Primus (Megatron)", "1", "primus"),
        ("Primus / torchtitan", "3", "torchtitan"),
        ("MindSpeed-LLM", "1", "megatron_core"),
        ("PaddleNLP", "1", "paddlenlp"),
        ("ColossalAI", "1", "megatron_core"),
        ("nanotron", "1", "nanotron"),
        ("veScale", "3", "torchtitan_eager"),
        ("GPT-NeoX (fork)", "1", "gpt_neox_bf16"),
        ("Megatron-DeepSpeed (Microsoft)", "1", "megatron_deepspeed_bf16"),
        ("HF Trainer", "3", "hugging_face_fsdp"),
        ("Axolotl (FSDP)", "3", "hugging_face_fsdp"),
        ("LLaMA-Factory + DeepSpeed ZeRO-3", "3", "hugging_face_deepspeed"),
        ("HF Accelerate + DeepSpeed ZeRO-3 offload", "3", "hugging_face_deepspeed"),
        ("LitGPT", "3", "pytorch_fsdp"),
        ("PyTorch FSDP + torch.compile", "3", "pytorch_fsdp_fused"),
        ("FSDP without torch.compile", "3", "pytorch_fsdp"),
        ("nanoGPT (PyTorch DDP, torch.compile)", "0", "pytorch_ddp_compiled"),
    ],
)
def test_codes_are_known_by_their_words(framework: str, zero: str, expected: str) -> None:
    assert expected == placed(framework=framework, zero_stage=zero).fields["framework"]


@pytest.mark.parametrize(
    ("framework", "gpu", "expected"),
    [
        ("MaxText", "TPU v5p", "maxtext_tpu"),
        ("Levanter", "TPU v5p", "jax_xla_tpu"),
        ("a code of our own", "TPU v5p", "jax_xla_tpu"),
        ("MaxText", "H100-80GB-SXM", "maxtext"),
    ],
)
def test_loops_on_tpus_gather_within_their_turn(framework: str, gpu: str, expected: str) -> None:
    fields = placed(
        framework=framework, gpu=gpu, gpu_mem_gb="95" if "TPU" in gpu else "80", tp="1", pp="1", dp="16", zero_stage=""
    ).fields
    assert (expected, 3) == (fields["framework"], fields["zero_stage"])
    assert int(expected == "maxtext") == load_framework(expected).fsdp_prefetch


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "megatron_lm"),
        ({"gpu": "H100-80GB-SXM", "gpu_peak_bf16_tflops": "", "gpu_mem_gb": "", "intra_link": ""}, "megatron_core"),
        ({"framework": "Megatron-LM (be85fc5d, 2026)"}, "megatron_core"),
        ({"version": "June 2021"}, "megatron_lm_2021"),
        ({"version": "2022"}, "megatron_lm"),
        ({"framework": "DeepSpeed"}, "deepspeed"),
        ({"framework": "DeepSpeed 0.14 (2024)"}, "hugging_face_deepspeed"),
    ],
)
def test_the_name_of_megatron_lm_means_its_core_on_later_gpus_and_in_later_years(
    changes: dict[str, str], expected: str
) -> None:
    row = placed(**{"framework": "Megatron-LM", **changes})
    assert expected == row.fields["framework"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("float8", "fp8"),
        ("FP8 (delayed scaling)", "fp8"),
        ("FP8 (block-wise)", "fp8_block"),
        ("float8 rowwise", "fp8_rowwise"),
        ("fp8 rowwise", "fp8_rowwise"),
        ("bf16 mixed", "bf16"),
        ("AMP fp16", "fp16"),
        ("MXFP8", "mxfp8"),
        ("mxfp4", "mxfp4"),
        ("NVFP4", "nvfp4"),
    ],
)
def test_words_for_precisions(words: str, expected: str) -> None:
    assert expected == placed(precision=words).workload.precision


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"framework": "Megatron-LM (2023)"}, "tf32"),
        ({"framework": "PyTorch DDP", "version": "torch 2.10 of NGC 26.01"}, "tf32"),
        ({"framework": "PyTorch DDP"}, "fp32"),
        ({"framework": "Megatron-LM (2023)", "quality_note": "TF32 off"}, "fp32"),
    ],
)
def test_fp32_in_nvidias_containers_is_tf32_where_there_is_any(row: dict[str, str], expected: str) -> None:
    assert expected == placed(precision="fp32", **row).workload.precision


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("FlashAttention-2", "flash2"),
        ("flash_attention_2 (ring)", "flash2"),
        ("CK v3 fused", "te"),
        ("cuDNN flash (TE)", "te"),
        ("PyTorch SDPA (flash)", "sdpa_2025"),
        ("xformers memory efficient", "flash1"),
        ("standard", "unfused"),
        ("without flash", "unfused"),
    ],
)
def test_words_for_attention_kernels(words: str, expected: str) -> None:
    assert expected == placed(attn_kernel=words).fields["attention"]


def test_a_run_of_unknown_recompute_that_fits_within_the_band_recomputes_nothing() -> None:
    """A run that was published did run: a peak predicted a little above the memory does not mean that it recomputed."""
    tight = {**ROW, "recompute": "unknown", "mbs": "12", "gbs": "96"}
    prediction, assumed = predict(row_simulation(tight))
    assert not prediction.fits
    assert may_fit(prediction)
    assert "recompute = none (the least that may fit)" in assumed
    outcome = verdict_outcome("row", "group", False, attempt(tight, True))
    assert (None, False) == (outcome.predicted, outcome.counts)
    assert "what the run recomputed is not known" in outcome.reason


def test_encoders_and_encoder_decoders_are_known_by_their_families() -> None:
    sizes = {
        "hidden": "2048",
        "heads": "32",
        "kv_heads": "32",
        "head_dim": "64",
        "ffn_hidden": "5120",
        "vocab": "32128",
    }
    t5 = placed(**sizes, model="T5-v1.1-xl", gated_mlp="1", tied_emb="0", seq_len="512", pp="1", dp="8").workload.model
    assert ("encoder_decoder", 24, 24, 128) == (t5.architecture, t5.encoder_layers, t5.layers, t5.target_length)
    assert pytest.approx(2.85e9, rel=0.02) == t5.parameters
    bert = placed(model="bert-1.3b", seq_len="512").workload.model
    assert ("encoder", 2048) == (bert.architecture, bert.hidden)
    assert "architecture encoder as bert_large" in placed(model="BERT 1.3B", seq_len="512").assumed


def test_a_layer_with_more_norms_is_meant_by_name_only() -> None:
    """OLMo 2 has the sizes of Llama 2 and norms of queries and keys: a row of another name gets the plain layer."""
    llama = {
        "hidden": "4096",
        "heads": "32",
        "kv_heads": "32",
        "head_dim": "128",
        "ffn_hidden": "11008",
        "gated_mlp": "1",
    }
    assert not placed(**llama, model="amber-7b").workload.model.qk_norm
    assert placed(**llama, model="OLMo-2 7B").workload.model.qk_norm


@pytest.mark.parametrize("nothing", ["n/a", "-", "unknown", "?", "NaN"])
def test_words_for_nothing_are_blanks(nothing: str) -> None:
    row = {
        "vocab": nothing,
        "recompute": nothing,
        "schedule": nothing,
        "precision": nothing,
        "inter_gbps_per_gpu": nothing,
    }
    blank = placed(**dict.fromkeys(row, ""))
    assert (blank.fields, blank.recompute, blank.cluster) == (placed(**row).fields, None, placed(**row).cluster)
    assert "vocabulary = 50304" in placed(**row).assumed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Full (every layer)", "full"),
        ("activation checkpointing", "full"),
        ("True", "full"),
        ("save_qkv_proj", "policy"),
        ("save_something_else", "full"),
        ("selective (attention)", "selective"),
        ("op-level SAC", "selective"),
        ("No recomputation", "none"),
        ("0", "none"),
    ],
)
def test_words_for_recompute(words: str, expected: str) -> None:
    assert expected == placed(recompute=words).recompute


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("1F1B (non-interleaved)", "one_f_one_b"),
        ("Interleaved 1F1B (Megatron)", "interleaved_1f1b"),
        ("zero bubble", "zb_h1"),
        ("AFAB", "gpipe"),
        ("DualPipe (DeepSeek)", "dualpipe"),
    ],
)
def test_words_for_schedules(words: str, expected: str) -> None:
    assert expected == placed(schedule=words).fields["schedule"]


@pytest.mark.parametrize(("words", "expected"), [("ZeRO-1", 1), ("3 (FSDP)", 3), ("FSDP", 3), ("DDP", 0), ("2.0", 2)])
def test_words_for_sharding(words: str, expected: int) -> None:
    assert expected == placed(zero_stage=words).fields["zero_stage"]
    with pytest.raises(CannotPlace, match="zero_stage"):
        placed(zero_stage="some of it")


def test_data_parallelism_may_be_printed_with_its_context_or_expert_ranks() -> None:
    assert 2 == placed(cp="2", dp="4").fields["context_parallel"]
    experts = {"moe_experts": "8", "moe_topk": "2", "moe_ffn_hidden": "512", "ep": "4"}
    assert 4 == placed(**experts, dp="1").fields["expert_parallel"]


def test_a_batch_near_a_whole_number_of_microbatches_is_taken_for_it() -> None:
    """GPT-NeoX-20B prints 1,538 sequences of 12 replicas with microbatches of 4."""
    row = placed(gbs="1538", n_gpus="96", pp="4", dp="12", mbs="4")
    assert 1536 == row.workload.global_batch_size
    assert "gbs = 1536, the nearest multiple" in "; ".join(row.assumed)


def test_key_value_heads_are_shared_where_tensor_parallelism_is_wider() -> None:
    row = placed(kv_heads="1", gated_mlp="1")
    assert 1 == row.workload.model.kv_heads
    assert not [word for word in row.assumed if "heads" in word]
    assert predict(row)[0].step_time > 0


@pytest.mark.parametrize("task", ["", "Pre-training", "pretrain (synthetic data)", "training"])
def test_words_for_pretraining(task: str) -> None:
    assert placed(task=task).workload.global_batch_size == 64


def test_windows_are_those_of_a_model_that_is_called_alike() -> None:
    """A 3.6B model of nanotron's bench has Phi-3 mini's layers but for its windows."""
    phi = {"hidden": "3072", "heads": "32", "kv_heads": "32", "head_dim": "96", "ffn_hidden": "8192", "gated_mlp": "1"}
    assert placed(**phi, model="phi-3-mini").workload.model.window == 2047
    assert placed(**phi, model="3.57b").workload.model.window == 0


def test_windows_that_no_number_gives_are_left_out_and_said() -> None:
    assert "attention to all tokens (the row gives no window)" in placed(attn_type="sliding window").assumed


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [
        ("AMD Instinct MI300X", "mi300x_roce"),
        ("GB200", "gb200_nvl72"),
        ("TPU v4", "tpu_v4_pod"),
        ("Google TPU v5p", "tpu_v5p_pod"),
        ("Intel Gaudi2", "gaudi2_x8"),
        ("H100", "dgx_h100"),
        ("RTX 3090", "rtx_3090_x8"),
    ],
)
def test_a_gpu_alone_means_the_cluster_it_is_built_into(gpu: str, cluster: str) -> None:
    blank = dict.fromkeys(
        ("gpu_peak_bf16_tflops", "gpu_mem_gb", "gpus_per_node", "intra_link", "inter_gbps_per_gpu"), ""
    )
    assert cluster == placed(**blank, gpu=gpu).cluster.name


def test_megatrons_layer_pattern_and_pipeline_layout_are_read() -> None:
    experts = {"moe_experts": "8", "moe_topk": "2", "moe_ffn_hidden": "512", "moe_layer_freq": "([0]*3+[1]*21)"}
    assert 3 == placed(**experts).workload.model.dense_layers
    assert (1, 2) == tuple(
        getattr(placed(**{**experts, "moe_layer_freq": "([0]+[1])*12"}).workload.model, name)
        for name in ("dense_layers", "moe_every")
    )
    layout = placed(quality_note="pipeline-model-parallel-layout=Et*5|(tttt|)*4tttL; other").fields
    assert (3, (5, 4, 4, 4, 4, 3)) == (layout["chunks_per_rank"], layout["layer_split"])


def test_a_layer_that_no_model_has_takes_what_the_family_of_its_name_has() -> None:
    odd = {"hidden": "1536", "heads": "12", "kv_heads": "4", "head_dim": "128", "ffn_hidden": "5000", "gated_mlp": "1"}
    named = placed(**odd, model="qwen3-vl-2b-text")
    assert (True, "qwen3", 0) == (
        named.workload.model.qk_norm,
        named.workload.model.family,
        named.workload.model.mtp_layers,
    )
    assert any("as in qwen3_" in said for said in named.assumed)
    plain = placed(**odd, model="somebody-2b")
    assert not plain.workload.model.qk_norm
    assert any("no model of ours has this layer" in said for said in plain.assumed)


def test_experts_cut_otherwise_than_the_rest_have_as_large_parts() -> None:
    experts = {
        "moe_experts": "8",
        "moe_topk": "2",
        "moe_ffn_hidden": "512",
        "ep": "2",
        "etp": "2",
        "tp": "4",
        "dp": "2",
    }
    row = placed(**experts)
    assert (1, 4) == (row.fields["expert_parallel"], row.fields["expert_tensor_parallel"])
    assert predict(row)[0].step_time > 0


def test_what_moves_to_the_host_by_module_is_refused() -> None:
    with pytest.raises(CannotPlace, match="move to the host"):
        placed(quality_note="fine-grained-activation-offloading=True; x")


def test_a_model_known_by_name_needs_no_sizes() -> None:
    blank = dict.fromkeys(
        ("arch_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "gated_mlp", "vocab", "tied_emb"), ""
    )
    for row in (placed(**blank, model=name, seq_len="8192") for name in ("Llama-3-8B", "meta-llama/Meta-Llama-3-8B")):
        assert ("llama3_8b", 8192) == (row.workload.model.name, row.workload.sequence_length)
        assert "sizes of llama3_8b (the row gives none)" in row.assumed
    with pytest.raises(CannotPlace, match="no arch_layers, hidden, and no model is called 'a model nobody knows'"):
        placed(**blank, model="a model nobody knows")


@pytest.mark.parametrize(("gpu", "expected"), [("V100", "fp16"), ("A100", "bf16")])
def test_a_blank_precision_is_one_that_the_gpu_has(gpu: str, expected: str) -> None:
    blank = dict.fromkeys(("gpu_peak_bf16_tflops", "gpu_mem_gb", "intra_link", "inter_gbps_per_gpu", "precision"), "")
    row = placed(**blank, gpu=gpu)
    assert expected == row.workload.precision
    assert f"precision = {expected}" in row.assumed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recompute": "selective", "recompute_detail": "every 2nd layer"}, ("full", "every", 2)),
        ({"recompute": "selective (every third layer)"}, ("full", "every", 3)),
        ({"recompute": "full", "recompute_detail": "every layer"}, ("full", None, None)),
    ],
)
def test_a_row_may_say_which_layers_run_again(changes: dict[str, str], expected: tuple[object, ...]) -> None:
    row = placed(framework="torchtitan (FSDP2), eager", zero_stage="3", **changes)
    assert expected == (row.recompute, row.fields.get("recompute_method"), row.fields.get("recompute_layers"))


EXPERTS = {"moe_experts": "8", "moe_topk": "2", "moe_ffn_hidden": "512", "framework": "Megatron-Core", "schedule": ""}
EXPERTS |= {"ep": "8", "tp": "1", "pp": "1", "dp": "16"}


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("DeepEP", {"expert_exchange": "once_per_node"}),
        (
            "HybridEP; CUDA graphs of attention, router and preprocessing",
            {"expert_exchange": "once_per_node", "cuda_graphs": ("attn", "moe_router", "moe_preprocess")},
        ),
        ("all-to-all dispatcher", {"expert_exchange": "all_to_all"}),
        ("all-to-all (NCCL over EFA)", {"expert_exchange": "all_to_all"}),
        ("asked for a flex dispatcher and fell back to all-to-all", {"expert_exchange": "all_to_all"}),
        ("exchanges overlapped", {"schedule": "combined_1f1b"}),
        ("1F1B overlap of the exchange", {"schedule": "combined_1f1b"}),
        ("no exchange overlap", {}),
        ("as published", {}),
    ],
)
def test_words_for_the_exchange_of_experts(note: str, expected: dict[str, object]) -> None:
    fields = placed(**EXPERTS, quality_note=note).fields
    names = ("expert_exchange", "cuda_graphs", "schedule")
    assert expected == {name: fields[name] for name in names if name in fields}


def test_words_for_the_exchange_say_nothing_of_experts_that_are_not_dealt_out() -> None:
    fields = placed(**{**EXPERTS, "ep": "1"}, quality_note="DeepEP; exchange overlapped").fields
    assert not {"expert_exchange", "schedule"} & set(fields)


def test_attention_in_8_bits_is_read_where_a_kernel_for_it_is_known() -> None:
    row = {"framework": "Megatron-Core", "quality_note": "attention in 8 bits", "precision": "mxfp8"}
    assert "te_mxfp8" == placed(**row, gpu="GB200-NVL72", gpus_per_node="4").fields["attention"]
    assert "te_mxfp8" != placed(**row, gpu="H100-80GB-SXM").fields.get("attention")
    narrower = placed(
        **row | {"precision": "nvfp4", "quality_note": "attention in fp8"}, gpu="GB200-NVL72", gpus_per_node="4"
    )
    assert "te_mxfp8" == narrower.fields["attention"]
    assert any("MXFP8 operands" in words for words in narrower.assumed)
    wide = placed(**row | {"precision": "bf16"}, gpu="GB200-NVL72", gpus_per_node="4")
    assert "te_mxfp8" != wide.fields.get("attention")


def test_a_loss_outside_the_compiled_layers_stays_there_on_any_gpu_in_any_year() -> None:
    code = "prime-rl (FSDP2 + torch.compile)"
    found = placed(framework=code, tp="1", pp="1", dp="16", gpu="B200-SXM", version="2026-03")
    assert found.fields["framework"] == "prime_rl"
    assert not load_framework("prime_rl").fused_cross_entropy


def test_recipes_of_the_library_widen_their_fused_loss() -> None:
    assert load_framework("megatron_bridge_library").widens_fused_loss
    assert not load_framework("megatron_bridge").widens_fused_loss


@pytest.mark.parametrize(
    ("gpu", "version", "kernel"),
    [
        ("H100-80GB-SXM", "torch 2.11", "sdpa"),
        ("H100-80GB-SXM", "torch 2.10", "sdpa_2025"),
        ("H100-80GB-SXM", "2026-08", "sdpa"),
        ("H100-80GB-SXM", "2026-01", "sdpa_2025"),
        ("A100-80GB-SXM", "torch 2.12", "sdpa"),
    ],
)
def test_pytorchs_attention_is_that_of_the_runs_release(gpu: str, version: str, kernel: str) -> None:
    fields = placed(framework="HF Trainer", zero_stage="3", gpu=gpu, version=version, attn_kernel="SDPA").fields
    assert kernel == fields["attention"]


def test_megatron_under_accelerate_is_megatron() -> None:
    fields = placed(framework="Megatron-LM (Accelerate, 2022)", zero_stage="0").fields
    assert fields["framework"].startswith("megatron_lm")
