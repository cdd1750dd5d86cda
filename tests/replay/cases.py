"""The cases of the replay: every measured row, every job, and plans that meet pairs of all choices (plans.jsonl)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.errors import PlanError
from simulator.hardware.parts import Part
from simulator.job import load_job
from simulator.plan.plan import Plan
from simulator.simulation import simulate, simulate_job
from simulator.specs import names
from simulator.workload.workload import Workload
from tests.properties.test_every_combination import FAMILIES, cluster_of, model_of

__all__ = ["PLANS", "REFUSALS", "VARIANTS", "cases", "jobs", "made_plan"]

HERE = Path(__file__).parent
PLANS = HERE / "plans.jsonl"
REFUSALS = HERE / "refusals.jsonl"
TABLES = {
    "measured_runs": ("runs", "workloads/published/measured_runs.csv"),
    "held_out_runs": ("runs", "tests/data/held_out_runs.csv"),
    "held_out_memory": ("memory", "tests/data/held_out_memory.csv"),
}
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
        ['cluster.parts=[{nodes="0",gpus="0",clock=0.8}]'],
    ],
    "resnet50_16xv100": [
        ["workload.model=vgg16", "workload.precision=fp16"],
        ["workload.model=densenet121", "plan.zero_stage=3"],
        ["workload.model=inception_v3", "plan.recompute=full"],
        ["plan.pipeline_parallel=4", "plan.microbatch_size=8"],
    ],
    "gpt2_124m_2gpu": [["plan.bucket_size=1 MiB"], ["plan.overlap_gradients=false"], ["plan.attention=unfused"]],
}
Work = Callable[[], Any]


def jobs() -> list[tuple[str, tuple[str, ...]]]:
    """Every shipped job as it is, and some with a setting changed."""
    return [(name, ()) for name in names("jobs")] + [(n, tuple(v)) for n, many in VARIANTS.items() for v in many]


def made_plan(case: dict[str, Any]) -> tuple[Workload, Plan, Any]:
    """Return workload, plan and cluster of a line of plans.jsonl.

    Raises:
        PlanError: the line is of a family of models that this tree does not know yet.
    """
    if case["family"] not in FAMILIES:
        raise PlanError(f"no family {case['family']!r} in this tree. Way out: a newer one.")
    cluster = cluster_of(case["cluster"], case["nodes"])
    workload = Workload(model=model_of(case["family"]), **case["workload"])
    parts = tuple(Part.model_validate(part) for part in case.get("parts", ()))
    return workload, Plan.model_validate(case["plan"]), replace(cluster, parts=parts) if parts else cluster


def _predict_plan(line: str) -> Any:
    return simulate(*made_plan(json.loads(line)))


def _row_work(kind: str, row: dict[str, str]) -> Any:
    from simulator.accuracy.memory import memory_outcomes
    from simulator.accuracy.runs import run_outcomes

    return list((memory_outcomes if kind == "memory" else run_outcomes)([row], everything=True))


def cases() -> Iterator[tuple[str, Work]]:
    """Yield (name, what to run) of every case; names are the same in every tree that has the case."""
    from simulator.importers.table.rows import read_rows

    root = HERE.parents[1]
    for name, settings in jobs():
        said = " ".join((name, *settings))
        yield f"job {said}", functools.partial(lambda n, s: simulate_job(load_job(n, s)), name, settings)
    for table, (kind, path) in TABLES.items():
        for i, row in enumerate(read_rows(root / path), 1):
            yield f"{table} {row.get('case_id') or i}", functools.partial(_row_work, kind, row)
    for name, path in (("plan", PLANS), ("refusal", REFUSALS)):
        for i, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
            yield f"{name} {i}", functools.partial(_predict_plan, line)
