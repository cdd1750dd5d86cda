"""What is known of a source beside its rows: what its words mean, and the numbers of its own machine."""

from __future__ import annotations

from simulator.studies.validation.placement import Placed, place

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
