"""`dtsim calibrate` and `dtsim collective` over sizes: what is written, what changes, what is refused."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simulator.calibration.kernels.attention import (
    attention_errors,
    fit_attention,
    leave_shapes_out,
    read_attention_csv,
)
from simulator.calibration.kernels.residuals import rounded_residuals
from simulator.costs.desk import desk_of
from simulator.costs.tables import machine_of
from simulator.hardware.compute_coefficients import AttentionCoefficients
from simulator.hardware.gpu import load_gpu
from simulator.specs import load_named
from simulator.units import parse
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data"
RAW = DATA / "nccl_raw"
H100_LOG = DATA / "nccl_logs" / "h100_1x8_dgxc_all_reduce.csv"


@pytest.fixture
def dtsim(dtsim: Any, here: Path) -> Any:
    """The command, run in an empty folder."""
    return dtsim


def test_a_profile_holds_residuals_hashes_versions_and_date(dtsim: Any, tmp_path: Path) -> None:
    code, out, err = dtsim("calibrate", "nccl", str(RAW / "reduce_with_root.txt"), "--output", "nccl_mine.toml")
    assert 0 == code, err
    profile = tomllib.loads((tmp_path / "nccl_mine.toml").read_text())
    assert "nccl_mine" == profile["name"]
    assert {"architecture": "ampere", "intra": "nvlink", "network": "", "peer_to_peer": True} == profile["applies_to"]
    assert 0 < profile["everything"]["residual_p50"] < profile["everything"]["residual_p95"]
    assert ["reduce_with_root"] == list(profile["logs"])
    assert 16 == len(profile["logs"]["reduce_with_root"])
    assert "20" in profile["sources"]["*"]
    assert "dtsim 0" in profile["sources"]["*"]
    assert "reduce_with_root" in out
    assert "ring:simple" in out


def test_a_profile_changes_the_predictions_of_a_cluster_that_names_it(dtsim: Any, tmp_path: Path) -> None:
    """A node whose links run at half speed: after calibration its own time is predicted, elsewhere nothing changes."""
    with H100_LOG.open() as file:
        rows = [(float(row["size_bytes"]), float(row["time_us"])) for row in csv.DictReader(file)]
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [
        f"{s:.0f} {s / 4:.0f} float sum -1 {2 * t:.2f} {s / 2e3 / t:.2f} {1.75 * s / 2e3 / t:.2f} 0" for s, t in rows
    ]
    (tmp_path / "slow.log").write_text("\n".join(lines))
    folder = tmp_path / "hardware_specs"
    (folder / "clusters").mkdir(parents=True)
    (folder / "clusters" / "mine.toml").write_text('name = "mine"\nnode = "hgx_h100"\ncalibration = ["nccl_mine"]\n')
    (folder / "clusters" / "other.toml").write_text(
        'name = "other"\nnode = "hgx_h100"\ncalibration = ["nccl_hopper_nvlink"]\n'
    )

    def seconds(cluster: str) -> float:
        ask = ("collective", "all_reduce", "--size", "1GiB", "--ranks", "8", "--json", "--cluster")
        return float(json.loads(dtsim(*ask, cluster)[1])["time_s"]["value"])

    before = seconds("other")
    code, _, err = dtsim(
        "calibrate", "nccl", "slow.log", "--cluster", "other", "--ranks", "8", "--nodes", "1",
        "--output", "hardware_specs/calibrations/nccl_mine.toml",
    )  # fmt: skip
    assert 0 == code, err
    measured = 2e-6 * next(t for s, t in rows if s == 2**30)
    assert measured == pytest.approx(seconds("mine"), rel=0.06)
    assert before == pytest.approx(seconds("other"), rel=1e-9)

    def step(cluster: str) -> float:
        job = ("run", "--model", "gpt3_1_3b", "--cluster", cluster, "--set", "cluster.gpus=8")
        plan = (
            "--set",
            "plan.tensor_parallel=8",
            "--set",
            "workload.global_batch_size=8",
            "--set",
            "plan.microbatch_size=4",
            "--json",
        )
        return float(json.loads(dtsim(*job, *plan)[1])["step_time_s"]["value"])

    assert step("mine") > 1.02 * step("other")


def test_bad_logs_are_told_and_the_good_ones_used(dtsim: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "train.log").write_text("epoch 1 loss 3.2\n")
    logs = ["empty.log", str(RAW / "reduce_with_root.txt"), "train.log"]
    code, out, err = dtsim("calibrate", "nccl", *logs, "--output", "nccl_mine.toml", "--json")
    assert 0 == code, err
    answer = json.loads(out)
    assert ["reduce_with_root"] == [log["log"] for log in answer["profiles"][0]["logs"]]
    assert ["empty.log", "train.log"] == [line.split(":")[0] for line in answer["left_out"]]


def test_logs_of_several_platforms_become_several_profiles(dtsim: Any, tmp_path: Path) -> None:
    code, _, err = dtsim(
        "calibrate", "nccl", str(RAW / "reduce_with_root.txt"), str(H100_LOG), "--output", "nccl_mine.toml"
    )
    assert 0 == code, err
    written = {path.name: tomllib.loads(path.read_text()) for path in tmp_path.glob("*.toml")}
    assert "hopper" == written["nccl_mine.toml"]["applies_to"]["architecture"]
    assert "ampere" == written["nccl_mine_ampere_nvlink.toml"]["applies_to"]["architecture"]


def test_nothing_is_overwritten_without_force(dtsim: Any, tmp_path: Path) -> None:
    (tmp_path / "nccl_mine.toml").write_text("mine")
    ask = ("calibrate", "nccl", str(RAW / "reduce_with_root.txt"), "--output", "nccl_mine.toml")
    code, _, err = dtsim(*ask)
    assert (2, True) == (code, "--force" in err)
    assert "mine" == (tmp_path / "nccl_mine.toml").read_text()
    assert 0 == dtsim(*ask, "--force")[0]
    assert "mine" != (tmp_path / "nccl_mine.toml").read_text()


REFUSED = [
    (("nccl", "none.log", "--output", "p.toml"), "No such file"),
    (("nccl", "none.log"), "--output"),
    (("weather", "none.log", "--output", "p.toml"), "nccl, gemm"),
    (("nccl", "none.log", "--output", "p.json"), "TOML"),
    (("gemm", "none.csv", "--output", "p.toml", "--cluster", "dgx_h100"), "describe logs of nccl"),
    (("gemm", "none.csv", "--output", "p.toml"), "cannot be read"),
    (("nccl", str(RAW / "two_ranks_one_gpu.txt"), "--output", "p.toml"), "share one GPU"),
    (("nccl", str(RAW / "rccl.txt"), "--output", "p.toml"), "--nic"),
]


@pytest.mark.parametrize(("arguments", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_cannot_be_is_one_message(dtsim: Any, tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    code, out, err = dtsim("calibrate", *arguments)
    assert (2, "") == (code, out)
    assert why in err
    assert "Traceback" not in err
    assert [] == list(tmp_path.glob("*.toml"))


def test_a_gemm_profile_of_ones_own_gpu_is_found_and_changes_a_step(dtsim: Any, tmp_path: Path) -> None:
    """A GPU that multiplies at 40 % of its data sheet whatever the shape: the step grows accordingly."""
    lines = ["gpu,m,n,k,dtype,tflops"]
    sizes = (1024, 2048, 4096, 8192)
    lines += [f"a100_80gb_sxm,{m},{n},{k},bf16,{0.4 * 312}" for m in sizes for n in sizes for k in (1024, 4096)]
    (tmp_path / "gemm.csv").write_text("\n".join(lines))
    ask = ("run", "--model", "gpt3_1_3b", "--cluster", "dgx_a100", "--set", "cluster.gpus=1")
    ask += ("--set", "workload.global_batch_size=2", "--json")
    before = json.loads(dtsim(*ask)[1])["step_time_s"]["value"]
    code, out, err = dtsim(
        "calibrate", "gemm", "gemm.csv", "--output", "hardware_specs/calibrations/gemm_a100_80gb_sxm.toml"
    )
    assert 0 == code, err
    assert "issue_efficiency" in out
    for remembered in (machine_of, desk_of):  # one process remembers its machines; a new one reads the new file
        remembered.cache_clear()
    try:
        assert json.loads(dtsim(*ask)[1])["step_time_s"]["value"] > 1.3 * before
    finally:
        for remembered in (machine_of, desk_of):
            remembered.cache_clear()


def test_attention_and_memory_profiles_are_written_in_their_own_form(dtsim: Any, tmp_path: Path) -> None:
    lines = ["op,gpu,bytes,time_ms"]
    share, fixed = 0.7 * 2.039e12, 6e-6
    lines += [f"copy,a100_80gb_sxm,{2**p},{1e3 * (fixed + 2**p / share)}" for p in range(16, 31)]
    (tmp_path / "memory.csv").write_text("\n".join([*lines, "launch,a100_80gb_sxm,8,0.002"]))
    folder = "hardware_specs/calibrations"
    assert 0 == dtsim("calibrate", "memory", "memory.csv", "--output", f"{folder}/memory_bound_a100_80gb_sxm.toml")[0]
    fitted = tomllib.loads((tmp_path / folder / "memory_bound_a100_80gb_sxm.toml").read_text())
    assert 0.7 == pytest.approx(fitted["bandwidth_fraction"], abs=0.01)
    assert 6e-6 == pytest.approx(parse(fitted["start"], "s") + parse(fitted["ramp"], "s"), rel=0.05)
    rows = (DATA / "attention_measurements.csv").read_text().splitlines()
    mine = [row for row in rows if row.startswith(("table", "fa,a100"))]
    (tmp_path / "attention.csv").write_text("\n".join(mine))
    output = f"{folder}/attention_a100_80gb_sxm.toml"
    code, _, err = dtsim("calibrate", "attention", "attention.csv", "--output", output)
    assert 0 == code, err
    read = load_named("calibrations", "attention_a100_80gb_sxm", AttentionCoefficients)
    assert read.residuals.points == len(mine) - 1
    assert read.residuals.p50 < 0.05


SHIPPED = [
    ("ampere", "flash2", ("simu,a100", "fa,a100"), (128, 128), 0.05, "416 W"),
    ("hopper", "flash2", ("fa2_h100,", "fa,h100", "fa2_as_h100,"), (128, 128), 0.05, "971 W"),
    ("hopper", "cudnn", ("cudnn_919,h200", "cudnn_window,h200"), (128, 128), 0.05, "971 W"),
    ("hopper", "cudnn_2024", ("cudnn_9_h100,",), (128, 128), 0.05, "971 W"),
    (
        "blackwell",
        "cudnn",
        ("cudnn_913,", "simu,b200", "cudnn_919,gb200", "cudnn_window,gb200"),
        (256, 128),
        0.1,
        "2209 W",
    ),
    ("blackwell", "cudnn_mxfp8", ("cudnn_922,gb200,te_mxfp8",), (256, 128), 0.1, "2209 W"),
    ("blackwell_ultra", "cudnn", ("cudnn_919,gb300", "cudnn_922,gb300,te,"), (256, 128), 0.1, "2209 W"),
    ("blackwell_ultra", "cudnn_mxfp8", ("cudnn_922,gb300,te_mxfp8",), (256, 128), 0.1, "2209 W"),
]


@pytest.mark.parametrize(("architecture", "name", "tables", "tiles", "scale", "power"), SHIPPED)
def test_shipped_attention_numbers_are_made_again(
    tmp_path: Path, architecture: str, name: str, tables: tuple[str, ...], tiles: Any, scale: float, power: str
) -> None:
    wide = {"fastest": 2.6, "longest": 1500.0} if any("922" in table for table in tables) else {}
    rows = [r for r in (DATA / "attention_measurements.csv").read_text().splitlines() if not r.startswith("#")]
    path = tmp_path / "some.csv"
    path.write_text("\n".join([rows[0], *(row for row in rows if row.startswith(tables))]))
    found = read_attention_csv(path)
    gpus = {one.gpu: load_gpu(one.gpu) for one in found}
    shipped = load_named("calibrations", f"attention_{architecture}", AttentionCoefficients)
    clock = shipped.clock.model_copy(update={"full_clock_power": parse(power, "W")})
    like = shipped.model_copy(update={"clock": clock})
    kernel = fit_attention(found, like, gpus, tiles, scale, **wide)
    for direction in ("forward", "backward"):
        expected = getattr(shipped.kernels[name], direction).model_dump()
        assert expected == pytest.approx(getattr(kernel, direction).model_dump(), rel=0.01, abs=1e-3)
    if architecture == "ampere":
        errors = attention_errors(found, kernel, like, gpus)
        made = rounded_residuals(errors, leave_shapes_out(found, like, gpus, tiles, scale), shipped.residuals.date)
        assert shipped.residuals.model_dump() == pytest.approx(made.model_dump(), abs=5e-4)


def test_a_collective_over_sizes_is_a_table(dtsim: Any, tmp_path: Path) -> None:
    ask = ("collective", "all_reduce", "--cluster", "dgx_h100", "--ranks", "8")
    code, out, err = dtsim(*ask, "--sizes", "1MiB:1GiB", "--json", "--plot", "c.png")
    assert 0 == code, err
    rows = json.loads(out)["rows"]
    assert [2.0**p for p in range(20, 31)] == [row["message_bytes"] for row in rows]
    times = [row["time_s"]["value"] for row in rows]
    assert sorted(times) == times
    assert (tmp_path / "c.png").stat().st_size > 10_000
    single = json.loads(dtsim(*ask, "--size", "1GiB", "--json")[1])
    assert rows[-1] == {key: value for key, value in single.items()}
    several = json.loads(dtsim(*ask, "--size", "1MiB,1GiB", "--json")[1])["rows"]
    assert [rows[0], rows[-1]] == several


def test_a_bus_bandwidth_above_the_wires_is_explained(dtsim: Any) -> None:
    ask = ("collective", "all_reduce", "--size", "4GiB", "--cluster", "dgx_h100", "--ranks")
    assert "switch adds" in dtsim(*ask, "8")[1]
    assert "network share of 50 GB/s" in dtsim(*ask, "16")[1]
    assert (
        "above" not in dtsim("collective", "all_gather", "--size", "1GiB", "--cluster", "dgx_h100", "--ranks", "8")[1]
    )


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((), "how large"), (("--size", "1MiB", "--sizes", "1KiB:1MiB"), "not both"), (("--sizes", "1MiB"), "FROM:TO")],
)
def test_sizes_are_given_in_one_way(dtsim: Any, sizes: tuple[str, ...], why: str) -> None:
    code, _, err = dtsim("collective", "all_reduce", "--cluster", "dgx_h100", "--ranks", "8", *sizes)
    assert (2, True) == (code, why in err)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("4096,4096,4096,1e18,", "no fit comes near these measurements"),
        ("4096,4096,4096,300,0", "line 2: repeats are how often"),
    ],
    ids=["a time that no product has", "no repeats"],
)
def test_products_that_nothing_explains(
    dtsim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"h100_80gb_sxm,bf16,{line}\n" for line in (row, "2048,2048,2048,400,", "8192,8192,8192,600,"))
    Path("table.csv").write_text("gpu,dtype,m,n,k,tflops,repeats\n" + rows)
    code, out, error = dtsim("calibrate", "gemm", "table.csv", "--output", "new.toml")
    assert (2, "", True) == (code, out, why in error), error


def test_fits_are_not_judged_without_a_log(dtsim: Dtsim, tmp_path: Path) -> None:
    code, text, said = dtsim("calibrate", "nccl", str(tmp_path / "none.csv"), "--accuracy")
    assert (2, "") == (code, text)
    assert "no log is left to judge" in said
    assert "none.csv" in said
