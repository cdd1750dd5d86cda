"""Traces of dtsim's own (`run --trace`, `export chrome`), where a measured one may stand: one prediction beside another.

Events draw the step; its seconds and its work by kind stand behind them, under `otherData`.
"""

from __future__ import annotations

import json
import math
from typing import Any

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings, brief
from simulator.importers.operations import Operation, Operations
from simulator.importers.steps import Steps

__all__ = ["DtsimTrace"]

_ABOUT = b'],"displayTimeUnit":"ms","otherData":'
_MOST = 1000


class DtsimTrace(Importer):
    """A step that dtsim predicted."""

    name = "dtsim_trace"
    title = "trace of a step that dtsim predicted (run --trace, export chrome)"

    def recognises(self, document: Document) -> int:
        """Look for what stands behind the events."""
        begins = document.data.startswith(b'{"traceEvents":')
        return 4 if begins and b'"makespan_s"' in document.data[document.data.rfind(_ABOUT) :] else 0

    def read(self, document: Document) -> Findings:
        """Return the step, and its operations by kind.

        Raises:
            SpecError: what stands behind the events is not what dtsim writes.
        """
        about = _about(document)
        seconds = about.get("step_time_s", about.get("makespan_s"))
        if seconds is None or not _number(seconds) or seconds == 0:
            raise SpecError(f"{document.place}: a step of this trace takes no time: step_time_s is {brief(seconds)}")
        findings = Findings(self.name)
        batch = about.get("global_batch_size")
        place = f"{document.place} (a prediction)"
        findings.steps = Steps(
            place=place, unit="seconds", values=(float(seconds),), batch=batch if type(batch) is int else None
        )
        findings.operations = Operations(span="a predicted step", rows=_operations(about, document.place))
        axes = about.get("axes")
        world = math.prod(axes.values()) if isinstance(axes, dict) and all(map(_number, axes.values())) else 0
        if isinstance(world, int) and 0 < world <= MAX_WORLD_SIZE:
            findings.put("cluster.gpus", world, f"{document.place}: otherData.axes")
        findings.ignore(document.place, "traceEvents: they draw the step that otherData sums up")
        return findings


def _about(document: Document) -> dict[str, Any]:
    start = document.data.rfind(_ABOUT) + len(_ABOUT)
    try:
        about = json.loads(document.data[start:].rstrip().removesuffix(b"}"))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{document.place}: what stands under otherData is no JSON ({brief(error)})") from None
    if not isinstance(about, dict):
        raise SpecError(f"{document.place}: otherData is a table, but is {brief(about)}")
    return about


def _operations(about: dict[str, Any], place: str) -> tuple[Operation, ...]:
    rows = about.get("operations", [])
    if not isinstance(rows, list) or len(rows) > _MOST:
        raise SpecError(f"{place}: operations under otherData is a list of at most {_MOST} tables")
    for row in rows:
        known = isinstance(row, dict) and isinstance(row.get("kind"), str)
        if not known or not all(_number(row.get(key, 0.0)) for key in ("seconds", "bytes")):
            raise SpecError(
                f"{place}: operations under otherData are a kind with seconds and bytes from 0, but one is {brief(row)}"
            )
    return tuple(
        Operation(kind=brief(row["kind"]), seconds=float(row.get("seconds", 0.0)), bytes=float(row.get("bytes", 0.0)))
        for row in rows
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
