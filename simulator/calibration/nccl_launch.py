"""What one process that launches for several GPUs costs: the host's time, not the wires'.

nccl-tests -g 8 calls the collective for one GPU after the other and does not wait between iterations.  So an iteration
takes as long as the host needs for its calls, or as the slowest GPU, whichever is longer: on eight A100 all_reduce,
all_gather and broadcast alike take 35 us up to 64 KiB, and alltoall, of sixteen calls per GPU, 86 us up to 2 MiB.
"""

from __future__ import annotations

from simulator.calibration.nccl_logs import NcclLog
from simulator.hardware.coefficients import load_cost_table

__all__ = ["host_seconds"]

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

