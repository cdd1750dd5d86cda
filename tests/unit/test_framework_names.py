"""Frameworks as tables call them: told from their neighbours by their words."""

from __future__ import annotations

import pytest

from simulator.errors import SpecError
from simulator.importers.vocabulary.name_specs import FrameworkOfRelease, FrameworkOfTime, SourceFact
from simulator.importers.vocabulary.names import load_names
from simulator.specs import validate_spec


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Megatron-DeepSpeed (a fork)", "megatron_deepspeed"),
        ("DeepSpeed ZeRO-3 in Megatron", "deepspeed_2021"),
        ("HF Accelerate + DeepSpeed ZeRO-3", "hugging_face_deepspeed"),
        ("DeepSpeed ZeRO-2", "deepspeed"),
        ("Megatron-FSDP", "megatron_core"),
        ("NeMo 25.04, FSDP", "nemo"),
        ("Accelerate (FSDP1)", "hugging_face_fsdp"),
        ("Trainer, FSDP2", "hugging_face_fsdp"),
        ("a code of ours (FSDP2)", "torchtitan_eager"),
        ("Accelerate (FSDP2) + torch.compile", "torchtitan"),
        ("PyTorch FSDP (Hugging Face transformers)", "transformers_fsdp"),
        ("HF Trainer (Hugging Face transformers, FSDP)", "hugging_face_fsdp"),
        ("Transformers Trainer, DDP", "hugging_face_ddp"),
        ("Zero Bubble fork", "megatron_zero_bubble"),
        ("PyTorch Lightning DDP (Hugging Face GPT-2)", "hugging_face_ddp"),
        ("PyTorch Lightning DDP", "pytorch_ddp"),
        ("ColossalAI Gemini (Hugging Face GPT-2)", "hugging_face_deepspeed"),
        ("PyTorch DDP, torch.compile (llm.c train_gpt2.py)", "pytorch_ddp_compiled"),
        ("llm.c", "llm_c"),
        ("NVIDIA DeepLearningExamples BERT (PyTorch 1.5)", "nvidia_bert"),
        ("NVIDIA DeepLearningExamples BERT (PyTorch, DDP)", "nvidia_bert_2022"),
        ("NVIDIA DeepLearningExamples BERT (PaddlePaddle)", "nvidia_bert_paddle"),
        ("BMTrain (ZeRO-3, PyTorch)", "bmtrain"),
        ("metaseq (fairscale FSDP)", "metaseq"),
        ("OneFlow 0.3.5", "oneflow"),
        ("YaFSDP (PyTorch)", "pytorch_fsdp"),
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
        ("megatron_lm", "Megatron-LM (2023), llama2-70b", "hopper", "megatron_lm_2023"),
        ("megatron_lm", "Megatron-LM (2bc6cd30, January 2024)", "ampere", "megatron_lm_2023"),
        ("megatron_lm", "Megatron-LM 2024.04", "hopper", "megatron_core"),
        ("megatron_lm", "Megatron-LM (2024)", "ampere", "megatron_core"),
        ("megatron_lm", "Megatron-LM (2022)", "ampere", None),
        ("deepspeed", "DeepSpeed 3D, 2021", "volta", "deepspeed_2021"),
        ("deepspeed", "DeepSpeed 3D llama2-7b", "ampere", "hugging_face_deepspeed"),
        ("torchtitan", "torchtitan 2024", "hopper", None),
        ("torchtitan_eager", "torchtitan (FSDP2) 2025-03", "hopper", None),
        ("torchtitan_eager", "torchtitan (FSDP2) 2025-10", "hopper", "torchtitan_2025_eager"),
        ("torchtitan_eager", "torchtitan (FSDP2) 2026-04", "hopper", "torchtitan_2026_eager"),
        ("hugging_face_ddp", "Trainer, 2021, transformers 4.12", "volta", "hugging_face_ddp_2022"),
        ("hugging_face_ddp", "Trainer, 2024", "volta", None),
        ("hugging_face_ddp", "Trainer", "ampere", None),
    ],
)
def test_the_time_of_a_run_says_which_release_a_name_means(
    framework: str, words: str, architecture: str, expected: str | None
) -> None:
    found = load_names().framework_today(framework, words, architecture)
    assert expected == (found and found.profile)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"framework": "nemo", "profile": "nemo_2024", "source": "x"}, "expected since or until"),
        (
            {"framework": "nemo", "profile": "nemo_2024", "source": "x", "since": "soon"},
            'a year such as "the year 2023"',
        ),
        (
            {"framework": "nemo", "profile": "nemo_2024", "source": "x", "since": "2023", "newer": ["hopper"]},
            'a month such as "2025-04"',
        ),
    ],
)
def test_a_time_that_cannot_be_read_is_refused(entry: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        validate_spec(entry, FrameworkOfTime, "names.toml")


def test_a_release_that_cannot_be_read_and_an_entry_without_a_fact_are_refused() -> None:
    release = {"framework": "nemo", "profile": "nemo_2024", "source": "x", "until": "next"}
    with pytest.raises(SpecError, match=r'a release such as "release 24\.11"'):
        validate_spec(release, FrameworkOfRelease, "names.toml")
    with pytest.raises(SpecError, match="says nothing"):
        validate_spec({"of": "a paper", "gpu": "b200_sxm", "source": "x"}, SourceFact, "names.toml")


def test_facts_of_a_source_are_found_by_a_part_of_its_text_and_by_gpu() -> None:
    names = load_names()
    found = names.fact("SimuMax B200 release v1.2", "calibration", "b200_sxm")
    assert ("gemm_b200_simumax", "attention_b200_simumax") == (found and found.calibration)
    assert names.fact("SimuMax B200 release v1.2", "calibration", "h100_80gb_sxm") is None
    assert names.fact("SimuMax", "vocabulary") is None
    assert names.meant_by("InternEvo train_performance.md", "attention", "Flash") is not None
    assert names.meant_by("another source", "attention", "Flash") is None
