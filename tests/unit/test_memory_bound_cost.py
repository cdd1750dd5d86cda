"""What a user relies on in the price of a kernel that only moves data."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.costs.gemm import gemm_seconds
from simulator.costs.memory_bound import memory_bound_calibrated, memory_bound_seconds, memory_bound_sigma
from simulator.errors import ProgramError
from simulator.hardware.compute_coefficients import load_gemm_coefficients, load_memory_bound_coefficients
from simulator.hardware.gpu import load_gpu


def seconds(read, written, gpu="a100_80gb_sxm"):
    device = load_gpu(gpu)
    return memory_bound_seconds(read, written, device, load_memory_bound_coefficients(device))


@pytest.mark.parametrize(
    ("gpu", "triad"), [("a100_80gb_sxm", 1.70e12), ("h100_80gb_sxm", 2.97e12), ("h200_141gb_sxm", 4.15e12)]
)
def test_large_kernels_reach_the_published_triad(gpu, triad):
    # Azure/AI-benchmarking-guide.
    moved = 8e9
    assert triad == pytest.approx(moved / float(seconds(moved * 2 / 3, moved / 3, gpu)), rel=0.03)


def test_a_kernel_of_a_megabyte_is_mostly_fixed_time():
    assert 3e-6 < float(seconds(0.5e6, 0.5e6)) < 6e-6


def test_reads_and_writes_count_alike_and_arrays_work():
    found = seconds([1e9, 0.0, 0.0], [0.0, 1e9, 0.0])
    assert found[0] == found[1]
    assert found[2] == 0.0
    assert np.all(found >= 0.0)


def test_negative_bytes_are_refused():
    with pytest.raises(ProgramError, match="at least 0 bytes, got -1"):
        seconds([-1.0], [0.0])


def test_the_band_is_wider_on_gpus_nobody_measured():
    a100, v100 = load_gpu("a100_80gb_sxm"), load_gpu("v100_32gb_sxm3")
    known, guessed = load_memory_bound_coefficients(a100), load_memory_bound_coefficients(v100)
    assert memory_bound_calibrated(a100, known)
    assert not memory_bound_calibrated(v100, guessed)
    assert memory_bound_sigma(a100, known) < memory_bound_sigma(v100, guessed)


def test_second_readings_and_copies_for_a_kernel_cost_only_where_they_are_not_measured_within_others():
    """A norm's second reading is within the measured share of Hopper's norms; it is extra on A100."""

    def cost(gpu):
        device = load_gpu(gpu)
        return float(
            memory_bound_seconds([1e9], [0.0], device, load_memory_bound_coefficients(device), ["norm sums"])[0]
        )

    assert cost("h100_80gb_sxm") == cost("b200_sxm") == 0.0 < cost("a100_80gb_sxm")


def test_small_kernels_gathers_and_losses_are_slower_than_a_stream_where_that_was_measured():
    b200 = load_gpu("b200_sxm")
    numbers = load_memory_bound_coefficients(b200)

    def speed(access):
        return 2e9 / float(memory_bound_seconds([1e9], [1e9], b200, numbers, [access])[0])

    # MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json: shares of 8 TB/s, counted in binary units.
    assert 0.5008 * 8 * 1.0737e12 == pytest.approx(speed("gather"), rel=0.02)
    assert 0.3246 * 8 * 1.0737e12 == pytest.approx(speed("loss"), rel=0.02)
    assert speed("layer backward") < speed("loss") < speed("gather") < speed("layer") < speed("")
    assert speed("") == speed("stream")
    a100 = load_gpu("a100_80gb_sxm")
    same = load_memory_bound_coefficients(a100)
    alone = memory_bound_seconds([1e9, 1e9], [0.0, 0.0], a100, same, ["layer", ""])
    assert alone[0] == alone[1]


def test_norms_forward_and_backward_take_the_measured_time():
    # NVIDIA/cudnn-frontend, benchmark/norms/results: RMSNorm of 8192 x 8192 in bf16, PyTorch, H200 0.102 + 0.260 ms, GB200
    # 0.054 + 0.177 ms; torch.compile 0.064 + 0.236 and 0.044 + 0.163 ms.
    tensor = 2 * 8192 * 8192.0
    for name, eager, compiled in (("h200_141gb_sxm", 0.362e-3, 0.300e-3), ("gb200", 0.231e-3, 0.207e-3)):
        gpu = load_gpu(name)
        ways = ["layer", "layer backward"]
        found = memory_bound_seconds(
            [2 * tensor, 3 * tensor], [0.0, 0.0], gpu, load_memory_bound_coefficients(gpu), ways
        )
        assert float(found.sum()) == pytest.approx((eager + compiled) / 2, rel=0.15)
        assert 1.5 * found[0] < found[1]


def test_transposed_copies_cost_time_only_where_products_take_one_layout():
    times = {}
    for name in ("h100_80gb_sxm", "b200_sxm"):
        gpu = load_gpu(name)
        numbers = load_memory_bound_coefficients(gpu)
        times[name] = memory_bound_seconds([0.0, 1e9], [1e9, 1e9], gpu, numbers, ["transposed", "cast"])
    assert times["b200_sxm"][0] == 0.0 < times["b200_sxm"][1]
    assert 0.4 < times["h100_80gb_sxm"][0] / times["h100_80gb_sxm"][1] < 0.6


@pytest.mark.parametrize(("gpu", "share"), [("h200_141gb_sxm", 0.70), ("b300_sxm", 0.63)])
def test_casts_reach_the_share_of_the_bandwidth_that_transformer_engine_measured(gpu, share):
    device = load_gpu(gpu)
    time = memory_bound_seconds([2e10], [1e10], device, load_memory_bound_coefficients(device), ["cast"])[0]
    assert 3e10 / time / device.memory_bandwidth == pytest.approx(share, rel=0.02)


def core_backward_seconds(name, maps, tokens, head):
    """Of PyTorch's attention with its scores in memory: four products and the softmax."""
    gpu = load_gpu(name)
    gemm, memory = load_gemm_coefficients(gpu), load_memory_bound_coefficients(gpu)
    wide, deep = (maps, tokens, tokens, head), (maps, tokens, head, tokens)
    products = gemm_seconds([wide, deep, deep, deep], ["NN", "NT", "NN", "NT"], ["bf16"] * 4, [False] * 4, gpu, gemm)
    scores = float(maps * tokens * tokens)
    softmax = memory_bound_seconds([4 * scores], [2 * scores], gpu, memory, ["scores backward"])
    return float(products.sum() + softmax[0])


@pytest.mark.parametrize(
    ("gpu", "tokens", "teraflops"),
    [
        # Dao-AILab/flash-attention, pull request 2688 (H100) and issue 1589 (B200): 16,384 tokens, 32 heads of 64, no mask.
        ("h100_80gb_sxm", 2048, 65.18),
        ("h100_80gb_sxm", 4096, 68.12),
        ("h100_80gb_sxm", 8192, 69.67),
        ("b200_sxm", 2048, 168.6),
        ("b200_sxm", 4096, 178.36),
        ("b200_sxm", 8192, 176.59),
    ],
)
def test_attention_with_scores_in_memory_goes_backward_in_the_measured_time(gpu, tokens, teraflops):
    maps = 16384 // tokens * 32
    measured = 2.5 * 4.0 * 64 * maps * tokens**2 / (teraflops * 1e12)
    assert core_backward_seconds(gpu, maps, tokens, 64) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("name", "width", "forward", "both"),
    [
        ("a100_80gb_sxm", 4096, 0.1218, 0.4314),
        ("a100_80gb_sxm", 8192, 0.2576, 0.8296),
        ("a100_80gb_sxm", 16384, 0.5067, 1.6213),
    ],
)
def test_torchs_layer_norm_takes_the_published_time(name, width, forward, both):
    """Liger-Kernel, benchmark/data/all_benchmark_data.csv: LayerNorm in fp32 of 4,096 tokens; backward one kernel for dx, one for sums."""
    gpu = load_gpu(name)
    tensor = 4.0 * 4096 * width
    kernels = memory_bound_seconds(
        [tensor, 2 * tensor, 2 * tensor],
        [tensor, tensor, 0.0],
        gpu,
        load_memory_bound_coefficients(gpu),
        ["norm", "norm backward", "norm sums"],
    )
    assert [kernels[0], kernels.sum()] == pytest.approx([forward / 1e3, both / 1e3], rel=0.1)


@pytest.mark.parametrize(
    ("name", "access", "numbers", "moved", "milliseconds"),
    [
        ("a100_80gb_sxm", "plain", 2048 * 32768, 146, 6.91),
        ("h100_80gb_sxm", "plain", 2048 * 32768, 132, 3.63),
        ("a100_80gb_sxm", "strided", 40 * 256 * 16384, 50, 8.37),
        ("h100_80gb_sxm", "strided", 40 * 256 * 16384, 40, 2.93),
        ("h100_80gb_sxm", "strided", 8192 * 32768, 36, 4.57),
        ("t4_16gb", "plain", 4 * 4096 * 4096, 128, 36.3),
    ],
)
def test_plain_operations_take_the_published_time(name, access, numbers, moved, milliseconds):
    """Liger-Kernel, benchmark/data/all_benchmark_data.csv: RMSNorm, rotary embedding and SwiGLU without kernels of their own, both
    directions, by the bytes that their operations move for each number; the last by The-School-of-AI/LLM, pull request 514."""
    gpu = load_gpu(name)
    size = float(numbers * moved)
    found = float(memory_bound_seconds([size], [0.0], gpu, load_memory_bound_coefficients(gpu), [access])[0])
    assert found == pytest.approx(milliseconds / 1e3, rel=0.15)
