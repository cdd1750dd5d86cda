"""The measured grids of the Chimera paper on Piz Daint: which (W, D, B) wins, for schedules that the calibration never saw.

The numbers of Piz Daint (P100 in fp32, GLOO through host memory) were fitted to the rows marked `fit`: all of DAPPLE, and
GEMS on two ranks.  GPipe, Chimera and the rest of GEMS are predictions.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from simulator.hardware.cluster import load_cluster
from simulator.plan.plan import Plan
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

DATA = Path(__file__).parents[1] / "data" / "chimera_grids.csv"
SYSTEMS = ("gpipe", "dapple", "gems", "chimera")
Row = dict[str, str]


def rows() -> list[Row]:
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def schedule_of(row: Row) -> str:
    many = row["system"] == "chimera" and row["pipelines"] != "2"
    return f"chimera_{row['pipelines']}" if many else row["system"]


def predict(row: Row) -> Prediction:
    eager = row["system"] == "chimera"
    workload = Workload(
        model=load_model(row["model"]),
        sequence_length=int(row["sequence_length"]),
        global_batch_size=int(row["global_batch_size"]),
        precision="fp32",
    )
    plan = Plan(
        pipeline_parallel=int(row["D"]),
        data_parallel=int(row["W"]),
        microbatch_size=int(row["B"]),
        schedule=schedule_of(row),
        recompute="full" if row["recompute"] == "1" else "none",
        overlap_gradients=True if eager else None,
        framework="pipedream_gloo",
    )
    cluster = load_cluster("piz_daint_eager" if eager else "piz_daint", int(row["gpus"]))
    return simulate(workload, plan, cluster)


@functools.cache
def throughputs() -> tuple[tuple[Row, float, float], ...]:
    """Row, measured and predicted sequences per second."""
    return tuple((r, float(r["throughput"]), int(r["global_batch_size"]) / predict(r).step_time) for r in rows())


def grid(system: str, model: str, gpus: int) -> tuple[np.ndarray, np.ndarray]:
    here = [(m, p) for r, m, p in throughputs() if (r["system"], r["model"], int(r["gpus"])) == (system, model, gpus)]
    measured, predicted = np.array(here).T
    return measured, predicted


GRIDS = [("gpipe", "bert_48", 32), ("dapple", "bert_48", 32), ("gems", "bert_48", 32), ("gems", "gpt2_64l", 512)]


@pytest.mark.parametrize(("system", "model", "gpus"), GRIDS)
def test_shapes_of_a_system_are_ranked_as_measured(system: str, model: str, gpus: int) -> None:
    measured, predicted = grid(system, model, gpus)
    assert len(measured) >= 5
    assert spearmanr(measured, predicted)[0] >= 0.85


@pytest.mark.parametrize("system", SYSTEMS)
def test_all_runs_of_a_system_are_ranked_as_measured(system: str) -> None:
    """Both models, 16 to 2,048 GPUs, 2 to 16 pipelines of Chimera."""
    found = [(m, p) for r, m, p in throughputs() if r["system"] == system]
    assert len(found) >= 10
    assert spearmanr(*np.array(found).T)[0] >= 0.9


def test_more_pipelines_of_chimera_rank_as_measured() -> None:
    """Fig 19: two beat eight on 16 ranks, four beat sixteen on 32; all but sixteen beat DAPPLE in a pipeline as long."""
    at = {(r["pipelines"], r["D"]): p for r, _, p in throughputs() if r["model"] == "gpt2_32l"}
    measured = {(r["pipelines"], r["D"]): m for r, m, _ in throughputs() if r["model"] == "gpt2_32l"}
    chimera = [key for key in at if key[0] != "1"]
    assert sorted(chimera, key=at.__getitem__) == sorted(chimera, key=measured.__getitem__)
    assert at["4", "32"] > at["1", "32"]


def test_what_never_flushes_is_placed_roughly() -> None:
    """PipeDream and 2BW, whose runtimes nothing was fitted to: 2BW comes out quicker than measured (its copies of the weights
    and its grouping of updates are not told), PipeDream slower (it reduces beside the backward pass)."""
    error = {(r["system"], r["D"]): p / m - 1 for r, m, p in throughputs() if r["set"] == "asynchronous"}
    assert all(-0.05 < e < 0.3 for (system, _), e in error.items() if system == "pipedream_2bw")
    assert all(-0.35 < e < 0.05 for (system, _), e in error.items() if system == "pipedream")


@pytest.mark.parametrize(
    ("system", "model", "gpus"), [*GRIDS, ("chimera", "bert_48", 32), ("chimera", "gpt2_64l", 512)]
)
def test_the_shape_predicted_to_be_best_is_within_3_percent_of_the_measured_best(
    system: str, model: str, gpus: int
) -> None:
    measured, predicted = grid(system, model, gpus)
    assert measured[predicted.argmax()] >= 0.97 * measured.max()


def test_rows_that_the_calibration_never_saw_are_as_close_as_those_it_saw() -> None:
    error: dict[str, list[float]] = {"fit": [], "check": []}
    for row, measured, predicted in throughputs():
        if row["set"] in error:
            error[row["set"]].append(abs(predicted / measured - 1))
    assert len(error["check"]) > len(error["fit"])
    assert np.mean(error["fit"]) < 0.06
    assert np.mean(error["check"]) < 0.10
    assert np.median(error["check"]) < 0.08


def test_chimera_beats_1f1b_by_the_printed_factor() -> None:
    """Section 4.2.3, GPT-2 on 2,048 GPUs: 1.38 times DAPPLE.  (GEMS, printed at 1/2.34, comes out too slow there: the
    ring's latency over 512 ranks was extrapolated from 128.)"""
    at = {r["system"]: p for r, _, p in throughputs() if r["gpus"] == "2048"}
    assert at["gems"] < at["dapple"] < at["chimera"]
    assert 1.38 == pytest.approx(at["chimera"] / at["dapple"], rel=0.12)
