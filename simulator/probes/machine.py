"""This machine as data files: a processor that stands for GPUs, so that measure, calibrate, predict, compare run anywhere.

Its peak is the fastest product seen, its memory bandwidth the fastest copy.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.probes.torch_device import MACHINE, Device, import_torch
from simulator.specs import write_text
from simulator.units import show

__all__ = ["describe_machine", "machine_files"]


def describe_machine(device: Device, folder: Path) -> list[Path]:
    """Measure peak and memory bandwidth, write gpus, links, nodes and clusters; return the files.

    Raises:
        SpecError: the device is a GPU: its data sheet says more than a measurement can.
    """
    if device.kind != "cpu":
        raise SpecError(
            f"the machine has a {device.name}: describe it from its data sheet (docs/data_files.md); only a processor "
            f"that stands for GPUs is measured"
        )
    torch = import_torch()
    peak = max(_product_rate(torch, device, size) for size in (192, 256, 384, 512, 768) for _ in range(2))
    source, target = torch.randn(2**22), torch.empty(2**22)
    rate = max(2.0 * source.nbytes / device.seconds(target.copy_, source) for _ in range(3))
    written = []
    for kind, text in machine_files(device, peak, rate).items():
        path = folder / "hardware_specs" / kind / f"{MACHINE}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        written.append(path)
    return written


def _product_rate(torch: Any, device: Device, size: int) -> float:
    """Return the FLOP/s of a square product."""
    return 2.0 * size**3 / device.seconds(torch.mm, torch.randn(size, size), torch.randn(size, size))


def machine_files(device: Device, peak: float, rate: float) -> dict[str, str]:
    """Return the text of each data file by kind.

    Args:
        device: the processor.
        peak: fastest product [FLOP/s].
        rate: fastest copy, read and written bytes [B/s].
    """
    today = datetime.date.today().isoformat()
    source = f'[sources]\n"*" = {json.dumps(f"dtsim measure machine, {today}: {device.software}")}\n'
    gpu = f"""name = "{MACHINE}"
vendor = "processor"
architecture = "processor"
form = "socket"
memory = "{device.memory / device.count:.0f} B"
memory_bandwidth = "{show(rate, "B/s")}"
streaming_multiprocessors = {device.units}
power = "100 W"
boost_clock = "2 GHz"
notes = "A processor that stands for {device.count} GPUs."

[peak_flops]
fp32 = "{show(peak, "FLOP/s")}"
bf16 = "{show(peak, "FLOP/s")}"

{source}power = "guessed; the clock is not modelled"
boost_clock = "guessed; the clock is not modelled"
"""
    link = f"""name = "{MACHINE}"
technology = "pcie"
bandwidth = "{show(rate / 2, "B/s")}"
latency = "1 us"
switched = true

{source}latency = "guessed"
"""
    node = f"""name = "{MACHINE}"
gpu = "{MACHINE}"
gpus = {device.count}
link = "{MACHINE}"
host_link = "{MACHINE}"
host = "intel"
in_network_reduction = false
peer_to_peer = false

{source}"""
    cluster = f'name = "{MACHINE}"\nnode = "{MACHINE}"\nnodes = 1\n\n{source}'
    return {"gpus": gpu, "links": link, "nodes": node, "clusters": cluster}
