"""`dtsim validate --kind gemm`: products, groups of products, attention and whole layers, predicted row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.studies.validation.gemm import gemm_outcomes
from simulator.studies.validation.report import write_validation_page
from simulator.studies.validation.scores import Outcome
from simulator.studies.validation.validate import Validation, load_table

LAYER = {
    "source": "Korthikanti et al. 2022 Table 4 (arXiv 2205.05198)",
    "gpu": "A100-80GB-SXM",
    "op": "transformer_layer",
    "batch": "4",
    "dtype": "fp16",
    "seq_len": "2048",
    "heads": "64",
    "hidden": "6144",
    "ffn": "24576",
    "tp": "8",
    "software": "Megatron-LM",
}
GROUP = {
    "source": "SimuMax b200_bf16_ceperm.json",
    "gpu": "B200-SXM",
    "op": "grouped_gemm",
    "m": "154",
    "n": "5120",
    "k": "1536",
    "groups": "160",
    "dtype": "bf16",
    "direction": "fwd",
}


def outcome(row: dict[str, str]) -> Outcome:
    return next(iter(gemm_outcomes([row])))[0]


@pytest.mark.parametrize(
    ("direction", "notes", "milliseconds"),
    [
        ("fwd", "no recompute", 7.7),
        ("bwd", "no recompute", 11.9),
        ("fwd", "sequence parallel, no recompute", 7.2),
        ("bwd", "sequence parallel, no recompute", 11.8),
        ("bwd", "full recompute", 19.5),
        ("bwd", "selective recompute", 13.2),
        ("bwd", "selective + sequence parallel", 13.1),
    ],
)
def test_a_layer_of_the_22b_model_takes_what_the_paper_measured(
    direction: str, notes: str, milliseconds: float
) -> None:
    found = outcome(LAYER | {"direction": direction, "notes": notes, "time_ms": str(milliseconds)})
    assert found.quantity == "time_ms"
    assert found.error is not None
    assert abs(found.error) < 0.055


@pytest.mark.parametrize(
    ("dtype", "direction", "time_ms", "tolerance"),
    [
        ("bf16", "fwd", "4.3269", 0.1),
        ("bf16", "bwd", "7.6843", 0.1),
        ("fp8-blockwise", "fwd", "3.7883", 0.15),
        ("fp8-blockwise", "bwd", "6.6182", 0.15),
    ],
)
def test_a_layer_of_experts_takes_what_megatrons_own_benchmark_says(
    dtype: str, direction: str, time_ms: str, tolerance: float
) -> None:
    """Eight experts on eight H100, without biases, with a plain activation function: its weights are kernels of their own."""
    row = {
        "source": "Megatron-LM MoE layer performance baseline",
        "gpu": "H100-80GB-SXM",
        "op": "moe_layer",
        "batch": "1",
        "dtype": dtype,
        "seq_len": "4096",
        "hidden": "4096",
        "ffn": "14336",
        "experts": "8",
        "topk": "2",
        "tp": "1",
        "ep": "8",
        "software": "NCCL all-to-all dispatcher",
    }
    found = outcome({**row, "direction": direction, "time_ms": time_ms})
    assert found.predicted is not None
    assert found.measured == pytest.approx(found.predicted, rel=tolerance)
    assert any("no biases" in rule for rule in found.assumed)


def test_products_of_many_small_groups_take_the_host_time_per_group() -> None:
    """Measured 261 and 276 TFLOP/s for 160 groups of 154 rows: 9 us each, whatever their size."""
    for direction, measured in (("fwd", 261.0), ("bwd_grad_act", 276.0)):
        found = outcome(GROUP | {"direction": direction, "tflops": str(measured)})
        assert found.error is not None
        assert abs(found.error) < 0.2
        assert any("bound by the host" in said for said in found.assumed)


def test_few_large_groups_are_priced_as_one_product() -> None:
    found = outcome(GROUP | {"m": "9832", "n": "3072", "k": "5120", "groups": "40", "tflops": "1068"})
    assert found.error is not None
    assert abs(found.error) < 0.1
    assert not any("bound by the host" in said for said in found.assumed)


def test_unfused_attention_is_several_kernels_and_slower_than_fused() -> None:
    row = {
        "source": "a chart",
        "gpu": "A100-80GB-SXM4",
        "op": "attention",
        "batch": "4",
        "dtype": "fp16",
        "seq_len": "4096",
        "heads": "32",
        "head_dim": "64",
        "causal": "0",
        "direction": "fwd+bwd",
        "tflops": "45",
    }
    unfused = outcome(row | {"software": "PyTorch unfused"}).predicted
    fused = outcome(row | {"software": "FlashAttention-2"}).predicted
    assert unfused is not None
    assert fused is not None
    assert 2.0 * unfused < fused


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"op": "convolution"}, "'convolution' is not modelled"),
        ({"op": "transformer_layer", "tflops": "200"}, "which operations were counted"),
        ({"direction": "sideways", "time_ms": "1"}, "'sideways' is neither fwd nor bwd"),
        ({"heads": "7", "time_ms": "1"}, "must divide the model's heads"),
    ],
)
def test_a_kernel_that_is_not_predicted_says_why(changes: dict[str, str], why: str) -> None:
    found = outcome(LAYER | changes)
    assert found.predicted is None
    assert why in found.reason


def test_the_page_shows_points_worst_rows_and_what_was_fitted_on_what(tmp_path: Path) -> None:
    table = tmp_path / "kernels.csv"
    lines = [",".join(GROUP) + ",tflops"]
    lines += [",".join((GROUP | {"m": m}).values()) + f",{t}" for m, t in (("154", 261), ("1232", 894), ("9832", 1001))]
    table.write_text("\n".join(lines) + "\n")
    read = load_table(str(table), "gemm")
    validation = Validation(table=read, outcomes=tuple(o for some in read.outcomes() for o in some))
    page = write_validation_page(validation, tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "tflops: 3 points" in page
    assert "The row farthest off in each group" in page
    assert "<summary>gemm_blackwell</summary>" in page
    assert "http" not in page.split("<details>")[0]
