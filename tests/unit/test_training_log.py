"""Training logs: steady steps found, warm-up left out, and a step beside the predicted one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.importers.jobs import import_file
from simulator.importers.steps import Steps, steady
from simulator.job import load_job
from simulator.simulation import simulate_job
from tests.command import Dtsim


def megatron(step: float, lines: int = 60, batch: int = 256) -> str:
    """A log in Megatron-LM's form: two slow steps, one that is settling, and a checkpoint at step 40."""
    rng = random.Random(1)
    out = []
    for i in range(1, lines + 1):
        ms = 1000 * step * (1 + rng.gauss(0, 0.01)) + (5000 * step if i < 3 else 300 * step if i == 3 else 0)
        ms += 900 * step if i == 40 else 0
        out.append(
            f" [2026-01-01 10:00:00] iteration {i:8d}/ 500 | consumed samples: {i * batch:12d} | elapsed time per iteration (ms): "
            f"{ms:.1f} | throughput per GPU (TFLOP/s/GPU): 410.1 | learning rate: 1.0E-05 | global batch size: {batch:5d} | lm loss: 1 |"
        )
    return "\n".join(out)


def steps_of(tmp_path: Path, text: str, name: str = "train.log") -> Steps:
    path = tmp_path / name
    path.write_text(text)
    found = import_file(path).steps
    assert isinstance(found, Steps)
    return found


def test_megatron(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, megatron(1.2))
    assert (60, 3, 1, 256, 410.1) == (len(steps.values), steps.warm_up, steps.apart, steps.batch, steps.tflops)
    assert pytest.approx(1.2, rel=0.005) == steps.median
    assert steps.spread[0] < steps.median < steps.spread[1]


@pytest.mark.parametrize(
    ("text", "unit", "median", "memory"),
    [
        (
            "\x1b[31mstep: 10\x1b[0m  loss: 5.1  grad_norm: 1.2  memory: 63.10GiB(66.40%)  tps: 7,012  tflops: 406.12  mfu: 41.06%\n" * 4,
            "tokens/s/GPU", 7012.0, 63.1 * 2**30,
        ),
        ("[INFO] epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.5, "
         "MemAllocated=10.0GB, MaxMemAllocated=20.0GB\n" * 3, "samples/s", 12.5, 20.0 * 2**30),
        ("steps: 10 loss: 1.2 iter time (s): 3.456 samples/sec: 12.3\n", "seconds", 3.456, 0.0),
        ("Training epoch 0, iteration 10/99 | lr: 1e-5 | train_step_timing in s: 5.21 | consumed\n", "seconds", 5.21, 0.0),
        ("Epoch 0: :  10%| 10/99 [reduced_train_loss=10.3, train_step_timing in s=5.25]\n", "seconds", 5.25, 0.0),
        ("Step Time : 1.23s GPU utilization: 500.1MODEL_TFLOP/s/GPU\n", "seconds", 1.23, 0.0),
        (" 10%|# | 10/100 [01:23<12:00,  8.31s/it]\r 11%|# | 11/100 [01:31<12:00,  8.33s/it]\n{'loss': 1.2}", "seconds", 8.32, 0.0),
        (" 10%|# | 10/100 [00:03<00:30,  2.50it/s]\n", "seconds", 0.4, 0.0),
        ("{'train_runtime': 10.0, 'train_samples_per_second': 8, 'train_steps_per_second': 0.5}\n", "seconds", 2.0, 0.0),
    ],
)  # fmt: skip
def test_other_programs(tmp_path: Path, text: str, unit: str, median: float, memory: float) -> None:
    steps = steps_of(tmp_path, text)
    assert (unit, pytest.approx(median), pytest.approx(memory)) == (steps.unit, steps.median, steps.memory)


def test_rates_become_step_times() -> None:
    steps = Steps(place="x", unit="tokens/s/GPU", values=(1000.0,))
    assert 2.0 == steps.step_time(tokens=16_000, batch=4, gpus=8)
    assert 4.0 == Steps(place="x", unit="samples/s", values=(2.0,)).step_time(tokens=0, batch=8, gpus=8)


def test_warm_up_ends_where_the_pace_begins() -> None:
    assert 0 == steady([1.0, 1.0, 1.01, 0.99])
    assert 2 == steady([9.0, 5.0, 1.0, 1.0, 1.01, 0.99, 1.0, 1.0])
    assert 0 == steady([1.0])


def test_another_batch_is_refused(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, megatron(1.2))
    with pytest.raises(SpecError, match=r"--set workload.global_batch_size=256"):
        steps.step_time(tokens=1, batch=512, gpus=8)


def test_a_log_stands_beside_the_prediction(tmp_path: Path, dtsim: Dtsim) -> None:
    def run(*arguments: str) -> tuple[int, dict[str, object]]:
        code, out, _ = dtsim("run", "gpt3_13b_2xdgx_a100", "--json", *arguments)
        return code, json.loads(out) if out else {}

    predicted = simulate_job(job := load_job("gpt3_13b_2xdgx_a100")).step_time
    log = tmp_path / "train.log"
    log.write_text(megatron(1.03 * predicted, batch=job.workload.global_batch_size))
    code, answer = run("--measured", str(log))
    measured = answer["measured"]
    assert isinstance(measured, dict)
    assert (0, True, 3) == (code, measured["inside_band"], measured["log"]["warm_up_left_out"])
    assert -0.03 == pytest.approx(measured["error"], abs=0.01)
    assert 2 == run("--measured", str(tmp_path / "none.log"))[0]


def test_strict_leaves_with_a_code_of_its_own(dtsim: Dtsim) -> None:
    for arguments, code in (
        (["llama_7b_4x4090"], 0),
        (["llama_7b_4x4090", "--strict"], 3),
        (["gpt2_124m_1gpu", "--strict"], 0),
    ):
        assert code == dtsim("run", *arguments)[0]
