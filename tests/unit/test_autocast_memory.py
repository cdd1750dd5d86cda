"""Under autocast weights stand in fp32 alone; products keep narrow copies of them from forward to backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.profiles import profile


def peaks(name: str) -> dict[str, float]:
    model = load_model("gpt2_355m")
    work = Workload(model=model, sequence_length=1024, global_batch_size=64, precision="bf16")
    found = simulate(work, Plan(framework=name, microbatch_size=1), load_cluster("dgx_h100", 8)).memory
    return dict(zip(CATEGORIES, found.by_category[0].tolist(), strict=True))


def test_weights_stand_once_and_casts_with_the_activations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 of 355 million: the head's product casts the embedding's table, so a cast is as large as the 16-bit weights were, less
    positions and norms."""
    monkeypatch.chdir(tmp_path)
    wide = peaks(profile(tmp_path, "wide"))
    narrow = peaks(profile(tmp_path, "narrow", autocast="false"))

    assert wide["weights"] == 2.0 * narrow["weights"]
    assert wide["weights"] + wide["optimizer_states"] == pytest.approx(
        12.0 / 14.0 * (narrow["weights"] + narrow["optimizer_states"])
    )
    assert wide["activations"] > narrow["activations"] + 0.95 * narrow["weights"]
