"""Parameter servers that wait for nobody: servers update with every push, and a worker waits for its own pull alone.

    workers at their own pace: rates r_1, r_2, ...                   asynchronous: they add up, up to what the servers' cards carry
    none more than s steps ahead of the slowest                      stale-synchronous: in the long run all go at the slowest's pace

A worker is a node, whose GPUs add up first.  Between a worker's pull and its push the others have pushed: that is the staleness of its
gradient, sum of r_others / r_own steps in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from simulator.lowering.exchanges.parameter_server import ParameterServer

__all__ = ["StaleParameterServer"]


class StaleParameterServer(ParameterServer):
    """Asynchronous, or stale-synchronous with a bound."""

    name = "stale_parameter_server"
    aliases = ("asynchronous_parameter_server",)
    source = "Li et al., OSDI 2014; Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013"
    options: ClassVar[Mapping[str, float | None]] = {
        "exchange_servers": None,
        "exchange_priority": False,
        "exchange_staleness": math.inf,
    }
    stale = True
    unsaid = "what gradients of older weights cost in steps to an accuracy, and queues at servers that are not full"
