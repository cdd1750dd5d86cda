"""Traces of PyTorch's profiler: steps, kernels by kind, and a prediction beside them."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from simulator import load_job, simulate_job
from simulator.errors import SpecError
from simulator.importers.jobs import import_file
from simulator.importers.kineto import kind_of_kernel
from simulator.report.kinds import kernel_seconds
from simulator.studies.measured_kernels import kernels_beside
from tests.command import Dtsim

STEP = 700_000.0
"""Microseconds."""


def event(name: str, start: float, length: float, category: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length} | more


def a_step(number: int) -> list[dict[str, Any]]:
    """A step as a GPU shows it; the processor is ahead and done after a tenth of the time."""
    begin = 1000.0 + number * STEP
    return [
        event(f"ProfilerStep#{number}", begin, STEP / 10, "user_annotation"),
        event("aten::mm", begin + 1, 5.0, "cpu_op", args={"Input Dims": [[8, 8], [8, 8]]}),
        event("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT", begin + 10, 300_000.0, "kernel", args={"stream": 7}),
        event("sm90_xmma_gemm_bf16bf16_bf16f32", begin + 300_020, 100_000.0, "kernel"),
        event("void flash_fwd_kernel<Flash_fwd_kernel_traits<...>>", begin + 400_100, 50_000.0, "kernel"),
        event(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            begin + 450_000,
            60_000.0,
            "kernel",
        ),
        event("void at::native::vectorized_elementwise_kernel<4, ...>", begin + 510_000, 40_000.0, "kernel"),
        event("Memcpy DtoD (Device -> Device)", begin + 560_000, 10_000.0, "gpu_memcpy"),
    ]


def trace(steps: int = 4, **more: Any) -> dict[str, Any]:
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for number in range(steps):
        events += a_step(number)
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": events} | more


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace()).encode()))
    return path


def test_steps_go_from_start_to_start_and_kernels_are_sorted_by_kind(file: Path) -> None:
    found = import_file(file)
    assert "kineto" == found.source_format
    assert (0.7,) * 3 == pytest.approx(found.steps.values)
    kinds = {one.kind: one for one in found.operations.rows}
    wanted = {"gemm": 0.4, "all_reduce": 0.06, "attention": 0.05, "memory_bound": 0.05}
    assert pytest.approx(wanted) == {kind: one.seconds for kind, one in kinds.items()}
    assert 2.0 == kinds["gemm"].count
    assert kinds["gemm"].longest.startswith("nvjet")


def test_steps_marked_on_the_gpu_go_from_start_to_start_too_once_for_all_streams(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    marks = [event(f"ProfilerStep#{n}", 1000.0 + n * STEP, 0.9 * STEP, "gpu_user_annotation") for n in range(3)]
    marks += [one | {"tid": 20, "ts": one["ts"] + 500, "dur": 0.1 * STEP} for one in marks]
    path.write_text(json.dumps(trace(3) | {"traceEvents": [*trace(3)["traceEvents"], *marks]}))
    found = import_file(path)
    assert (0.7, 0.7) == pytest.approx(found.steps.values)
    assert 0.4 == pytest.approx(found.operations.rows[0].seconds)


def test_a_collective_says_its_group_and_bytes_and_the_trace_its_gpus(tmp_path: Path) -> None:
    about = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16", "Group size": 8}
    about |= {"Process Group Name": "0", "Process Group Description": "default_pg"}
    kernel = event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)", 1000.0, 50.0, "kernel", args=about)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace(2) | {"traceEvents": [kernel, *a_step(0), *a_step(1)]}))
    found = import_file(path)
    row = next(one for one in found.operations.rows if one.group)
    assert ("all_reduce", "default_pg", 2000.0, 50e-6) == (row.kind, row.group, row.bytes, pytest.approx(row.seconds))
    assert {"default_pg": 8} == found.operations.groups
    assert {"gpus": 8} == found.tables["cluster"]
    assert any("'cpu_op'" in line.text for line in found.no_effect), "events that make nothing are listed"


def test_without_steps_the_whole_trace_is_one_and_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text(json.dumps([e for e in a_step(0) if "Profiler" not in e["name"]]))
    found = import_file(path)
    assert (0.57 - 0.00001,) == pytest.approx(found.steps.values, abs=1e-4)
    assert "profiler.step()" in found.assumed[0].why


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "gemm"),
        ("cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn_align8>", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("triton_poi_fused__to_copy_add_mul_silu_3", "memory_bound"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "memory_bound"),
    ],
)
def test_names_tell_kinds(name: str, kind: str) -> None:
    assert kind == kind_of_kernel(name)


def test_predicted_kernels_follow_the_program() -> None:
    prediction = simulate_job(load_job("gpt2_124m_1gpu"))
    found = kernel_seconds(prediction.program, prediction.prices)
    assert "all_reduce" not in found
    assert sum(found.values()) <= prediction.step_time * (1 + 1e-9)
    assert sum(found.values()) > 0.5 * prediction.step_time
    replicas = simulate_job(load_job("gpt2_124m_2gpu"))
    assert "all_reduce" in kernel_seconds(replicas.program, replicas.prices)


def test_a_run_beside_a_trace(dtsim: Dtsim, file: Path) -> None:
    job = ("run", "llama3_8b_fsdp_8xh100", "--measured", str(file))
    code, text, _ = dtsim(*job)
    assert (0, True) == (code, "kernels by kind" in text)
    answer = json.loads(dtsim(*job, "--json")[1])["measured"]
    assert 0.7 == pytest.approx(answer["step_time_s"])
    rows = {row["kind"]: row for row in answer["kernels"]}
    assert rows["gemm"]["measured_s"] > rows["attention"]["measured_s"] > 0
    assert rows["gemm"]["predicted_s"] > 0
    assert rows["reduce_scatter"]["measured_s"] == 0, "the trace has none, the plan does"
    beside = kernels_beside(import_file(file).operations.by_kind(), simulate_job(load_job("llama3_8b_fsdp_8xh100")))
    assert set(beside.to_frame()["kind"]) == set(rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(trace())[:-200], "cut off|no JSON"),
        (json.dumps({"traceEvents": []}), "no kernel of a GPU"),
        (json.dumps({"traceEvents": [event("aten::mm", 1, 2, "cpu_op")]}), "no kernel of a GPU"),
        ('{"traceEvents": [1, 2]}', "is a table"),
        ('{"traceEvents": {"a": 1}}', "no end|no JSON|is a table"),
        ('{"traceEvents": [' + '{"args": ' * 100_000 + "1", "no JSON"),
        ('{"traceEvents": [{"ph": "X", "ts": NaN', "no JSON|cut off"),
        (
            json.dumps(
                {"traceEvents": [event("gemm", 1, 2, "kernel"), event("ProfilerStep#1", 5, 0, "gpu_user_annotation")]}
            ),
            "no time",
        ),
        (json.dumps({"traceEvents": [event("gemm", "soon", True, "kernel")]}), "no kernel of a GPU"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_reason(dtsim: Dtsim, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        import_file(path)
    code, out, told = dtsim("run", "gpt2_124m_1gpu", "--measured", str(path))
    assert (2, "", False) == (code, out, "internal" in told)


def test_a_large_trace_is_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text(json.dumps(trace(steps=10_000)))
    began = time.process_time()
    assert 9_999 == len(import_file(path).steps.values)
    assert time.process_time() - began < 10
