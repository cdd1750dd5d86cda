"""What one process that launches for several GPUs costs: the host's time, not the wires'.

nccl-tests -g 8 calls the collective for one GPU after the other and does not wait between iterations.  So an iteration
takes about as long as the host needs for its calls, or as the GPUs, whichever is longer: on eight A100 all_reduce,
all_gather and broadcast alike take 35 us up to 64 KiB, and alltoall, of sixteen calls per GPU, 86 us up to 2 MiB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.hardware.coefficients import load_cost_table

__all__ = ["host_seconds", "with_host"]

_SHARPNESS = 3
"""The GPUs of an iteration start one after the other, so where host and GPUs take alike neither hides the other wholly."""

_PEERS = ("all_to_all", "gather", "scatter")


def host_seconds(log: NcclLog, launch: float) -> float:
    """Return the seconds [s] below which one process that launches for all GPUs of a node cannot stay; 0 for others.

    Args:
        log: of which single_process says whether it was run so.
        launch: seconds per GPU and collective [s].
    """
    if not log.single_process:
        return 0.0
    calls = 2 * log.place.ranks if log.kind in _PEERS else 2 if log.kind == "send_recv" else 0
    gpus = min(log.place.ranks_per_node, log.fabric.node_size)
    return gpus * (launch + calls * load_cost_table().point_to_point_call)


def with_host(device: ArrayLike, host: float) -> NDArray[np.float64]:
    """Return the seconds of an iteration whose GPUs take `device` [s] and whose host takes `host` [s].

    >>> round(float(with_host(35e-6, 0.0)) * 1e6), round(float(with_host(1e-3, 35e-6)) * 1e6)
    (35, 1000)
    """
    seconds = np.asarray(device, np.float64)
    return np.asarray((seconds**_SHARPNESS + host**_SHARPNESS) ** (1 / _SHARPNESS)) if host else seconds
