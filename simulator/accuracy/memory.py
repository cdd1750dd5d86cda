"""Measured peak memory: the bytes of the rank that was looked at (columns of memory_measurements.csv)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.accuracy.attempt import Attempt, attempt, group_of, how_predicted, sweep_of, verdict_outcome
from simulator.accuracy.scores import Outcome
from simulator.importers.table.row_notes import pages_states
from simulator.importers.table.rows import CannotPlace, Row, count, flag, number, text
from simulator.importers.vocabulary.names import load_names
from simulator.program.program import CATEGORIES
from simulator.report.memory import device_bytes
from simulator.report.prediction import Prediction
from simulator.units import parse

__all__ = ["memory_outcomes", "peak_bytes"]

QUANTITY = "peak_memory_bytes"
_OUTSIDE = {
    "device": (),
    "reserved": ("context",),
    "allocated": ("context", "fragmentation"),
}
"""Categories that a kind of measurement does not count (NCCL asks the driver for its buffers itself: context)."""
_WORDS = {"device": "whole device", "reserved": "reserved by the allocator", "allocated": "allocated by tensors"}


def memory_outcomes(rows: Sequence[Row], everything: bool = False) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each row: peak_memory_bytes, and out_of_memory where the table has a verdict.

    Args:
        everything: also rows of quality C.
    """
    for i, row in enumerate(rows, 1):
        yield _outcomes(row, text(row, "case_id") or f"row-{i:04d}", everything)


def peak_bytes(row: Row) -> float | None:
    """Return the measured peak [B]; None where the row has none.

    Raises:
        CannotPlace: its unit is no unit of size.

    >>> peak_bytes({"peak_mem": "2", "mem_unit": "GiB"})
    2147483648.0
    """
    value = number(row, "peak_mem")
    if value is None or value <= 0:
        return None
    unit = text(row, "mem_unit")
    source = load_names().fact(text(row, "source"), "memory_unit") if unit else None
    unit = (source and source.memory_unit) or unit
    if unit.lower() in ("percent", "%", "percent of gpu memory"):
        capacity = number(row, "gpu_mem_gb")
        if capacity is None:
            raise CannotPlace("peak_mem is a percentage, but the row gives no gpu_mem_gb", counts=False)
        return value / 100.0 * parse(f"{capacity} GB", "B")
    known = load_names().find("memory_units", unit)
    if known is None:
        raise CannotPlace(f"peak_mem is in {unit[:50]!r}, which is no unit of size", counts=False)
    return parse(f"{text(row, 'peak_mem')} {known}", "B")


def _kind(row: Row) -> str:
    """What the row's measurement counts: by its source, else by the row's words."""
    source, said = load_names().fact(text(row, "source"), "memory"), text(row, "mem_kind").lower()
    if source and source.memory:
        return source.memory
    if "reserved" in said:
        return "reserved"
    if "alloc" in said or "active" in said or "torch" in said:
        return "allocated"
    return "device" if any(word in said for word in ("smi", "device", "gpu memory", "vram", "nvml")) else "allocated"


def _numbered_rank(row: Row) -> int | None:
    """The rank whose number the row gives ("rank 5", "5"); None where it gives none.

    Raises:
        CannotPlace: there are not that many GPUs.
    """
    found = re.search(r"\brank (\d+)\b|^\s*(\d+)\s*$", text(row, "mem_rank").lower())
    if found is None:
        return None
    rank, gpus = int(found.group(1) or found.group(2)), count(row, "n_gpus")
    if gpus is not None and rank >= gpus:
        raise CannotPlace(
            f"mem_rank = {text(row, 'mem_rank')[:50]} of {gpus} GPUs: ranks go from 0 to {gpus - 1}", counts=False
        )
    return rank


def _pipeline_rank(row: Row, pipeline: int) -> int | None:
    """The pipeline rank that the row's words or its number of a rank mean; None where they mean none, or the fullest.

    Pipelines are the outermost axis of ranks: Megatron-LM's order tp-cp-ep-dp-pp (parallel_state.py), DeepSpeed's
    PipeModelDataParallelTopology (pipe, data, model), torchtitan's mesh (parallel_dims.py: pp first).
    """
    where, rank, gpus = text(row, "mem_rank").lower(), _numbered_rank(row), count(row, "n_gpus")
    if "last" in where:
        return pipeline - 1
    if "first" in where or rank == 0:
        return 0
    return None if rank is None or not gpus else rank * pipeline // gpus


def _outcomes(row: Row, case: str, everything: bool) -> list[Outcome]:
    group = group_of(row)
    measured, verdict = None, None
    try:
        verdict = flag(row, "oom")
        measured = None if verdict else peak_bytes(row)
        _numbered_rank(row)
        tried = attempt(row, everything)
    except CannotPlace as why:
        tried = Attempt(reason=why.reason, counts=why.counts)
    prediction = tried.prediction
    out = []
    if not verdict:
        found = None if prediction is None else _peak(prediction, row)
        out.append(
            Outcome(
                case_id=case,
                quantity=QUANTITY,
                group=group,
                measured=measured,
                predicted=found.value if found else None,
                low=found.low if found else None,
                high=found.high if found else None,
                reason=tried.reason or ("" if measured is not None else "no peak was measured"),
                counts=tried.counts and measured is not None,
                assumed=(*tried.assumed, found.how) if found else tried.assumed,
                sweep=sweep_of(row),
                kind=tried.kind,
                **how_predicted(prediction),
                terms=found.terms if found else (),
            )
        )
    if verdict is not None:
        out.append(verdict_outcome(case, group, verdict, tried))
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """What is compared: bytes, their band, in words, and the bytes of each category that counts."""

    value: float
    low: float
    high: float
    how: str
    terms: tuple[tuple[str, float], ...]


def _peak(prediction: Prediction, row: Row) -> _Peak:
    """Return the peak of the rank that was measured, as far as the measurement counts it."""
    kind = _kind(row)
    outside = _OUTSIDE[kind] + (("optimizer_states",) if kind != "device" and pages_states(row) else ())
    counted = [i for i, name in enumerate(CATEGORIES) if name not in outside]
    values = prediction.memory.by_category[:, counted].sum(axis=1)
    rank = _pipeline_rank(row, len(values))
    which = "fullest rank" if rank is None else f"pipeline rank {rank + 1} of {len(values)}"
    if rank is None:
        rank = int(values.argmax())
    names = tuple(CATEGORIES[i] for i in counted)
    low, high = prediction.memory_band(rank, names)
    value = float(values[rank])
    if kind != "allocated":
        reserved = prediction.reserved(rank)
        held = device_bytes(prediction.memory, rank, reserved) if kind == "device" else reserved
        elsewhere = CATEGORIES.index("optimizer_states") if "optimizer_states" in outside else None
        value = max(value, held - (0.0 if elsewhere is None else prediction.memory.by_category[rank, elsewhere]))
    wider = value / float(values[rank])
    return _Peak(
        value=value,
        low=low * wider,
        high=high * wider,
        how=f"{_WORDS[kind]}, {which}",
        terms=tuple(
            (name, float(prediction.memory.by_category[rank, i])) for name, i in zip(names, counted, strict=True)
        ),
    )
