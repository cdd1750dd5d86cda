"""Traces of PyTorch's profiler (Kineto), also as Perfetto shows them: steps, and how long each kind of kernel ran on the GPU.

A trace is a JSON object (or a bare list) of events; times in microseconds.  Steps are the profiler's own annotations `ProfilerStep#N`.
Kernels are told apart by their names, which are those of cuBLAS, CUTLASS, cuDNN, FlashAttention, Triton and NCCL; a kernel of a
name that says nothing counts as memory-bound, which most are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from simulator.errors import SpecError
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings, Imported, brief
from simulator.importers.steps import KernelKind, Steps
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
_MICROSECOND = parse("1 us", "s")


def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel, by its name.

    >>> kind_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)"), kind_of_kernel("nvjet_hsh_256x128_64x4_TNT")
    ('reduce_scatter', 'gemm')
    """
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "memory_bound")


@dataclass(slots=True)
class _Found:
    """What stands in a trace [us]: kernels as (start, end, name), annotated steps on the processor and on the GPU."""

    kernels: list[tuple[float, float, str]] = field(default_factory=list)
    steps: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"cpu": [], "gpu": []})
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

    def read(self, document: Document) -> Imported:
        """Return steps, and kernels by kind.

        Raises:
            SpecError: no JSON, or no kernel in it.
        """
        found = _Found()
        for event in _events(document):
            _take(found, event)
        if not found.kernels:
            raise SpecError(
                f"{document.place}: {found.events:,} events, but no kernel of a GPU among them. Way out: profile with ProfilerActivity.CUDA"
            )
        steps = sorted(found.steps["gpu"] or found.steps["cpu"])
        findings = Findings(self.name)
        end = max(kernel[1] for kernel in found.kernels)
        if not steps:
            steps = [(min(kernel[0] for kernel in found.kernels), end)]
            why = "the trace names no ProfilerStep: call profiler.step() once per step"
            findings.assume("measured.steps", 1, f"{document.place}: {why}; all kernels are taken for one step")
        if not found.steps["gpu"]:  # the processor's mark of a step ends before the GPU has done
            steps = [(this[0], after[0]) for this, after in pairwise(steps)] or [(steps[0][0], end)]
        lengths = [(high - low) * _MICROSECOND for low, high in steps]
        if min(lengths) <= 0:
            raise SpecError(f"{document.place}: a step of this trace takes no time")
        findings.steps = Steps(
            place=document.place,
            unit="seconds",
            values=tuple(lengths),
            kernels=_by_kind(found.kernels, steps),
        )
        return findings.done()


def _events(document: Document) -> Iterator[dict[str, Any]]:
    """The events of a trace one by one, so that a large one is never whole in memory."""
    text = document.text
    start = text.find("[", max(0, text.find('"traceEvents"')))
    decoder, place = json.JSONDecoder(), start + 1
    skip = re.compile(r"[\s,]*")
    for _ in range(_MOST_EVENTS):
        gap = skip.match(text, place)
        place = gap.end() if gap else place
        if start < 0 or place >= len(text):
            raise SpecError(f"{document.place}: its list of events has no end: the file was cut off, or is no trace")
        if text[place] == "]":
            return
        try:
            event, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, place) + 1
            raise SpecError(f"{document.place}, line {line}: no JSON ({brief(error)})") from None
        if not isinstance(event, dict):
            raise SpecError(f"{document.place}: an event of a trace is a table, but one is {brief(event)}")
        yield event
    raise SpecError(f"{document.place}: has more than {_MOST_EVENTS:,} events. Way out: profile fewer steps")


def _take(found: _Found, event: dict[str, Any]) -> None:
    """Keep an event that is a kernel or a step."""
    found.events += 1
    if event.get("ph") != "X":
        return
    start, length, name, kind = (event.get(key, 0) for key in ("ts", "dur", "name", "cat"))
    if not isinstance(name, str) or not _time(start) or not _time(length):
        return
    begin, end = float(start), float(start + length)
    if isinstance(kind, str) and kind.lower() in _ON_GPU:
        found.kernels.append((begin, end, name if kind.lower() == "kernel" else kind))
    elif _STEP.fullmatch(name):
        found.steps["gpu" if kind == "gpu_user_annotation" else "cpu"].append((begin, end))


def _time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _by_kind(kernels: list[tuple[float, float, str]], steps: list[tuple[float, float]]) -> tuple[KernelKind, ...]:
    """Kernels that begin within the steps, by kind, per step; the longest kind first."""
    low, high = steps[0][0], steps[-1][1]
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    names: dict[str, dict[str, float]] = {}
    for start, end, name in kernels:
        if not low <= start < high:
            continue
        kind = kind_of_kernel(name)
        seconds[kind] = seconds.get(kind, 0.0) + (end - start) * _MICROSECOND
        counts[kind] = counts.get(kind, 0) + 1
        one = names.setdefault(kind, {})
        one[brief(name)[:60]] = one.get(brief(name)[:60], 0.0) + end - start
    return tuple(
        KernelKind(
            kind=kind,
            seconds=total / len(steps),
            kernels=counts[kind] / len(steps),
            longest=max(names[kind], key=lambda name: names[kind][name]),
        )
        for kind, total in sorted(seconds.items(), key=lambda pair: -pair[1])
    )
