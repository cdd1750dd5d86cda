"""Every verb that writes, and what; the command as a process of its own, in a folder with what the verbs read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "simulator"]
JOB = "gpt2_124m_2gpu"
WRITERS = {
    "trace": ("run", JOB, "--trace", "out.json"),
    "packed trace": ("run", JOB, "--trace", "out.json.gz"),
    "picture": ("run", JOB, "--plot", "out.png"),
    "page": ("run", JOB, "--report", "out.html"),
    "comparison": ("compare", JOB, "--zero", "0,1", "--plot", "out.png"),
    "order": ("schedule", "1f1b", "-p", "4", "-m", "80", "--output", "out.txt"),
    "found order": ("schedule", "auto", "-p", "4", "-m", "8", "--output", "out.txt"),
    "timeline": ("schedule", "gpipe", "-p", "2", "-m", "2", "--format", "png", "--output", "out.png"),
    "sizes": ("collective", "all_reduce", "--sizes", "1KiB:1GiB", "--cluster", "dgx_h100", "--ranks", "8", "--plot", "out.png"),
    "exported trace": ("export", "chrome", JOB, "--output", "out.json"),
    "exported order": ("export", "torch-csv", "gpt3_175b", "--output", "out.csv"),
    "job": ("init", "--model", "gpt2_124m", "--output", "out.toml"),
    "profile": ("calibrate", "gemm", "products.csv", "--output", "out.toml"),
    "rows": ("validate", "table.csv", "--output", "out.csv"),
    "table of a step": ("run", JOB, "--output", "out.csv"),
    "columns of a step": ("run", JOB, "--output", "out.parquet"),
    "compared": ("compare", JOB, "--zero", "0,1", "--output", "out.csv"),
    "timelines": ("compare", JOB, "--zero", "0,1", "--timelines", "out.png"),
    "sizes as a table": ("collective", "all_reduce", "--sizes", "1KiB:1GiB", "--cluster", "dgx_h100", "--ranks", "8", "-o", "out.csv"),
    "schedules": ("schedule", "1f1b,gpipe", "-p", "4", "-m", "8", "--format", "table", "-o", "out.csv"),
    "launch script": ("export", "megatron", "gpt3_175b", "--output", "out.sh"),
    "settings": ("export", "deepspeed", "llama_7b_4x4090", "--output", "out.json"),
    "imported": ("import", "deepspeed.json", "--cluster", "dgx_h100", "--output", "out.toml"),
    "chosen plan": ("search", JOB, "--range", "plan.zero_stage=0,1", "--output", "out.toml"),
    "plans": ("search", JOB, "--range", "plan.zero_stage=0,1", "--plot", "out.png"),
    "plans by helpers": ("search", JOB, "--range", "plan.zero_stage=0,1", "--processes", "2", "-o", "out.toml"),
    "fewest": ("fit", "gpt2_124m", "--cluster", "a100_x8", "--fewest", "gpus", "--output", "out.toml"),
    "weeks": ("goodput", JOB, "--samples", "5", "--report", "out.html"),
    "weeks drawn": ("goodput", JOB, "--samples", "5", "--plot", "out.png"),
    "errors": ("validate", "runs.csv", "--kind", "runs", "--report", "out.html"),
    "spread of errors": ("validate", "runs.csv", "--kind", "runs", "--residuals", "out.toml"),
    "layout drawn": ("layout", "gpt2_124m", "--mesh", "rows=2,cols=2", "--map", "batch=rows", "--plot", "out.png"),
    "study": ("sweep", "study.toml", "--processes", "1", "-o", "out.csv"),
    "study drawn": ("sweep", "study.toml", "--processes", "2", "-o", "out.csv", "--plot", "out.png"),
    "with other networks": ("search", JOB, "--range", "plan.zero_stage=0,1", "--sensitivity", "out.png"),
    "figure": ("compare", JOB, "--zero", "0,1", "--figure", "out.pdf"),
}  # fmt: skip
"""Every verb that writes, and what."""
PATIENCE = 300
"""Seconds after which a command is taken to hang: a machine may be slow, and busy with other tests."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def call(*arguments: str, where: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "env": environment(), **options}
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=where, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, **options
    )


BEGIN = """
import signal, sys, simulator.cli
signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first that main does: no Ctrl-C may come between it and the word that we have begun
print("begun", file=sys.stderr, flush=True)
simulator.cli.main()
"""


def begun_program(where: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command as a process in which Python itself has started: until then Ctrl-C is Python's own affair."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, *arguments],
        cwd=where,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stderr is not None
    assert "begun\n" == process.stderr.readline()
    return process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = (ROOT / "tests" / "data" / "held_out_kernels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "table.csv").write_text("".join(lines[:40]))
    products = (ROOT / "tests" / "data" / "gemm_sample.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "products.csv").write_text(
        "".join(p for p in products if "h100" in p or p.startswith(("#", "op", "gpu")))
    )
    shutil.copy(ROOT / "tests" / "data" / "measured_runs.csv", tmp_path / "runs.csv")
    shutil.copy(ROOT / "tests" / "data" / "imports" / "deepspeed.json", tmp_path)
    study = 'model = "gpt2_124m"\ncluster = "h100_x8"\n[vary]\n"plan.zero_stage" = [0, 1]\n'
    (tmp_path / "study.toml").write_text(study)
    return tmp_path


INPUTS = {"deepspeed.json", "products.csv", "runs.csv", "study.toml", "table.csv"}
BESIDE = {"study": {"out.results.jsonl"}, "study drawn": {"out.csv", "out.results.jsonl"}}
"""What else a verb leaves: a sweep's results are kept point by point."""


def output_of(what: str, folder: Path) -> Path:
    return folder / [word for word in WRITERS[what] if word.startswith("out.")][-1]


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in INPUTS:
            path.unlink()
