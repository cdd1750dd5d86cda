"""Products in 8-bit integers: their rate, what quantises their operands, and two published runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.accuracy.attempt import predict
from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.gpu import load_gpu
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.vocabulary.words import precision_by_words
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.program.program import Segment
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

RUNS = Path(__file__).parents[1] / "data" / "blind10_runs.csv"


def work(precision: str) -> Workload:
    return Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=16, precision=precision)


def test_all_three_products_of_linear_layers_are_in_int8_and_nothing_else_is() -> None:
    program = lower(work("int8"), Plan(framework="jax_xla", data_parallel=8), 8)
    tables = [t for item in program.items if isinstance(item, Segment) for t, _ in item.pieces]
    kinds = {(t.label[i], t.dtype[i]) for t in tables for i in range(len(t.label)) if t.work[i] == "gemm"}
    passes = ("", " input gradient", " weight gradient")
    layer = {name + of for name in ("qkv", "projection", "mlp up", "mlp down") for of in passes}
    assert kinds == {(name, "int8") for name in layer} | {(f"head{of}", "bf16") for of in passes}


@pytest.mark.parametrize("gpu", ["tpu_v5e", "tpu_v5p", "tpu_v6e"])
def test_a_chip_runs_them_at_twice_its_rate_of_bf16(gpu: str) -> None:
    """Google Cloud, TPU documentation: 394, 918 and 1,836 TOPS beside 197, 459 and 918 TFLOP/s."""
    found = load_gpu(gpu)
    assert found.peak("int8") == 2 * found.peak("bf16")


def test_large_products_gain_and_casts_cost() -> None:
    cluster = load_cluster("tpu_v5p_pod", 64)
    plan = Plan(framework="maxtext_tpu", zero_stage=3, recompute="full")
    job = Workload(model=load_model("llama3_70b"), sequence_length=8192, global_batch_size=64, precision="bf16")
    wide = simulate(job, plan, cluster)
    narrow = simulate(
        Workload(model=job.model, sequence_length=8192, global_batch_size=64, precision="int8"), plan, cluster
    )
    assert 0.5 < narrow.step_time / wide.step_time < 0.85


def test_a_gpu_without_a_rate_refuses_them() -> None:
    with pytest.raises(SpecError, match="has no peak for int8"):
        simulate(work("int8"), Plan(), load_cluster("tpu_v3_pod", 8))


@pytest.mark.parametrize(("said", "found"), [("int8", "int8"), ("AQT int8", "int8"), ("bf16, int8 products", "int8")])
def test_tables_say_it(said: str, found: str) -> None:
    assert precision_by_words(said) == found


@pytest.mark.parametrize("case", ["tpur2-0001", "tpur2-0008"])
def test_gpt_3_on_trillium_and_v5p_takes_as_long_as_google_published(case: str) -> None:
    """AI-Hypercomputer/tpu-recipes, GPT3-175B-MaxText: 14.2 s on 256 v6e and 22.2 s on 512 v5p, within 10 %."""
    lines = [line for line in RUNS.read_text().splitlines() if not line.startswith("#")]
    row = next(row for row in csv.DictReader(lines) if row["case_id"] == case)
    assert predict(row_simulation(row))[0].step_time == pytest.approx(float(row["step_time_s"]), rel=0.1)
