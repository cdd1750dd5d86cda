"""Traces of PyTorch's profiler (Kineto), also as Perfetto shows them: steps, and how long each kind of kernel ran on the GPU.

A trace is a JSON object (or a bare list) of events; times in microseconds.  Steps are the profiler's own annotations `ProfilerStep#N`.
Kernels are told apart by their names, which are those of cuBLAS, CUTLASS, cuDNN, FlashAttention, Triton and NCCL; a kernel of a
name that says nothing counts as memory-bound, which most are.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.events import events_of
from simulator.importers.imported import Findings, brief
from simulator.importers.operations import Operation, Operations, Tally
from simulator.importers.steps import Steps
from simulator.units import parse

__all__ = ["KinetoTrace", "kind_of_kernel"]

_KINDS = (
    ("all_reduce", r"nccl.*all_?reduce"),
    ("all_gather", r"nccl.*all_?gather"),
    ("reduce_scatter", r"nccl.*reduce_?scatter"),
    ("all_to_all", r"nccl.*all_?to_?all"),
    ("broadcast", r"nccl.*broadcast"),
    ("send_recv", r"nccl.*(send|recv)"),
    ("attention", r"flash|fmha|attention|_sdpa|\bmha"),
    ("gemm", r"gemm|gemv|nvjet|xmma(?!.*(norm|softmax))|wgrad|dgrad|splitk|matmul|cublas|\bmm_|cijk"),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_MOST_EVENTS = 2_000_000
_MOST_CATEGORIES = 50
_MICROSECOND = parse("1 us", "s")


def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel, by its name.

    >>> kind_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)"), kind_of_kernel("nvjet_hsh_256x128_64x4_TNT")
    ('reduce_scatter', 'gemm')
    """
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "memory_bound")


_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by PyTorch's name of its type."""


@dataclass(slots=True)
class _Found:
    """What stands in a trace [us]: kernels as (start, end, name, group, bytes), annotated steps on the processor and on the GPU.

    Args:
        groups: GPUs of a process group, by what the trace calls it.
        others: events that are neither, by category.
    """

    kernels: list[tuple[float, float, str, str, float]] = field(default_factory=list)
    steps: dict[str, dict[str, tuple[float, float]]] = field(default_factory=lambda: {"cpu": {}, "gpu": {}})
    groups: dict[str, int] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    events: int = 0


class KinetoTrace(Importer):
    """A trace of PyTorch's profiler."""

    name = "kineto"
    title = "trace of PyTorch's profiler (Kineto, Chrome trace JSON)"
    aliases = ("perfetto", "chrome_trace")

    def recognises(self, document: Document) -> int:
        """Look for the list of events."""
        if document.form not in ("json", "text") or document.head.lstrip()[:1] not in ("{", "["):
            return 0
        if b'"traceEvents"' in document.data:
            return 3
        return 2 if '"ph"' in document.head and '"ts"' in document.head else 0

    def read(self, document: Document) -> Findings:
        """Return steps, and kernels by kind.

        Raises:
            SpecError: no JSON, or no kernel in it.
        """
        found = _Found()
        for event in events_of(document, "traceEvents", _MOST_EVENTS):
            _take(found, event)
        if not found.kernels:
            raise SpecError(
                f"{document.place}: {found.events:,} events, but no kernel of a GPU among them. Way out: profile with ProfilerActivity.CUDA"
            )
        steps = sorted((found.steps["gpu"] or found.steps["cpu"]).values())
        findings = Findings(self.name)
        _about(document, findings)
        end = max(kernel[1] for kernel in found.kernels)
        if not steps:
            steps = [(min(kernel[0] for kernel in found.kernels), end)]
            why = "the trace names no ProfilerStep: call profiler.step() once per step"
            findings.assumed_key("measured.steps", 1, f"{document.place}: {why}; all kernels are taken for one step")
        else:  # from start to start: the processor's mark ends before the GPU has done, the GPU's leaves out what it waits
            steps = [(this[0], after[0]) for this, after in pairwise(steps)] or [(steps[0][0], end)]
        lengths = [(high - low) * _MICROSECOND for low, high in steps]
        if min(lengths) <= 0:
            raise SpecError(f"{document.place}: a step of this trace takes no time")
        findings.steps = Steps(place=document.place, unit="seconds", values=tuple(lengths))
        findings.operations = Operations(span="a step", rows=_by_kind(found.kernels, steps), groups=found.groups)
        for category, count in found.others.most_common(_MOST_CATEGORIES):
            findings.ignore(document.place, f"{count:,} events of {brief(category)!r}: no kernels and no steps")
        return findings


def _about(document: Document, findings: Findings) -> None:
    """Read what stands before the events: GPUs of the run, and of which kind they are."""
    before, found, _ = document.head.partition('"traceEvents"')
    try:
        about = json.loads(before.rstrip().rstrip(",") + "}") if found else {}
    except (ValueError, RecursionError):
        return
    run = about.get("distributedInfo")
    world = run.get("world_size") if isinstance(run, dict) else None
    if isinstance(world, int) and not isinstance(world, bool) and 0 < world <= MAX_WORLD_SIZE:
        findings.put("cluster.gpus", world, f"{document.place}: distributedInfo.world_size")
    gpus = about.get("deviceProperties")
    names = [gpu["name"] for gpu in gpus if isinstance(gpu, dict) and "name" in gpu] if isinstance(gpus, list) else []
    for name, count in Counter(map(brief, names)).items():
        findings.skip(document.place, f"deviceProperties: {count} x {name}; --cluster says which cluster that is")


def _take(found: _Found, event: dict[str, Any]) -> None:
    """Keep an event that is a kernel or a step."""
    found.events += 1
    start, length, name, kind = (event.get(key, 0) for key in ("ts", "dur", "name", "cat"))
    kind = kind if isinstance(kind, str) else ""
    usable = event.get("ph") == "X" and isinstance(name, str) and _time(start) and _time(length)
    if not usable:
        found.others[kind or f"ph {brief(event.get('ph'))}"] += 1
        return
    begin, end = float(start), float(start + length)
    if kind.lower() in _ON_GPU:
        group, moved = _message(found, event.get("args"))
        found.kernels.append((begin, end, name if kind.lower() == "kernel" else kind, group, moved))
    elif _STEP.fullmatch(name):  # on the GPU every stream has its own mark of a step
        marks = found.steps["gpu" if kind == "gpu_user_annotation" else "cpu"]
        old = marks.get(name, (begin, end))
        marks[name] = (min(old[0], begin), max(old[1], end))
    else:
        found.others[kind or "no category"] += 1


def _message(found: _Found, about: Any) -> tuple[str, float]:
    """The group of a collective and the bytes that a GPU brings; "" and 0 of other kernels."""
    if not isinstance(about, dict) or "Collective name" not in about:
        return "", 0.0
    group = brief(about.get("Process Group Description") or about.get("Process Group Name") or "")
    size, elements = about.get("Group size"), about.get("In msg nelems")
    if isinstance(size, int) and 0 < size <= MAX_WORLD_SIZE:
        found.groups[group] = size
    width = _BYTES.get(str(about.get("dtype")), 0)
    return group, elements * float(width) if isinstance(elements, int | float) and _time(elements) else 0.0


def _time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _by_kind(
    kernels: list[tuple[float, float, str, str, float]], steps: list[tuple[float, float]]
) -> tuple[Operation, ...]:
    """Kernels that begin within the steps, by kind and group, per step."""
    low, high = steps[0][0], steps[-1][1]
    tally = Tally()
    for start, end, name, group, moved in kernels:
        if low <= start < high:
            seconds = (end - start) * _MICROSECOND
            tally.count(kind_of_kernel(name), brief(name)[:60], group=group, bytes=moved, seconds=seconds)
    return tally.rows(len(steps))
