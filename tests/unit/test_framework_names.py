"""Frameworks as tables call them: told from their neighbours by their words."""

from __future__ import annotations

import pytest

from simulator.studies.validation.names import load_names


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Megatron-DeepSpeed (a fork)", "megatron_deepspeed"),
        ("DeepSpeed ZeRO-3 in Megatron", "deepspeed_2021"),
        ("HF Accelerate + DeepSpeed ZeRO-3", "hugging_face_deepspeed"),
        ("DeepSpeed ZeRO-2", "deepspeed"),
        ("Megatron-FSDP", "megatron_core"),
        ("NeMo 25.04, FSDP", "nemo"),
        ("Accelerate (FSDP1)", "pytorch_fsdp"),
        ("Trainer, FSDP2", "torchtitan"),
        ("Zero Bubble fork", "megatron_zero_bubble"),
        ("PyTorch Lightning DDP (Hugging Face GPT-2)", "pytorch_ddp"),
        ("ColossalAI Gemini (Hugging Face GPT-2)", "hugging_face_deepspeed"),
        ("PyTorch DDP, torch.compile (llm.c train_gpt2.py)", "pytorch_ddp_compiled"),
        ("llm.c", "llm_c"),
        ("NVIDIA DeepLearningExamples BERT (PyTorch 1.5)", "nvidia_bert"),
        ("metaseq (fairscale FSDP)", "metaseq"),
        ("OneFlow 0.3.5", "oneflow"),
    ],
)
def test_a_framework_is_found_by_the_words_that_tell_it_from_its_neighbours(said: str, expected: str) -> None:
    names = load_names()
    assert expected == (names.find("frameworks", said) or names.framework_by_words(said))


@pytest.mark.parametrize(
    ("framework", "words", "architecture", "expected"),
    [
        ("megatron_lm", "Megatron-LM (2021)", "volta", "megatron_lm_2021"),
        ("megatron_lm", "Megatron-LM (2022)", "volta", None),
        ("megatron_lm", "Megatron-LM", "ampere", None),
        ("megatron_lm", "Megatron-LM, llama2-70b", "ampere", "megatron_core"),
        ("megatron_lm", "Megatron-LM, flash attention 2", "ampere", "megatron_core"),
        ("megatron_lm", "Megatron-LM", "hopper", "megatron_core"),
        ("deepspeed", "DeepSpeed 3D, 2021", "volta", "deepspeed_2021"),
        ("deepspeed", "DeepSpeed 3D llama2-7b", "ampere", "hugging_face_deepspeed"),
        ("torchtitan", "torchtitan 2024", "hopper", None),
    ],
)
def test_the_time_of_a_run_says_which_release_a_name_means(
    framework: str, words: str, architecture: str, expected: str | None
) -> None:
    found = load_names().framework_today(framework, words, architecture)
    assert expected == (found and found.framework)
