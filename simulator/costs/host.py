"""Seconds of what a GPU's host does for it: copies over the host link, and updates by the CPU.

    copy       start + bytes / (reached share of the link)          each direction of a duplex link by itself
    drives     bytes / this GPU's part of what the node's drives read, or write
    update     bytes that the CPU moves in its memory / this GPU's part of the memory's reached bandwidth

All GPUs of a job on a node are reckoned to use the host's memory at the same time, as they do at the end of a step.
"""

from __future__ import annotations

from simulator.errors import ProgramError, SpecError
from simulator.hardware.host import Host
from simulator.program.prices import PriceClass
from simulator.program.program import COPIES

__all__ = ["HOST_COPY_CLASS", "HOST_UPDATE_CLASS", "NVME_CLASS", "host_seconds"]

HOST_COPY_CLASS, HOST_UPDATE_CLASS, NVME_CLASS = PriceClass("host_copy"), PriceClass("host_update"), PriceClass("nvme")


def host_seconds(what: str, size: float, host: Host) -> tuple[float, PriceClass, float]:
    """Return (time [s], price class, sigma) of a copy or an update.

    Args:
        what: "to_host", "to_device", "host_update", "from_nvme" or "to_nvme".
        size: bytes.
        host: the GPU's part of its host.

    Raises:
        ProgramError: another word.
        SpecError: the node's file names no drives.

    >>> from simulator.hardware.cluster import load_cluster
    >>> from simulator.hardware.host import host_of
    >>> seconds, which, _ = host_seconds("to_host", 55.44e9, host_of(load_cluster("dgx_h100")))
    >>> round(seconds, 3), str(which)
    (1.0, 'host_copy')
    """
    if what == "host_update":
        return size / host.stream_bandwidth, HOST_UPDATE_CLASS, host.stream_sigma
    if what in ("from_nvme", "to_nvme"):
        rate = host.nvme_read if what == "from_nvme" else host.nvme_write
        if not rate:
            raise SpecError(
                "what is put on drives needs the node's drives, but its file gives no nvme, nvme_read and nvme_write. Way out: add "
                "them to the file, a cluster whose nodes have them (v100_dgx2), or offload to the host"
            )
        return size / rate, NVME_CLASS, host.nvme_sigma
    if what not in ("to_host", "to_device"):
        raise ProgramError(f"a copy is one of {', '.join(COPIES[1:])}, but one is {what!r}")
    seconds = host.copy_start + size / host.copy_bandwidth if size else 0.0
    return seconds, HOST_COPY_CLASS, host.copy_sigma
