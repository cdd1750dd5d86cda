"""Times of collectives: by nccl-tests where it is installed, else by torch.distributed with one process per rank.

Both are kept as text in the form of nccl-tests, so that one reader serves, and people too.
"""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from simulator.collectives import bus_factor
from simulator.errors import CalibrationError
from simulator.probes.torch_device import Device, import_torch
from simulator.specs import write_text
from simulator.units import in_unit

__all__ = ["KINDS", "format_table", "measure_collectives"]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""What is measured; of gloo, what it can do."""

_PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
}
_WITH_GLOO = ("all_reduce", "all_gather")
_ELEMENT = 4


def measure_collectives(device: Device, folder: Path, quick: bool = False) -> list[Path]:
    """Measure on all GPUs of this machine, or on processes that stand for them; return the files written.

    Raises:
        CalibrationError: fewer than two GPUs, or the benchmark fails; its last words are in the message.
    """
    if device.count < 2:
        raise CalibrationError(
            "collectives need at least two ranks, but this machine has one GPU. Measure on a node with several, or let "
            "the processor stand for GPUs: CUDA_VISIBLE_DEVICES= dtsim measure nccl"
        )
    written = []
    for kind in KINDS if device.kind == "cuda" else _WITH_GLOO:
        program = shutil.which(_PROGRAMS[kind]) if device.kind == "cuda" else None
        text = _by_program(program, device, quick) if program else _by_torch(kind, device, quick)
        path = folder / f"nccl_{kind}.txt"
        write_text(path, text)
        written.append(path)
    return written


def _by_program(program: str, device: Device, quick: bool) -> str:
    largest = "64M" if quick else "4G"
    command = [program, "-b", "1K", "-e", largest, "-f", "2", "-g", str(device.count), "-n", "20", "-w", "5"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CalibrationError(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        raise CalibrationError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def _by_torch(kind: str, device: Device, quick: bool) -> str:
    torch = import_torch()
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "times.txt"
        port = _free_port()
        arguments = (device.count, port, kind, device.kind, _largest(device, quick), str(result))
        try:
            processes.spawn(_rank, args=arguments, nprocs=device.count, join=True)
        except Exception as error:
            raise CalibrationError(f"torch.distributed {kind} failed: {str(error).strip()[-300:]}") from None
        times = [tuple(map(float, line.split())) for line in result.read_text(encoding="utf-8").splitlines()]
    backend = "nccl" if device.kind == "cuda" else "gloo"
    library = f"torch {torch.__version__}, {backend}"
    return format_table(kind, [(size, seconds) for size, seconds in times], device, library)


def _largest(device: Device, quick: bool) -> int:
    return (
        2**32 if device.kind == "cuda" and not quick else 2**26 if device.kind == "cuda" else 2**20 if quick else 2**24
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(rank: int, ranks: int, port: int, kind: str, device: str, largest: int, result: str) -> None:
    """One process: all ranks call in step; the slowest's time counts, as in nccl-tests the mean of rounds does."""
    torch = import_torch()
    import torch.distributed as distributed

    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(minutes=5),
    )
    lines = []
    size = 1024
    while size <= largest:
        seconds = _timed_call(torch, distributed, kind, size, ranks, device)
        lines.append(f"{size} {seconds!r}")
        size *= 2
    if rank == 0:
        Path(result).write_text("\n".join(lines), encoding="utf-8")
    distributed.destroy_process_group()


def _timed_call(torch: Any, distributed: Any, kind: str, size: int, ranks: int, device: str) -> float:
    """Return the mean seconds of one call, of the slowest rank; the best of three rounds."""
    run = _call(torch, distributed, kind, size, ranks, device)
    clock = Device(kind=device, name="", count=ranks, units=1, memory=0.0, software="")
    calls = 20 if size <= 2**22 else 5
    for _ in range(5):
        run()
    rounds = []
    for _ in range(3):
        distributed.barrier()
        took = torch.tensor([clock.timed(run, calls) / calls], dtype=torch.float64, device=device)
        distributed.all_reduce(took, op=distributed.ReduceOp.MAX)
        rounds.append(float(took.item()))
    return min(rounds)


def _call(torch: Any, distributed: Any, kind: str, size: int, ranks: int, device: str) -> Any:
    """Return a function that runs the collective once; `size` is its largest buffer [B], rounded to whole parts."""
    count = max(1, size // _ELEMENT // ranks) * ranks
    whole = torch.zeros(count, device=device)
    part = torch.zeros(count // ranks, device=device)
    other = torch.zeros(count, device=device)
    if kind == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    if kind == "all_gather":
        parts = list(whole.chunk(ranks))
        return (
            (lambda: distributed.all_gather_into_tensor(whole, part))
            if device == "cuda"
            else (lambda: distributed.all_gather(parts, part))
        )
    if kind == "reduce_scatter":
        return lambda: distributed.reduce_scatter_tensor(part, whole)
    return lambda: distributed.all_to_all_single(other, whole)


def format_table(kind: str, times: list[tuple[float, float]], device: Device, library: str) -> str:
    """Return measured (message [B], seconds) as a text in the form of nccl-tests."""
    program = _PROGRAMS[kind].removesuffix("_perf")
    host = socket.gethostname() or "localhost"
    lines = [
        f"# Collective test starting: {program}_perf (dtsim measure, {library})",
        f"# nThread 1 nGpus 1 minBytes {times[0][0]:.0f} maxBytes {times[-1][0]:.0f} step: 2(factor)",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid {os.getpid() + rank} on {host} device {rank} [0000:{rank + 1:02x}:00] "
            f"{device.name}"
            for rank in range(device.count)
        ),
        "#       size         count      type   redop    root     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
    ]
    factor = bus_factor(kind, device.count)
    operation = "sum" if kind in ("all_reduce", "reduce_scatter") else "none"
    for size, seconds in times:
        rate = in_unit(size / seconds, "GB/s", "B/s")
        lines.append(
            f"{size:12.0f} {size / _ELEMENT:13.0f} {'float':>9s} {operation:>7s} {-1:7d} "
            f"{in_unit(seconds, 'us', 's'):8.2f} {rate:7.2f} {rate * factor:7.2f}    N/A"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : not computed", ""]
    return "\n".join(lines)
