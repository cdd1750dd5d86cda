"""How much a product slows down beside other work: copies that take memory bandwidth, kernels that hold multiprocessors."""

from __future__ import annotations

import csv
import functools
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.probes.torch_device import Device, import_torch
from simulator.specs import replacing
from simulator.units import parse

__all__ = ["OVERLAP_COLUMNS", "overlap_rows", "write_overlap"]

OVERLAP_COLUMNS = ("gpu", "kind", "beside", "alone_s", "beside_s", "slowdown", "software")
"""Columns of the table: seconds of the product alone and beside the other work, and their ratio."""


def overlap_rows(device: Device, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the slowdown of a product beside a copy, and on a GPU beside kernels that hold k multiprocessors."""
    torch = import_torch()
    if device.kind == "cpu":
        yield _row(device, "copy", *_beside_process(torch, device, quick))
        return
    size = 2048 if quick else 8192
    one, two = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.empty(2**28, device="cuda", dtype=torch.uint8) for _ in range(2))
    yield _row(device, "copy", *_beside_stream(torch, device, one, two, functools.partial(target.copy_, source)))
    for held in (8, 24) if quick else (4, 8, 16, 24, 32, 48):
        left = torch.randn(held, 128, 8192, device="cuda", dtype=torch.bfloat16)
        right = torch.randn(held, 8192, 128, device="cuda", dtype=torch.bfloat16)
        other = _beside_stream(torch, device, one, two, functools.partial(torch.bmm, left, right))
        yield _row(device, f"{held} multiprocessors", *other)


def _beside_stream(torch: Any, device: Device, one: Any, two: Any, other: Any) -> tuple[float, float]:
    """Return the seconds of the product alone, and while a second stream runs the other kernel over and over."""
    alone = device.seconds(torch.mm, one, two)
    beside, calls = torch.cuda.Stream(), 200
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(beside):
        for _ in range(calls * max(1, int(alone / max(device.seconds(other), alone / 20)))):
            other()
    first.record()
    for _ in range(calls // 10):
        torch.mm(one, two)
    last.record()
    last.synchronize()
    together = parse(f"{first.elapsed_time(last)} ms", "s") / (calls // 10)
    torch.cuda.synchronize()
    return alone, together


def _copy_until(stop: Any) -> None:
    """Copy memory until told to stop: a process of its own, as threads of one would share its lock."""
    source, target = bytearray(2**26), bytearray(2**26)
    while not stop.is_set():
        target[:] = source


def _beside_process(torch: Any, device: Device, quick: bool) -> tuple[float, float]:
    size = 256 if quick else 512
    one, two = torch.randn(size, size), torch.randn(size, size)
    alone = device.seconds(torch.mm, one, two)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    other = context.Process(target=_copy_until, args=(stop,), daemon=True)
    other.start()
    time.sleep(1.0)
    try:
        beside = device.seconds(torch.mm, one, two)
    finally:
        stop.set()
        other.join(timeout=10)
    return alone, beside


def _row(device: Device, beside: str, alone: float, together: float) -> dict[str, Any]:
    return {
        "gpu": device.name,
        "kind": "gemm",
        "beside": beside,
        "alone_s": f"{alone:.6g}",
        "beside_s": f"{together:.6g}",
        "slowdown": f"{together / alone:.4g}",
        "software": device.software,
    }


def write_overlap(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the table."""
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, OVERLAP_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
