"""Words that strangers' tables use for codes, number formats and kernels, and rows whose recompute is not known."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.studies.validation.attempt import attempt, verdict_outcome
from simulator.studies.validation.placement import Placed, may_fit, place, predict
from simulator.studies.validation.rows import CannotPlace

ROW = {
    "case_id": "test-1",
    "source": "a table nobody knows",
    "model": "gpt-1.3b",
    "arch_layers": "24",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "16",
    "head_dim": "128",
    "ffn_hidden": "8192",
    "gated_mlp": "0",
    "vocab": "51200",
    "tied_emb": "1",
    "seq_len": "2048",
    "gpu": "A100-80GB-SXM",
    "gpu_peak_bf16_tflops": "312",
    "gpu_mem_gb": "80",
    "gpus_per_node": "8",
    "n_gpus": "16",
    "intra_link": "NVLink3 600GB/s NVSwitch",
    "inter_gbps_per_gpu": "200",
    "precision": "bf16",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "zero_stage": "0",
    "mbs": "2",
    "gbs": "64",
    "recompute": "none",
    "schedule": "1F1B",
    "framework": "Megatron-LM",
}


def placed(**changes: str) -> Placed:
    return place({**ROW, **changes})


@pytest.mark.parametrize(
    ("framework", "zero", "expected"),
    [
        ("NeMo (Megatron-Core)", "1", "nemo"),
        ("NeMo AutoModel (FSDP2)", "3", "automodel"),
        ("MaxText (JAX)", "3", "jax_xla"),
        ("Paxml", "3", "jax_xla"),
        ("Levanter on TPU", "3", "jax_xla"),
        ("llm.c (C/CUDA)", "1", "llm_c"),
        ("HAI-LLM", "1", "hai_llm"),
        ("OLMo-core", "3", "torchtitan"),
        ("Primus (Megatron)", "1", "megatron_core"),
        ("Primus / torchtitan", "3", "torchtitan"),
        ("MindSpeed-LLM", "1", "megatron_core"),
        ("PaddleNLP", "1", "megatron_core"),
        ("ColossalAI", "1", "megatron_core"),
        ("nanotron", "1", "megatron_core"),
        ("veScale", "3", "torchtitan_eager"),
        ("GPT-NeoX (fork)", "1", "megatron_deepspeed_bf16"),
        ("Megatron-DeepSpeed (Microsoft)", "1", "megatron_deepspeed_bf16"),
        ("HF Trainer", "3", "pytorch_fsdp"),
        ("Axolotl (FSDP)", "3", "pytorch_fsdp"),
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
    ("changes", "expected"),
    [
        ({}, "megatron_lm"),
        ({"gpu": "H100-80GB-SXM", "gpu_peak_bf16_tflops": "", "gpu_mem_gb": "", "intra_link": ""}, "megatron_core"),
        ({"framework": "Megatron-LM (be85fc5d, 2026)"}, "megatron_core"),
        ({"version": "June 2021"}, "megatron_lm"),
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
        ("FP8 (block-wise)", "fp8"),
        ("bf16 mixed", "bf16"),
        ("AMP fp16", "fp16"),
        ("MXFP8", "mxfp8"),
    ],
)
def test_words_for_precisions(words: str, expected: str) -> None:
    assert expected == placed(precision=words).workload.precision


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("FlashAttention-2", "flash2"),
        ("FlashAttention v3", "flash3"),
        ("flash_attention_2 (ring)", "flash2"),
        ("CK v3 fused", "te"),
        ("cuDNN flash (TE)", "te"),
        ("PyTorch SDPA (flash)", "sdpa"),
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
    prediction, assumed = predict(place(tight))
    assert not prediction.fits
    assert may_fit(prediction)
    assert "recompute = none (the least that may fit)" in assumed
    outcome = verdict_outcome("row", "group", False, attempt(tight, True))
    assert (None, False) == (outcome.predicted, outcome.counts)
    assert "what the run recomputed is not known" in outcome.reason


def test_a_row_that_names_a_hybrid_of_ours_is_that_model() -> None:
    sizes = {"arch_layers": "118", "hidden": "8192", "heads": "64", "kv_heads": "8", "ffn_hidden": "32768", "tp": "8"}
    row = placed(**sizes, model="NemotronH-56B", attn_type="hybrid mamba2", pp="1", dp="2", seq_len="8192")
    assert {"mamba2": 54, "none": 54, "full": 10} == dict(Counter(row.workload.model.layer_mixers))
    with pytest.raises(CannotPlace, match="hybrid"):
        placed(**{**sizes, "arch_layers": "60"}, model="NemotronH-56B", attn_type="hybrid mamba2", pp="1", dp="2")


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
