"""`dtsim measure`: what it writes is what calibrate reads; without torch one sentence; the whole chain on a processor."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.calibration.collectives.judge.machine import Machine, place_table
from simulator.calibration.collectives.read.log_file import read_log
from simulator.calibration.kernels.attention import read_attention_csv
from simulator.calibration.kernels.gemm import read_gemm_csv
from simulator.calibration.kernels.memory_bound import read_memory_csv
from simulator.errors import CalibrationError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.probes.collectives import format_table
from simulator.probes.kernels import write_rows
from simulator.probes.machine import machine_files
from simulator.probes.torch_device import Device

HAS_TORCH = importlib.util.find_spec("torch") is not None
PROCESSOR = Device(kind="cpu", name="this_machine", count=2, units=1, memory=2.0**33, software="torch 2.13.0")
H100S = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", count=8, units=132, memory=80e9, software="torch 2.13.0")
RECORDED = [(1024, 16.1e-6), (65536, 21.0e-6), (2**20, 38.2e-6), (2**26, 329.1e-6), (2**30, 4110.0e-6)]
"""(bytes, seconds) of an all_reduce over 8 H100 GPUs."""


@pytest.fixture
def dtsim(dtsim: Any, here: Path) -> Any:
    """The command, run in an empty folder."""
    return dtsim


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_recorded_collectives_are_read_back_with_their_machine(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"nccl_{kind}.txt"
    path.write_text(format_table(kind, list(RECORDED), H100S, "torch 2.13.0, nccl"))
    (found,) = read_log(path)
    placed = place_table(found, Machine())
    assert (kind, 8, 1) == (placed.kind, placed.place.ranks, placed.place.nodes)
    assert ("hopper", "nvlink") == (placed.fabric.architecture, placed.fabric.intra)
    assert [s for s, _ in RECORDED] == [row.message for row in found.rows]
    assert [t for _, t in RECORDED] == pytest.approx([row.seconds[0] for row in found.rows], rel=1e-3)


def test_tables_of_kernels_are_read_back(tmp_path: Path) -> None:
    common = {"source": "here", "gpu": "this_machine", "dtype": "fp32", "time_ms": "2.5", "software": "torch"}
    gemm = common | {"op": "gemm", "m": 512, "n": 256, "k": 128, "batch": 1, "layout": "NT", "tflops": "0.1"}
    attention = common | {
        "op": "attention", "batch": 1, "heads": 4, "kv_heads": 4, "seq_len": 256, "head_dim": 64, "causal": 1,
        "direction": "bwd",
    }  # fmt: skip
    memory = [common | {"op": op, "bytes": 4096} for op in ("copy", "launch")]
    write_rows([gemm, attention, *memory], tmp_path / "all.csv")
    (product,) = read_gemm_csv(tmp_path / "all.csv")
    assert ((1, 512, 256, 128), "NT", 0.0025) == (product.shape, product.layout, pytest.approx(product.seconds))
    (kernel,) = read_attention_csv(tmp_path / "all.csv")
    assert ("backward", True, (1, 4, 4, 256, 64)) == (kernel.direction, kernel.causal, kernel.shape)
    (moved,) = read_memory_csv(tmp_path / "all.csv")
    assert ("copy", 4096) == (moved.op, moved.traffic)


def test_a_processor_becomes_a_cluster_that_can_be_predicted(dtsim: Any, tmp_path: Path) -> None:
    for kind, text in machine_files(PROCESSOR, peak=1.0e11, rate=2.0e10).items():
        folder = tmp_path / "hardware_specs" / kind
        folder.mkdir(parents=True)
        (folder / "this_machine.toml").write_text(text)
    cluster = load_cluster("this_machine")
    assert (2, 1.0e11, 2.0e10) == (cluster.world_size, cluster.gpu.peak("fp32"), cluster.gpu.memory_bandwidth)
    code, out, err = dtsim(
        "collective", "all_reduce", "--size", "1MiB", "--cluster", "this_machine", "--ranks", "2", "--json"
    )
    assert 0 == code, err
    assert 0 < json.loads(out)["time_s"]["value"] < 1


def test_an_unknown_kind_is_refused(dtsim: Any) -> None:
    code, _, err = dtsim("measure", "weather")
    assert (2, True) == (code, "gemm, attention, memory, nccl, overlap, machine" in err)


def test_without_torch_one_sentence_says_what_to_install(
    dtsim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if HAS_TORCH:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = dtsim("measure", "gemm", "--output", "mine")
    assert (2, "") == (code, out)
    assert "pip install torch" in err
    assert 1 == len(err.splitlines())
    assert not (tmp_path / "mine").exists()
    assert "torch" not in sys.modules or HAS_TORCH


@pytest.mark.parametrize(
    ("kind", "file"),
    [("gemm", "gemm.csv"), ("nccl", "nccl_all_reduce.txt"), ("machine", "hardware_specs/gpus/this_machine.toml")],
)
def test_earlier_measurements_are_kept_unless_told(
    dtsim: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, file: str
) -> None:
    def measured() -> None:
        raise SpecError("no device, but asked for one")

    monkeypatch.setattr("simulator.probes.torch_device.require_torch", lambda: None)
    monkeypatch.setattr("simulator.probes.torch_device.find_device", measured)
    (tmp_path / "mine" / file).parent.mkdir(parents=True)
    (tmp_path / "mine" / file).write_text("earlier")
    code, _, error = dtsim("measure", kind, "--output", "mine")
    assert (2, True, True) == (code, file in error, "--force" in error)
    assert "no device, but asked for one" in dtsim("measure", kind, "--output", "mine", "--force")[2]
    assert "earlier" == (tmp_path / "mine" / file).read_text()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch: pip install torch")
def test_measure_calibrate_predict_compare_on_a_processor(dtsim: Any, tmp_path: Path) -> None:
    for kind in ("machine", "gemm", "attention", "memory", "nccl", "overlap"):
        code, _, err = dtsim("measure", kind, "--output", ".", "--quick")
        assert 0 == code, err
    folder = "hardware_specs/calibrations"
    logs = ["nccl_all_reduce.txt", "nccl_all_gather.txt"]
    for arguments in (
        ("gemm", "gemm.csv", "--output", f"{folder}/gemm_this_machine.toml"),
        ("attention", "attention.csv", "--output", f"{folder}/attention_this_machine.toml"),
        ("memory", "memory.csv", "--output", f"{folder}/memory_bound_this_machine.toml"),
        ("nccl", *logs, "--cluster", "this_machine", "--all", "--output", f"{folder}/nccl_this_machine.toml"),
    ):
        code, _, err = dtsim("calibrate", *arguments)
        assert 0 == code, err
    code, out, err = dtsim("validate", "gemm.csv", "--kind", "gemm", "--json")
    assert 0 == code, err
    summary = json.loads(out)["summary"]
    assert summary["n"] == summary["n_predicted"]
    assert summary["median_ape"] < 50
    code, out, err = dtsim("run", "--model", "gpt3_125m", "--cluster", "this_machine", "--json")
    assert 0 == code, err
    assert json.loads(out)["step_time_s"]["value"] > 0


def test_a_row_that_cannot_be_read_is_named_by_its_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.csv"
    path.write_text("# by hand\n# twice\nop,bytes,time_ms\n# a pause\ncopy,1e9,1\ncopy,none,1\n")
    with pytest.raises(CalibrationError, match=r"memory\.csv, line 6: could not convert"):
        read_memory_csv(path)
