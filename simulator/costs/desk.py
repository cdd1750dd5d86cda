"""Where items are priced: a machine, where mesh axes lie on its wires, and the host's times."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from simulator.costs.host_time import NO_HOST, HostTimes, host_times
from simulator.costs.tables import Machine, machine_of
from simulator.hardware.cluster import Cluster
from simulator.lowering.exchanges import EXCHANGES
from simulator.plan.framework import Framework
from simulator.program.prices import account_of
from simulator.program.program import Axes
from simulator.remembered import kept

__all__ = ["Desk", "desk_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Desk:
    """Where items are priced; equal only to itself, `desk_of` hands out one per cluster, mesh and host.

    Args:
        host: what the GPU's host does for it, at this cluster's pace.
        after_message: what a message that blocks keeps the GPU waiting for the host [s].
        end_of_step: the host's fixed time where it waits for the GPU [s].
        slice_time: the host's time for a tensor of a list [s].
        notice: how long a gradient waits for a thread that reduces what is ready, in the mean half a cycle [s].
        fuses: whether the communication of a fused pair hides under its compute.
        unbound: whether the threads of every rank's update on the host may run on every core.
    """

    machine: Machine
    axes: Axes
    host: HostTimes = NO_HOST
    after_message: float = 0.0
    end_of_step: float = 0.0
    slice_time: float = 0.0
    notice: float = 0.0
    fuses: bool = False
    unbound: bool = False

    @kept
    def names(self) -> frozenset[str]:
        """Of the mesh axes."""
        return frozenset([name for name, _ in self.axes])


@functools.lru_cache(maxsize=256)
def desk_of(cluster: Cluster, axes: Axes, framework: Framework | None, first: int = 0) -> Desk:
    """Return the desk of a cluster, a mesh and the framework whose host costs apply; None = the host costs nothing.

    Args:
        first: the world rank at which the mesh begins.
    """
    machine = machine_of(cluster, framework.backend if framework else "nccl", first)
    if framework is None:
        return _desk(machine, axes, NO_HOST, 0.0, 0.0, 0.0, 0.0, False, False)
    pace = cluster.pace.host
    gpus = math.prod(size for _, size in axes) if EXCHANGES.get(framework.gradient_exchange).one_process else 1
    return _desk(
        machine,
        axes,
        host_times(framework, cluster.node.host, pace / gpus, dict(axes).get("tp", 1) > 1),
        _message_wait(framework, axes) / pace,
        framework.step_time / pace,
        framework.slice_time / pace,
        framework.cycle_time / 2,
        framework.fuses_pairs,
        framework.unbound_host_threads,
    )


@functools.lru_cache(maxsize=256)
def _desk(
    machine: Machine,
    axes: Axes,
    host: HostTimes,
    after_message: float,
    end_of_step: float,
    slice_time: float,
    notice: float,
    fuses: bool,
    unbound: bool,
) -> Desk:
    return Desk(
        machine=machine,
        axes=axes,
        host=host,
        after_message=after_message,
        end_of_step=end_of_step,
        slice_time=slice_time,
        notice=notice,
        fuses=fuses,
        unbound=unbound,
    )


def _message_wait(host: Framework, axes: Axes) -> float:
    """How long a message that blocks keeps the GPU waiting for the host [s]; where only the description of a divided activation makes
    it wait, not at all without tensor parallelism."""
    divided = any(size > 1 and account_of((name,)) == "tp" for name, size in axes)
    return host.message_wait if divided or not host.partitions_activations else 0.0
