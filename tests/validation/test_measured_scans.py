"""Scans of layers that carry a state along the sequence, forward, against kernels that others timed: nothing was fitted to them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.costs.tables import machine_of, price_table
from simulator.hardware.cluster import load_cluster
from simulator.lowering.layers.expand import layer_costs
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.plan.plan import Plan
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

TABLE = Path(__file__).parents[1] / "data" / "measured_scans.csv"
AROUND = ("state space", "convolution", "gated", "attention norm", "attention residual")
"""What of a layer is not its scan."""


def _rows() -> list[dict[str, str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def _scan(row: dict[str, str]) -> float:
    """What the scan of a row is predicted to take [ms]."""
    model = load_model("mamba2_2_7b")
    shape = {
        "ssm_heads": int(row["heads"]),
        "ssm_head_dim": int(row["head_dim"]),
        "ssm_groups": int(row["groups"]),
        "ssm_state": int(row["state"]),
        "mixers": (row["mixer"],) * model.layers,
    }
    work = Workload(model=model.model_copy(update=shape), sequence_length=int(row["seq_len"]), global_batch_size=8)
    ((_, cost),) = [
        pair for pair in layer_costs(work, resolve(work, Plan(recompute="none"), 8)).items() if row["mixer"] in pair[0]
    ]
    seconds = price_table(cost.forward, machine_of(load_cluster(row["gpu"], 8)), (("dp", 8),)).rows
    return 1e3 * float(
        sum(t for t, label in zip(seconds, cost.forward.label, strict=True) if not label.startswith(AROUND))
    )


@pytest.mark.parametrize(("mixer", "least", "most"), [("mamba2", -0.06, 0.13), ("delta", -0.27, -0.18)])
def test_scans_take_as_long_as_others_measured(mixer: str, least: float, most: float) -> None:
    """The delta rule comes out a fifth to a quarter too fast: its chunks follow each other in one kernel there."""
    errors = [_scan(row) / float(row["time_ms"]) - 1 for row in _rows() if row["mixer"] == mixer]
    assert min(errors) >= least, errors
    assert max(errors) <= most, errors
