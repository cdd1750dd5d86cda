"""Whatever is fed to `dtsim`: an answer, or one clear message and exit code 2; never a traceback, a hang or gigabytes."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.cli import main
from simulator.plan.plan import Plan

JOB = """name = "small"
[workload]
model = "gpt3_125m"
sequence_length = 256
global_batch_size = 8
precision = "bf16"
[plan]
tensor_parallel = 2
pipeline_parallel = 2
data_parallel = 2
microbatch_size = 1
schedule = "one_f_one_b"
zero_stage = 1
recompute = "full"
bucket_size = "40 MB"
framework = "megatron_core"
[cluster]
name = "dgx_a100"
gpus = 8
"""
LINES = JOB.splitlines()
SLOW = 60.0  # seconds of the processor: a guard against work without end, far beyond what any input takes
"""Seconds that no single call may take."""
PLAN_KEYS = [*Plan.model_fields, "no_such_key"]
KEYS = [f"plan.{key}" for key in PLAN_KEYS] + [
    "workload.model", "workload.sequence_length", "workload.global_batch_size", "workload.precision",
    "workload.optimizer", "cluster.name", "cluster.gpus", "measured_step_time", "name", "model.layers", "plan", "", ".", "a.b.c.d.e",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        [
            "0", "-1", "1", "2", "3", "8", "1e9", "1000000000", "99999999999999999999999999", "nan", "inf", "-inf", "true", "false",
            '""', "[]", "{}", "[1,2]", "1.5", "0x10", '"80 GB"', '"2 us"', "80 GB", '"3 GB/s"', "gpipe", "chimera", "full",
            "none", "fp8", "fp16", "gpt3_175b", "/", "..", "\x00", "é", '"' * 50, "[" * 500, "x" * 3000,
        ]
    ),
    st.integers(-(10**12), 10**12).map(str),
    st.floats().map(str),
    st.text(max_size=30),
)  # fmt: skip


def feed(*arguments: str) -> int:
    """Run `dtsim`; check what must hold for any input; return the exit code."""
    out, err = io.StringIO(), io.StringIO()
    begun = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        main(arguments)
    took = time.process_time() - begun
    said = err.getvalue()
    assert left.value.code in (0, 2), said
    assert "Traceback" not in said
    assert took < SLOW
    if left.value.code == 2:
        assert "rror: " in said
        assert len(said) < 20_000
        assert "" == out.getvalue()
    return int(left.value.code)


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The engine is compiled before anything is timed."""
    path = tmp_path_factory.mktemp("warm") / "job.toml"
    path.write_text(JOB)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        pytest.raises(SystemExit) as left,
    ):
        main(["run", str(path)])
    assert 0 == left.value.code


QUICK = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@QUICK
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_setting(tmp_path_factory: pytest.TempPathFactory, key: str, value: str) -> None:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    feed("run", str(path), "--set", f"{key}={value}", "--json")


@QUICK
@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), VALUES), min_size=1, max_size=3))
def test_any_value_in_a_job_file(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str]]) -> None:
    lines = list(LINES)
    for number, value in changes:
        key = lines[number].partition("=")[0].strip()
        lines[number] = f"{key} = {value}" if not key.startswith("[") else value
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    feed("run", str(path))


@QUICK
@given(st.integers(0, len(JOB)), st.binary(max_size=20))
def test_any_broken_file(tmp_path_factory: pytest.TempPathFactory, cut: int, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_bytes(JOB.encode()[:cut] + tail)
    feed("run", str(path))


@QUICK
@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "chimera", "chimaera", ""]),
    st.tuples(*[st.integers(-2, 9) | st.integers(10**5, 10**12)] * 3),
    st.tuples(*[st.floats(0, 10) | st.floats()] * 3),
)
def test_any_schedule(name: str, shape: tuple[int, ...], times: tuple[float, ...]) -> None:
    options = [part for flag, n in zip(("-p", "-m", "-v"), shape, strict=True) for part in (flag, str(n))]
    options += [
        part
        for flag, t in zip(("--forward", "--backward", "--transfer"), times, strict=True)
        for part in (flag, str(t))
    ]
    feed("schedule", name, *options)


@QUICK
@given(
    st.sampled_from(["all_reduce", "alltoall", "send_recv", "broadcast", "nothing", ""]),
    st.sampled_from(["1GiB", "0B", "-1 GB", "1e300 B", "nan B", "1", "2 s", "", "1 kB"]),
    st.integers(-3, 40) | st.integers(10**3, 10**12),
    st.none() | st.integers(-2, 6) | st.integers(10**3, 10**12),
    st.sampled_from(["auto", "ring", "tree", "nvls", "no_such"]),
    st.sampled_from(["auto", "ll", "simple", "no_such"]),
    st.sampled_from(["dgx_h100", "gb200_nvl72", "rtx_4090_x4", "nowhere"]),
)
def test_any_collective(
    kind: str, size: str, ranks: int, nodes: int | None, algorithm: str, protocol: str, cluster: str
) -> None:
    more = [] if nodes is None else ["--nodes", str(nodes)]
    options = [
        "--size",
        size,
        "--ranks",
        str(ranks),
        "--algorithm",
        algorithm,
        "--protocol",
        protocol,
        "--cluster",
        cluster,
    ]
    feed("collective", kind, *options, *more, "--json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "gpt3_175b", "--set", "model.layers=1000000000"], "expected at most 10000"),
        (["run", "gpt3_175b", "--set", "workload.global_batch_size=99999744"], "pipeline actions"),
        (["run", "gpt3_175b", "--set", "workload.sequence_length=nan"], "expected a whole number"),
        (["run", "gpt3_175b", "--set", "plan.bucket_size=40"], "with its unit"),
        (["run", "gpt3_175b", "--set", "plan.bucket_size='40 GB/s'"], "got a bandwidth"),
        (["run", "gpt3_175b", "--set", "plan.microbatch_size=0"], "at least 1"),
        (["run", "gpt3_175b", "--set", "cluster.name=nowhere"], "no cluster 'nowhere'"),
        (["run", "gpt3_157b"], "Did you mean 'gpt3_175b'?"),
        (["run", "gpt3_175b", "--measured", "2.31"], "with its unit"),
        (["run", "gpt3_175b", "--measured", "0s"], "above zero"),
        (["run", "gpt3_175b", "--measured", "1s", "--measured-tokens-per-gpu", "3100"], "both were given"),
        (["run", "gpt3_175b", "--model", "gpt2", "--cluster", "dgx_h100"], "both were given"),
        (["run", "nowhere.program", "--cluster", "dgx_h100"], "no such file"),
        (["run", "--model", "gpt2"], "--cluster"),
        (["run", "gpt3_175b", "--tokens", "1e300"], "tokens"),
        (["run", "gpt3_175b", "--engine", "warp"], "no engine 'warp'"),
        (["schedule", "1f1b", "-p", "1000000", "-m", "1000000"], "at most"),
        (["schedule", "1f1b", "-p", "4", "-m", "4", "--backward", "2", "--input-grad", "1"], "in halves"),
        (["schedule", "chimera", "-p", "4", "-m", "4", "--format", "torch-csv-comms"], "a stage on one rank"),
        (["compare", "gpt3_175b", "--set", "plan.microbatch_size=" + ",".join(map(str, range(1, 99)))], "at most 64"),
        (["compare", "gpt3_175b", "--zero", "one"], "whole numbers"),
        (["list", "gpuss"], "Did you mean 'gpus'?"),
        (["show", "gpu", "a1000"], "no GPU 'a1000'"),
        (["fly"], "fly"),
    ],
)
def test_the_message_says_what_to_do(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert 2 == left.value.code
    assert said in capsys.readouterr().err


def test_a_directory_in_place_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job.toml"
    folder.mkdir()
    with pytest.raises(SystemExit) as left:
        main(["run", str(folder)])
    assert 2 == left.value.code
    assert "is a directory" in capsys.readouterr().err
