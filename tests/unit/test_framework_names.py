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
    ],
)
def test_a_framework_is_found_by_the_words_that_tell_it_from_its_neighbours(said: str, expected: str) -> None:
    names = load_names()
    assert expected == (names.find("frameworks", said) or names.framework_by_words(said))
