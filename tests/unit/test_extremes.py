"""Numbers and names that nothing real has: one clear message, never a fault, a warning or the name in full."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from tests.command import Dtsim
from tests.rows import ROW

EXTREMES = ("1e308", "-1e308", "1e-308", "5e-324", "1e31", "nan", "inf")
GEMM = "gpu,model,batch,m,n,k,layout,dtype,out_dtype,accumulate,tflops,source,repeats\n"
KERNEL = "h100_80gb_sxm,x,{0},{0},4096,4096,TN,bf16,bf16,0,{1},test,{0}\n"


@pytest.fixture(autouse=True)
def _strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("error", RuntimeWarning)


def refused(result: tuple[int, str, str]) -> str:
    code, out, error = result
    assert (2, "") == (code, out), error
    assert error.startswith("error: ")
    assert len(error) < 3000
    return error


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("option", ["--forward", "--backward", "--input-grad", "--weight-grad", "--transfer"])
@pytest.mark.parametrize("schedule", ["auto", "1f1b", "zb_h1"])
def test_times_of_a_schedule(schedule: str, option: str, value: str, dtsim: Dtsim) -> None:
    said = refused(dtsim("schedule", schedule, "-p", "4", "-m", "4", f"{option}={value}"))
    assert "from 1e-30 to 1e30" in said


@pytest.mark.parametrize("value", ["1e30", "1e-30", "0"])
@pytest.mark.parametrize("schedule", ["auto", "1f1b", "zb_h1"])
def test_the_widest_times_that_are_taken(schedule: str, value: str, dtsim: Dtsim) -> None:
    code, out, error = dtsim(
        "schedule", schedule, "-p", "4", "-m", "4", "--forward", value, "--transfer", value, "--json"
    )
    assert 0 == code, error
    assert json.loads(out)["makespan"] > 0


@pytest.mark.parametrize("value", EXTREMES)
def test_cells_of_tables(value: str, dtsim: Dtsim, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(f"size_bytes,time_us\n1024,10\n2048,{value}\n{value},12\n")
    (tmp_path / "gemm.csv").write_text(GEMM + KERNEL.format("1", "500") * 3 + KERNEL.format(value, value))
    for kind, file, more in (
        ("nccl", "log.csv", ("--cluster", "dgx_h100", "--kind", "all_reduce")),
        ("gemm", "gemm.csv", ()),
    ):
        code, _, error = dtsim("calibrate", kind, file, *more, "--output", f"new_{kind}.toml")
        assert code in (0, 2), error
        assert "internal" not in error


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize(
    "column",
    [
        "arch_layers",
        "hidden",
        "seq_len",
        "gpu_peak_bf16_tflops",
        "gpu_mem_gb",
        "inter_gbps_per_gpu",
        "gbs",
        "step_time_s",
    ],
)
def test_cells_of_a_table_of_runs(column: str, value: str, dtsim: Dtsim, tmp_path: Path) -> None:
    row = {**ROW, "step_time_s": "5", "quality": "A", column: value}
    (tmp_path / "runs.csv").write_text(",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n")
    code, _, error = dtsim("validate", "runs.csv", "--kind", "runs", "--json")
    assert code in (0, 2), error
    assert "internal" not in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" + ".".join("a" * 5000) + "]\nb = 1", "is nested too deeply"),
        ("a = " + "[" * 60 + "]" * 60, "is nested too deeply"),
        ("a" * 900_000 + " = 1", "unknown key"),
        ('[workload]\n"' + "a" * 400_000 + '" = 1', "unknown key"),
        ("[workload]\nsequence_length = 1e300", "no number that anything has"),
    ],
)
def test_job_files(text: str, message: str, dtsim: Dtsim, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(text)
    assert message in refused(dtsim("run", "job.toml"))


@pytest.mark.parametrize("verb", ["nccl", "gemm", "attention", "memory", "overlap"])
def test_a_field_too_long_for_a_csv(verb: str, dtsim: Dtsim, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("gpu,size_bytes,time_us\nx,1," + "9" * 131_073 + "\n")
    names = {"overlap": "interference_new.toml"}
    said = refused(dtsim("calibrate", verb, "table.csv", "--output", names.get(verb, "new.toml")))
    assert "Traceback" not in said


def test_quantities(dtsim: Dtsim) -> None:
    for words in (
        ("run", "gpt2_124m_2gpu", "--measured", "5e-324us"),
        ("run", "gpt2_124m_2gpu", "--measured", "1e300s"),
        ("run", "gpt2_124m_2gpu", "--tokens", "1e300"),
        ("collective", "all_reduce", "--size", "1e300GiB", "--cluster", "dgx_h100", "--ranks", "8"),
    ):
        refused(dtsim(*words))


def test_what_a_refusal_calls_nearest_is_accepted(dtsim: Dtsim) -> None:
    words = (
        "run",
        "llama3_8b_fsdp_8xh100",
        "--set",
        "cluster.name=dgx_h100",
        "--set",
        "cluster.gpus=2097152",
        "--json",
    )
    words += ("--set", "workload.global_batch_size=2097152")
    said = refused(dtsim(*words))
    assert "Nearest: data_parallel = 2097152" in said
    code, _, error = dtsim(*words, "--set", "plan.data_parallel=2097152")
    assert 0 == code, error


def test_a_log_that_is_neither_healthy_nor_not_is_left_out_with_the_reason(dtsim: Dtsim, tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "data" / "nccl_logs"
    for name in ("index.csv", "h100_1x8_dgxc_all_reduce.csv"):
        (tmp_path / name).write_text((folder / name).read_text())
    lines = (tmp_path / "index.csv").read_text().splitlines()
    mine = next(line for line in lines if line.startswith("h100_1x8_dgxc_all_reduce"))
    (tmp_path / "index.csv").write_text("\n".join((lines[0], mine, mine.replace(",true,", ",3,"))) + "\n")
    code, out, error = dtsim("validate", str(tmp_path / "index.csv"), "--kind", "nccl", "--json")
    assert (0, True) == (code, "healthy must be 0 or 1" in out), error
