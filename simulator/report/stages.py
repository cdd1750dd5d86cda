"""Pipeline stages that have ranks of their own: what each holds, on how many GPUs, what it works and what it waits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import ACCOUNTS
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["stages_section", "stages_text"]

_WAITS = ("pp", "bubble")


def stages_text(prediction: Prediction) -> str:
    """Return how many GPUs each stage has, in words; "" where all have as many."""
    if not prediction.program.stages:
        return ""
    return f" stages of {', '.join(str(stage['ranks']) for stage in prediction.provenance['stages'])}"


def stages_section(prediction: Prediction) -> Section:
    """Return a line per stage, of seconds the mean over its ranks."""
    p, stages = prediction, prediction.provenance["stages"]
    of_stage = np.searchsorted([stage["first_rank"] for stage in stages], [m.first for m in p.program.stages], "right")
    several = len({stage["weight_versions"] for stage in stages}) > 1
    rows = []
    for number, stage in enumerate(stages):
        seconds = p.rank_breakdown[of_stage == number + 1].mean(axis=0)
        waits, reduces = _of(seconds, *_WAITS), _of(seconds, "dp")
        versions = [str(stage["weight_versions"])] if several else []
        rows.append(
            (
                *(str(number), str(stage["layers"]), _gpus(stage), str(stage["tensor_parallel"])),
                *(str(stage["data_parallel"]), str(stage["microbatch_size"]), *versions, stage["recompute"]),
                *(show(p.step_time - waits - reduces, "s"), show(reduces, "s"), percent(waits / p.step_time)),
            )
        )
    split = "on each of its data-parallel ranks, which "
    split += "take microbatches in turn" if several else "split it"
    return Section(
        title="stages, one after another on the GPUs",
        table=Table(
            headings=(
                *("stage", "layers", "gpus", "tensor", "data", "sequences"),
                *(["versions"] if several else []),
                *("recompute", "works", "adds gradients", "waits"),
            ),
            rows=tuple(rows),
            left=(2, 6 + several),
        ),
        below=(f"sequences: of a microbatch, {split}; waits: for other stages",),
    )


def _of(seconds: NDArray[np.float64], *accounts: str) -> float:
    return float(sum(seconds[ACCOUNTS.index(name)] for name in accounts))


def _gpus(stage: dict[str, Any]) -> str:
    first, last = stage["first_rank"], stage["first_rank"] + stage["ranks"] - 1
    return f"{first}-{last}" if last > first else str(first)
