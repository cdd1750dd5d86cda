"""Times of single kernels: products, fused attention, and kernels that only move bytes.

Rows have the columns of the tables that `dtsim calibrate` and `dtsim validate` read.
"""

from __future__ import annotations

import csv
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simulator.probes.torch_device import Device, import_torch
from simulator.specs import replacing
from simulator.units import in_unit, parse

__all__ = ["COLUMNS", "attention_rows", "gemm_rows", "memory_rows", "write_rows"]

COLUMNS = (
    "id", "source", "gpu", "op", "m", "n", "k", "batch", "layout", "dtype", "out_dtype", "accumulate", "seq_len",
    "heads", "kv_heads", "head_dim", "causal", "direction", "bytes", "time_ms", "tflops", "gbps", "software", "quality",
)  # fmt: skip
"""Columns of the tables; sizes in elements, bytes of memory traffic, 10^9 B/s."""

Row = dict[str, Any]
_TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_MODELS = ((1024, 4096), (2048, 8192), (4096, 11008), (5120, 13824), (8192, 28672))
"""(hidden, inner) sizes whose weights are multiplied on a GPU."""
_CUBES = (512, 1024, 2048, 4096, 8192, 16384)
_SMALL = tuple(itertools.product((64, 128, 256, 512), repeat=2))


def gemm_rows(device: Device, quick: bool = False) -> Iterator[Row]:
    """Yield the time of each product: forward (TN), input gradient (NN) and weight gradient (NT)."""
    torch = import_torch()
    for dtype in _dtypes(device):
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        for (m, n, k), layout in _products(device, quick):
            kind = getattr(torch, _TYPES[dtype])
            left = _matrix(torch, m, k, layout == "NT", kind, device.kind)
            right = _matrix(torch, k, n, layout == "TN", kind, device.kind)
            seconds = device.seconds(torch.mm, left, right)
            yield _row(device, "gemm", seconds, 2.0 * m * n * k, m=m, n=n, k=k, batch=1, layout=layout, dtype=dtype)


def _products(device: Device, quick: bool) -> Iterator[tuple[tuple[int, int, int], str]]:
    """Yield ((m, n, k), layout): the result has m rows and n columns, k is summed over."""
    if device.kind == "cpu" or quick:
        for m, n in _SMALL[:: 3 if quick else 1]:
            yield (m, n, 256), "TN"
        for size in (128, 256, 384, 512, 768) if quick else (128, 256, 384, 512, 768, 1024):
            yield (size, size, size), "NN"
        yield (512, 512, 512), "NT"
        return
    for size in _CUBES:
        yield (size, size, size), "TN"
    for tokens, (hidden, inner) in itertools.product((1024, 4096, 16384), _MODELS):
        for wide, deep in ((3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)):
            yield (tokens, wide, deep), "TN"
            yield (tokens, deep, wide), "NN"
            yield (wide, deep, tokens), "NT"


def _matrix(torch: Any, rows: int, columns: int, transposed: bool, dtype: Any, kind: str) -> Any:
    if transposed:
        return torch.randn(columns, rows, device=kind, dtype=dtype).t()
    return torch.randn(rows, columns, device=kind, dtype=dtype)


def _dtypes(device: Device) -> tuple[str, ...]:
    return ("bf16", "fp16", "tf32") if device.kind == "cuda" else ("fp32",)


def attention_rows(device: Device, quick: bool = False) -> Iterator[Row]:
    """Yield the time of fused attention, forward and backward, masked and not, by sequence length."""
    torch = import_torch()
    attend = torch.nn.functional.scaled_dot_product_attention
    dtype = "bf16" if device.kind == "cuda" else "fp32"
    tokens = 16384 if device.kind == "cuda" else 512
    lengths = (512, 1024, 2048, 4096, 8192, 16384) if device.kind == "cuda" else (128, 256, 512)
    heads = 16 if device.kind == "cuda" else 4
    for length, width, causal in itertools.product(lengths[:2] if quick else lengths, (64, 128), (False, True)):
        batch = max(1, tokens // length)
        shape = (batch, heads, length, width)
        query, key, value = (
            torch.randn(shape, device=device.kind, dtype=getattr(torch, _TYPES[dtype]), requires_grad=True)
            for _ in range(3)
        )
        facts = dict(batch=batch, heads=heads, kv_heads=heads, seq_len=length, head_dim=width, causal=int(causal))
        work = 4.0 * batch * heads * length**2 * width * (0.5 if causal else 1.0)
        with torch.no_grad():
            forward = device.seconds(functools.partial(attend, query, key, value, is_causal=causal))
        yield _row(device, "attention", forward, work, dtype=dtype, direction="fwd", **facts)
        result = attend(query, key, value, is_causal=causal)
        gradient = torch.randn_like(result)
        tensors = (query, key, value)
        backward = device.seconds(functools.partial(torch.autograd.grad, result, tensors, gradient, retain_graph=True))
        yield _row(device, "attention", backward, 2.5 * work, dtype=dtype, direction="bwd", **facts)


def memory_rows(device: Device, quick: bool = False) -> Iterator[Row]:
    """Yield the time of kernels that only move bytes: copy, sum, normalisation, softmax, optimizer, host copies."""
    torch = import_torch()
    largest = 30 if device.kind == "cuda" else 25
    for power in range(16, largest + 1, 3 if quick else 1):
        count = 2**power // 4
        one, two, out = (torch.randn(count, device=device.kind) for _ in range(3))
        yield _moved(device, "copy", device.seconds(out.copy_, one), 8.0 * count)
        yield _moved(device, "add", device.seconds(functools.partial(torch.add, one, two, out=out)), 12.0 * count)
        rows = one.view(-1, 1024)
        norm = device.seconds(torch.nn.functional.layer_norm, rows, (1024,))
        yield _moved(device, "layer_norm", norm, 8.0 * count)
        yield _moved(device, "softmax", device.seconds(torch.softmax, rows, -1), 8.0 * count)
    yield from _optimizer_rows(torch, device, quick)
    if device.kind == "cuda":
        yield from _launch_rows(torch, device)


def _optimizer_rows(torch: Any, device: Device, quick: bool) -> Iterator[Row]:
    """AdamW reads weight, gradient and two moments and writes three of them: 28 bytes per parameter in fp32."""
    for power in (18, 22) if quick or device.kind == "cpu" else (18, 22, 26, 28):
        weight = torch.nn.Parameter(torch.randn(2**power, device=device.kind))
        weight.grad = torch.randn_like(weight)
        optimizer = torch.optim.AdamW([weight], fused=device.kind == "cuda")
        yield _moved(device, "adamw", device.seconds(optimizer.step), 28.0 * 2**power)


def _launch_rows(torch: Any, device: Device) -> Iterator[Row]:
    """The smallest kernel, queued one by one and replayed from a CUDA graph; copies between host and GPU."""
    tiny = torch.zeros(1, device="cuda")
    yield _moved(device, "launch", device.seconds(tiny.add_, 1), 8.0)
    graph, calls = torch.cuda.CUDAGraph(), 100
    with torch.cuda.graph(graph):
        for _ in range(calls):
            tiny.add_(1)
    yield _moved(device, "graph_launch", device.seconds(graph.replay) / calls, 8.0)
    host = torch.empty(2**26, pin_memory=True)
    there = torch.empty(2**26, device="cuda")
    to_device = functools.partial(there.copy_, host, non_blocking=True)
    to_host = functools.partial(host.copy_, there, non_blocking=True)
    yield _moved(device, "host_to_device", device.seconds(to_device), 4.0 * 2**26)
    yield _moved(device, "device_to_host", device.seconds(to_host), 4.0 * 2**26)


def _moved(device: Device, op: str, seconds: float, traffic: float) -> Row:
    row = _row(device, op, seconds, 0.0, dtype="fp32", bytes=int(traffic))
    return row | {"tflops": "", "gbps": f"{in_unit(traffic / seconds, 'GB/s', 'B/s'):.6g}"}


def _row(device: Device, op: str, seconds: float, work: float, **facts: Any) -> Row:
    return {
        "source": "dtsim measure on this machine",
        "gpu": device.name,
        "op": op,
        "time_ms": f"{in_unit(max(seconds, parse('1 ns', 's')), 'ms', 's'):.6g}",
        "tflops": f"{in_unit(work / seconds, 'TFLOP/s', 'FLOP/s'):.6g}",
        "software": device.software,
        "quality": "A",
    } | facts


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write a table; each row gets a number as its id."""
    with replacing(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows({"id": f"{row['op']}-{i:04d}"} | row for i, row in enumerate(rows, 1))
