"""Predictions of fixed jobs against predictions.csv: a change that means no change shows none; else its diff is in the review.

`python tests/replay/test_replay.py` writes the file anew.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from simulator.job import load_job
from simulator.simulation import simulate_job
from simulator.specs import names

FILE = Path(__file__).with_name("predictions.csv")
VARIANTS: dict[str, list[list[str]]] = {
    "gpt3_175b": [
        ["plan.microbatch_size=2"],
        ["plan.recompute=full"],
        ["plan.chunks_per_rank=1", "plan.schedule=1f1b"],
        ["plan.chunks_per_rank=1", "plan.schedule=gpipe"],
        ["plan.chunks_per_rank=1", "plan.schedule=chimera"],
        ["plan.chunks_per_rank=1", "plan.schedule=zb_h1"],
        ["plan.zero_stage=1"],
        ["plan.framework=megatron_core"],
        ["cluster.name=dgx_h100"],
        ["workload.precision=fp32"],
    ],
    "llama3_8b_fsdp_8xh100": [
        ["plan.recompute=full"],
        ["plan.reshard_after_forward=false"],
        ["plan.fsdp_prefetch=0"],
        ["plan.zero_stage=1"],
        ["plan.tensor_parallel=2", "plan.data_parallel=4"],
        ["plan.context_parallel=2", "plan.data_parallel=4"],
        ["workload.precision=fp8"],
        ["cluster.name=hgx_b200"],
        ["cluster.name=mi300x_x8"],
    ],
    "gpt2_124m_2gpu": [["plan.bucket_size=1 MiB"], ["plan.overlap_gradients=false"], ["plan.attention=unfused"]],
}


def cases() -> list[tuple[str, tuple[str, ...]]]:
    """Every job as it is, and some with a setting changed."""
    return [(name, ()) for name in names("jobs")] + [(n, tuple(v)) for n, many in VARIANTS.items() for v in many]


def predicted(name: str, settings: tuple[str, ...]) -> dict[str, str]:
    """Return the figures of one job."""
    p = simulate_job(load_job(name, settings))
    return {
        "job": name,
        "settings": " ".join(settings),
        "step_time_s": f"{p.step_time:.9g}",
        "low_s": f"{p.low:.9g}",
        "high_s": f"{p.high:.9g}",
        "peak_memory_bytes": f"{p.peak_memory:.12g}",
        "bubble_fraction": f"{p.bubble_fraction:.9g}",
        "hfu": f"{p.hfu:.9g}",
    }


@pytest.fixture(scope="module")
def recorded() -> dict[tuple[str, str], dict[str, str]]:
    with FILE.open(newline="") as file:
        return {(row["job"], row["settings"]): row for row in csv.DictReader(file)}


@pytest.mark.parametrize(("name", "settings"), cases(), ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_the_prediction_is_the_recorded_one(
    name: str, settings: tuple[str, ...], recorded: dict[tuple[str, str], dict[str, str]]
) -> None:
    expected, actual = recorded[name, " ".join(settings)], predicted(name, settings)
    for key in list(actual)[2:]:
        assert float(expected[key]) == pytest.approx(float(actual[key]), rel=1e-6), key


if __name__ == "__main__":
    with FILE.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(predicted(*cases()[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(predicted(*case) for case in cases())
    sys.exit(0)
