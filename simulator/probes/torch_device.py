"""What there is to measure on this machine, and a clock for it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.units import parse

__all__ = ["MACHINE", "Device", "find_device", "import_torch", "require_torch"]

MACHINE = "this_machine"
"""Name of a processor that stands for GPUs, and of its data files."""

_ENOUGH = 0.05
"""Seconds that the repeats of one measurement take at least."""
_REPEATS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or this machine's processor in its place.

    Args:
        kind: "cuda" (also ROCm) or "cpu".
        name: as the driver says; of a processor the name of the data files that `measure machine` writes.
        count: GPUs, or processes that stand for them.
        units: multiprocessors, or cores.
        memory: capacity [B].
        software: versions.
    """

    kind: str
    name: str
    count: int
    units: int
    memory: float
    software: str

    def seconds(self, call: Callable[..., Any], *arguments: Any) -> float:
        """Return the seconds of one call with these arguments, each repeat long enough for the clock.

        On a GPU the median of the repeats; calls are queued behind each other, so that the host's launch is hidden as in
        training.  On a processor the quickest, for other programs take it away now and then.
        """

        def run() -> None:
            call(*arguments)

        for _ in range(3):
            run()
        once = max(self.timed(run, 1), parse("1 us", "s"))
        calls = max(1, min(1000, int(_ENOUGH / _REPEATS / once)))
        found = [self.timed(run, calls) / calls for _ in range(_REPEATS)]
        return min(found) if self.kind == "cpu" else statistics.median(found)

    def timed(self, run: Callable[[], Any], calls: int) -> float:
        """Return the seconds of so many calls in a row, until the last has ended."""
        if self.kind == "cpu":
            start = time.perf_counter()
            for _ in range(calls):
                run()
            return time.perf_counter() - start
        torch = import_torch()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(calls):
            run()
        last.record()
        torch.cuda.synchronize()
        return parse(f"{first.elapsed_time(last)} ms", "s")


def require_torch() -> None:
    """Say what to install when torch is missing.

    Raises:
        SpecError: it is.
    """
    if importlib.util.find_spec("torch") is None:
        raise SpecError("measuring needs PyTorch, which is not installed: pip install torch")


def import_torch() -> Any:
    """Return the module torch.

    Raises:
        SpecError: it is not installed.
    """
    require_torch()
    import torch

    return torch


def find_device() -> Device:
    """Return the GPU that torch sees, or else the processor.

    Raises:
        SpecError: torch is not installed.
    """
    torch = import_torch()
    software = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        library = f", CUDA {torch.version.cuda}" if torch.version.cuda else f", HIP {torch.version.hip}"
        return Device(
            kind="cuda",
            name=facts.name,
            count=torch.cuda.device_count(),
            units=facts.multi_processor_count,
            memory=float(facts.total_memory),
            software=software + library,
        )
    torch.set_num_threads(1)  # one core stands for a GPU: threads would wait for each other on a busy machine
    return Device(
        kind="cpu",
        name=MACHINE,
        count=2,
        units=1,
        memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        software=f"{software}, one core of {_processor()}",
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.machine()
