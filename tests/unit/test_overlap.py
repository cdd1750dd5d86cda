"""`dtsim calibrate overlap`: from recorded slowdowns to an interference file that a cluster names, and the whole chain."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.calibration.kernels.overlap import calibrate_overlap, read_overlap_csv
from simulator.costs.price import price
from simulator.costs.tables import machine_of
from simulator.errors import CalibrationError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.gpu import load_gpu
from simulator.hardware.interference import load_interference
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.probes.collectives import format_table
from simulator.probes.machine import machine_files
from simulator.probes.overlap import write_overlap
from simulator.probes.torch_device import Device
from simulator.program.prices import RESOURCE_KINDS
from simulator.program.program import Link
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

PROCESSOR = Device(kind="cpu", name="this_machine", count=2, units=1, memory=2.0**33, software="torch 2.13.0")
GLOO = {
    2**10: 88e-6,
    2**12: 92e-6,
    2**14: 110e-6,
    2**16: 190e-6,
    2**18: 420e-6,
    2**20: 1.3e-3,
    2**22: 5.2e-3,
    2**24: 21e-3,
}
"""{bytes: seconds} of an all_reduce of gloo over two processes, of the order that two cores show."""


def rows(gpu: str, lost: float = 1.2, units: int = 132, copy: float = 1.08) -> list[dict[str, Any]]:
    """Return a table as `dtsim measure overlap` writes it: a copy, and multiprocessors held."""
    found = [("copy", copy), *((f"{k} multiprocessors", 1 / (1 - lost * k / units)) for k in (4, 8, 16, 24, 32, 48))]
    return [
        {
            "gpu": gpu,
            "kind": "gemm",
            "beside": beside,
            "alone_s": "0.0016",
            "beside_s": f"{0.0016 * slow:.6g}",
            "slowdown": f"{slow:.4g}",
            "software": "torch 2.13.0",
        }
        for beside, slow in found
    ]


@pytest.fixture
def dtsim(dtsim: Any, here: Path) -> Any:
    """The command, run in an empty folder."""
    return dtsim


def test_held_multiprocessors_become_the_slowdown_beside_a_collective(tmp_path: Path) -> None:
    write_overlap(rows("h100_80gb_sxm"), tmp_path / "overlap.csv")
    found = calibrate_overlap([tmp_path / "overlap.csv"], "", "interference_mine")
    assert 1.2 == pytest.approx(found.lost, abs=1e-3)
    slowdown = found.interference.slowdown["gemm"]
    assert 1 / (1 - 1.2 * 24 / 132) == pytest.approx(slowdown["tp"], abs=1e-3), "24 channels inside a node of H100"
    assert 1 / (1 - 1.2 * 16 / 132) == pytest.approx(slowdown["dp"], abs=1e-3)
    assert (1.08, True) == (pytest.approx(slowdown["copy"], abs=1e-3), 1 < slowdown["pp"] < slowdown["dp"])
    assert slowdown == found.interference.slowdown["memory"]
    assert (7, True) == (found.interference.points, found.interference.residual_p95 < 0.001)  # type: ignore[operator]


def test_noise_below_one_is_no_speedup_and_is_noticed(tmp_path: Path) -> None:
    write_overlap(rows("h100_80gb_sxm", lost=0.0, copy=0.97), tmp_path / "overlap.csv")
    found = calibrate_overlap([tmp_path / "overlap.csv"], "", "interference_mine")
    assert {1.0} == set(found.interference.slowdown["gemm"].values())
    assert any("noise" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"beside": "a friend"}, "line 2: beside must be 'copy'"),
        ({"kind": "weather"}, "kind must be gemm or memory"),
        ({"alone_s": "0"}, "above zero"),
        ({"beside_s": "nan"}, "above zero"),
        ({"beside_s": "fast"}, "must be numbers"),
        ({"beside_s": "16"}, "below 100"),
        ({"alone_s": "1e308"}, "above 0.01"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_line(tmp_path: Path, change: dict[str, str], why: str) -> None:
    write_overlap([rows("h100_80gb_sxm")[0] | change], tmp_path / "overlap.csv")
    with pytest.raises(CalibrationError, match=why):
        read_overlap_csv(tmp_path / "overlap.csv")


def test_a_bad_table_costs_one_line_and_the_good_one_is_used(dtsim: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("size,time\n1,2\n")
    write_overlap(rows("h100_80gb_sxm"), tmp_path / "overlap.csv")
    code, out, err = dtsim("calibrate", "overlap", "bad.csv", "overlap.csv", "--output", "interference_mine.toml")
    assert (0, True) == (code, "bad.csv: expected the table of dtsim measure overlap" in out), err
    code, _, err = dtsim("calibrate", "overlap", "bad.csv", "--output", "interference_other.toml")
    assert (2, True) == (code, "no table could be used" in err)
    code, _, err = dtsim("calibrate", "overlap", "overlap.csv", "--output", "mine.toml")
    assert (2, True) == (code, "interference_" in err)
    write_overlap(rows("h100_80gb_sxm") + rows("b200_sxm"), tmp_path / "two.csv")
    code, _, err = dtsim("calibrate", "overlap", "two.csv", "--output", "interference_two.toml")
    assert (2, True) == (code, "one device" in err)
    write_overlap(rows("my gpu"), tmp_path / "unknown.csv")
    assert 2 == dtsim("calibrate", "overlap", "unknown.csv", "--output", "interference_two.toml")[0]
    assert (
        0
        == dtsim("calibrate", "overlap", "unknown.csv", "--gpu", "h200_141gb_sxm", "--output", "interference_two.toml")[
            0
        ]
    )


def test_a_cluster_names_its_interference_and_a_step_feels_it(dtsim: Any, tmp_path: Path) -> None:
    write_overlap(rows("h100_80gb_sxm", lost=2.0), tmp_path / "overlap.csv")
    folder = "hardware_specs/calibrations"
    code, _, err = dtsim("calibrate", "overlap", "overlap.csv", "--output", f"{folder}/interference_mine.toml")
    assert 0 == code, err
    assert 'calibration = ["interference_mine"]' in err
    seconds = []
    for calibration in ("[]", '["interference_mine"]'):
        (tmp_path / "mine.toml").write_text(
            f'name = "mine"\nnode = "hgx_h100"\nnodes = 2\ncalibration = {calibration}\n[sources]\n"*" = "a test"\n'
        )
        ask = ("run", "--model", "gpt3_1_3b", "--cluster", "mine.toml", "--set", "workload.global_batch_size=64")
        code, out, err = dtsim(*ask, "--set", "plan.overlap_gradients=true", "--json")
        assert 0 == code, err
        seconds.append(json.loads(out)["step_time_s"]["value"])
    assert seconds[0] < seconds[1] < 1.5 * seconds[0]


def test_a_name_that_is_no_file_is_an_error_of_the_cluster(dtsim: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="interference_none"):
        load_interference(load_gpu("h100_80gb_sxm"), "interference_none")


def test_measure_calibrate_predict_compare_with_recorded_output(dtsim: Any, tmp_path: Path) -> None:
    """The chain of the README on one processor: everything but the measuring itself, whose output stands here."""
    for kind, text in machine_files(PROCESSOR, peak=1.0e11, rate=2.0e10).items():
        path = tmp_path / "hardware_specs" / kind / "this_machine.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for kind, part in (("all_reduce", 1.0), ("all_gather", 0.6)):
        times = [(float(size), part * seconds) for size, seconds in GLOO.items()]
        (tmp_path / f"nccl_{kind}.txt").write_text(format_table(kind, times, PROCESSOR, "torch 2.13.0, gloo"))
    write_overlap([rows("this_machine", copy=1.3)[0]], tmp_path / "overlap.csv")
    folder = "hardware_specs/calibrations"
    for arguments in (
        ("nccl", "nccl_all_reduce.txt", "nccl_all_gather.txt", "--cluster", "this_machine", "--all",
         "--output", f"{folder}/nccl_this_machine.toml"),
        ("overlap", "overlap.csv", "--output", f"{folder}/interference_this_machine.toml"),
    ):  # fmt: skip
        code, _, err = dtsim("calibrate", *arguments)
        assert 0 == code, err
    path = tmp_path / "hardware_specs" / "clusters" / "this_machine.toml"
    named = 'calibration = ["nccl_this_machine", "interference_this_machine"]\n\n[sources]'
    path.write_text(path.read_text().replace("[sources]", named))
    ask = ("collective", "all_reduce", "--cluster", "this_machine", "--ranks", "2", "--json")
    code, out, err = dtsim(*ask, "--size", ",".join(f"{size}B" for size in GLOO))
    assert 0 == code, err
    answer = json.loads(out)["rows"]
    far = [abs(row["time_s"]["value"] / seconds - 1) for row, seconds in zip(answer, GLOO.values(), strict=True)]
    assert float(np.median(far)) < 0.1
    assert {"nccl_this_machine"} == {row["provenance"]["calibration"] for row in answer}
    slow = machine_of(load_cluster("this_machine")).slowdown
    gemm = slow[RESOURCE_KINDS.index("gemm")]
    assert [1.3] * 3 == pytest.approx([gemm[RESOURCE_KINDS.index(name)] for name in ("tp", "dp", "copy")], abs=1e-3)
    profile = tomllib.loads((tmp_path / folder / "interference_this_machine.toml").read_text())
    assert ["this_machine"] == profile["measured"]
    code, out, err = dtsim("run", "--model", "gpt3_125m", "--cluster", "this_machine", "--json")
    assert 0 == code, err
    assert json.loads(out)["step_time_s"]["value"] > 0


@pytest.mark.parametrize(
    ("cluster", "wires", "slowed"),
    [
        ("mi300x_x8", "dp", 1.7),
        ("a100_x8", "dp", 1.189),
        ("a100_x8", "tp", 1.76),
        ("h100_x8", "tp", 1.76),
        ("hgx_b200", "tp", 1.189),
    ],
)
def test_collectives_slow_what_runs_beside_them_by_the_chip_and_the_wires(
    cluster: str, wires: str, slowed: float
) -> None:
    """MI300X gains a fifth of what hiding a collective would gain (arXiv 2412.14335); A100's products in NVIDIA/nccl issue 1428."""
    slowdown = machine_of(load_cluster(cluster)).slowdown
    kinds = RESOURCE_KINDS.index("gemm"), RESOURCE_KINDS.index(wires)
    assert slowdown[kinds] == slowed


@pytest.mark.parametrize(
    ("cluster", "gpus", "wires"),
    [("dgx_h100", 8, "tp"), ("dgx_h100", 16, "dp"), ("a40_x8", 8, "dp"), ("gb200_nvl72", 16, "tp")],
)
def test_a_collective_that_nothing_holds_up_slows_more_than_one_on_a_network(
    cluster: str, gpus: int, wires: str
) -> None:
    """Over NVLink it moves as fast as its multiprocessors can; a network or PCIe holds it up."""
    work = Workload(model=load_model("gpt3_1_3b"), sequence_length=2048, global_batch_size=gpus)
    program = lower(work, Plan(zero_stage=3, framework="torchtitan"), gpus)
    prices = price(program, load_cluster(cluster, gpus))
    gathers = [i for i, item in enumerate(program.items) if isinstance(item, Link) and item.collective == "all_gather"]
    assert gathers
    assert np.all(prices.share[gathers][:, RESOURCE_KINDS.index(wires)] == 1.0)
