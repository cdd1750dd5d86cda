"""What is known of a source beside its rows: what its words mean, and the numbers of its own machine."""

from __future__ import annotations

from tests.rows import placed


def test_a_source_may_mean_another_recipe_by_its_word() -> None:
    assert "fp8" == placed(precision="fp8").workload.precision
    bridge = placed(precision="fp8", source="NVIDIA Megatron-Bridge performance summary")
    assert "fp8_current" == bridge.workload.precision
    assert any(rule.startswith("fp8 taken for fp8_current") for rule in bridge.assumed)
    assert ["fp8_current", "fp8_block"] == [placed(precision=p).workload.precision for p in ("fp8-cs", "fp8-blockwise")]


def test_a_source_that_measured_its_machine_is_priced_with_its_numbers() -> None:
    b200 = {
        "gpu": "B200-SXM",
        "gpu_mem_gb": "180",
        "gpu_peak_bf16_tflops": "2250",
        "intra_link": "NVLink5 1800GB/s NVSwitch",
    }
    other, own = (placed(**b200, source=source).cluster for source in ("somebody", "SimuMax B200 release"))
    assert "gemm_b200_simumax" in own.calibration
    assert "gemm_b200_simumax" not in other.calibration
    assert own.gpu == other.gpu
