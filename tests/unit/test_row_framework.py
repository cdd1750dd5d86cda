"""What a user relies on in how a row's code is read beside its name: releases, and words of its notes."""

from __future__ import annotations

import pytest

from simulator.plan.framework import load_framework
from tests.rows import placed


def test_launches_that_block_are_read_in_a_rows_words() -> None:
    """CUDA_LAUNCH_BLOCKING=1 makes the host wait for every kernel: as BLOOM ran, not a habit of the code."""
    row = {"framework": "Megatron-DeepSpeed", "precision": "bf16"}
    assert placed(**row, quality_note="CUDA_LAUNCH_BLOCKING=1").fields["framework"] == "bigscience_bf16"
    assert placed(**row).fields["framework"] == "megatron_deepspeed_bf16"


@pytest.mark.parametrize(
    ("framework", "profile"),
    [
        ("NeMo 24.07", "nemo_2024"),
        ("NVIDIA NeMo Framework 24.12", "nemo_25_02"),
        ("NeMo 25.02", "nemo_25_02"),
        ("NeMo 25.09", "nemo"),
    ],
)
def test_a_release_in_a_codes_name_is_its_version(framework: str, profile: str) -> None:
    found = placed(
        framework=framework, zero_stage="1", gpu="H100-80GB-SXM", gpu_mem_gb="80", gpu_peak_bf16_tflops="989"
    )
    assert found.fields["framework"] == profile


def test_nanotron_kept_what_it_gathered_until_august_2024() -> None:
    row = {"framework": "nanotron", "tp": "8", "pp": "1", "dp": "2", "seq_parallel": "1"}
    assert "nanotron" == placed(**row).fields["framework"]
    old = placed(**row, source="nanotron old_bench, Llama 1B")
    assert "nanotron_2024" == old.fields["framework"]
    assert load_framework("nanotron_2024").keeps_gathered_inputs
