"""`dtsim validate --kind gemm`: products, groups of products, attention and whole layers, predicted row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.accuracy.gemm import gemm_outcomes
from simulator.accuracy.scores import Outcome
from simulator.accuracy.validate import Validation, load_table
from simulator.html.validation import write_validation_page

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
    assert "://" not in page.split("<details>")[0]


@pytest.mark.parametrize(
    ("changes", "quantity", "measured"),
    [
        # chsasank/device-benchmarks: a copy; ROCm/TransformerEngine pull request 598: bf16 to mxfp8, by rows and by columns.
        ({"op": "copy", "gpu": "Nvidia 3090", "dtype": "fp32", "gbps": "831"}, "gbps", 831.0),
        (
            {"op": "quantize", "out_dtype": "mxfp8", "time_ms": "0.0523", "notes": "row-wise and column-wise"},
            "time_ms",
            0.0523,
        ),
    ],
)
def test_kernels_that_only_move_data_are_predicted_too(changes: dict[str, str], quantity: str, measured: float) -> None:
    row = {"gpu": "B200", "m": "8192", "n": "8192", "dtype": "bf16", "direction": "fwd", "software": "torch"}
    found = outcome(row | changes)
    assert found.quantity == quantity
    assert found.predicted == pytest.approx(measured, rel=0.15)


def test_a_norm_takes_longer_backward_and_a_cast_has_no_backward() -> None:
    row = {"op": "rms_norm", "gpu": "H200", "m": "8192", "n": "8192", "dtype": "bf16", "time_ms": "1"}
    forward, backward, both = (outcome(row | {"direction": name}).predicted for name in ("fwd", "bwd", "fwd+bwd"))
    assert forward is not None
    assert backward is not None
    assert both == pytest.approx(forward + backward)
    assert backward > 2.0 * forward
    assert "direction 'bwd' of quantize" in outcome(row | {"op": "quantize", "direction": "bwd"}).reason
    assert "gives no m or n" in outcome(row | {"m": ""}).reason


def test_a_kernel_on_a_card_of_two_dies_runs_on_one_of_them() -> None:
    row = {"op": "gemm", "gpu": "MI250", "m": "8192", "n": "8192", "k": "8192", "dtype": "fp16", "tflops": "120"}
    found = outcome(row)
    assert found.predicted is not None
    assert found.predicted < 181
    assert any("one of the two dies" in said for said in found.assumed)


def test_attention_in_eight_bits_is_faster_but_not_twice_as_fast() -> None:
    """Dao-AILab/flash-attention pull request 1075, H100 PCIe, FlashAttention-3: 605 TFLOP/s in fp8."""
    row = {
        "op": "attention",
        "gpu": "H100 PCIe",
        "batch": "8",
        "seq_len": "2048",
        "heads": "16",
        "head_dim": "128",
        "causal": "0",
    }
    row |= {"direction": "fwd", "software": "FlashAttention-3", "tflops": "605"}
    narrow, wide = (outcome(row | {"dtype": dtype}).predicted for dtype in ("fp8", "bf16"))
    assert narrow is not None
    assert wide is not None
    assert narrow == pytest.approx(605, rel=0.1)
    assert wide < narrow < 1.8 * wide


def test_short_and_masked_attention_in_pytorch_pays_for_its_copies() -> None:
    """FlashAttention's README, PyTorch on A100, head dimension 128, forward and backward: 53 and 86, with a mask 23 and 34 TFLOP/s."""
    row = {
        "source": "FlashAttention README charts",
        "gpu": "A100-80GB-SXM4",
        "op": "attention",
        "dtype": "fp16",
        "heads": "16",
    }
    row |= {"head_dim": "128", "direction": "fwd+bwd", "software": "PyTorch unfused", "tflops": "1"}
    for length, causal, measured in ((512, "0", 53), (8192, "0", 86), (512, "1", 23), (8192, "1", 34)):
        found = outcome(row | {"seq_len": str(length), "batch": str(16384 // length), "causal": causal})
        assert found.predicted == pytest.approx(measured, rel=0.25)
