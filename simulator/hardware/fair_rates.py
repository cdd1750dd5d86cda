"""Max-min fair rates: what flows get that share links, as a well-behaved network divides them.

Progressive filling: all flows grow together until a link is full; its flows keep what they have, the others grow on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["drain_seconds", "fair_rates"]

TOLERANCE = 1e-12
"""Links that fill, and flows that end, within this relative distance do so together."""


def fair_rates(
    bandwidth: NDArray[np.float64], flow: NDArray[np.int64], link: NDArray[np.int64], flows: int
) -> NDArray[np.float64]:
    """Return the rate of every flow [B/s]; infinite for a flow that uses no link.

    Args:
        bandwidth: of every link [B/s].
        flow, link: flow `flow[i]` uses link `link[i]`.
        flows: how many there are.

    >>> fair_rates(np.array([1.0, 10.0]), np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]), 3)
    array([0.5, 0.5, 9.5])
    """
    rate = np.full(flows, np.inf)
    used, link = np.unique(link, return_inverse=True)
    left = bandwidth[used].astype(np.float64)
    while len(flow):
        count = np.bincount(link, minlength=len(used))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(count > 0, left / count, np.inf)
        level = share.min()
        full = np.zeros(flows, bool)
        full[flow[(share <= level * (1 + TOLERANCE))[link]]] = True
        rate[full] = level
        stays = ~full[flow]
        left = np.maximum(left - level * np.bincount(link[~stays], minlength=len(used)), 0.0)
        flow, link = flow[stays], link[stays]
    return rate


def drain_seconds(
    bandwidth: NDArray[np.float64], flow: NDArray[np.int64], link: NDArray[np.int64], size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return when each flow ends [s] that starts at 0 with `size` bytes; those who end leave their share to the others.

    >>> drain_seconds(np.array([1.0]), np.array([0, 1]), np.array([0, 0]), np.array([1.0, 3.0]))
    array([2., 4.])
    """
    left, end, now = size.astype(np.float64), np.zeros(len(size)), 0.0
    open_flows = np.flatnonzero(left > 0)
    while len(open_flows):
        number = np.full(len(size), -1)
        number[open_flows] = np.arange(len(open_flows))
        kept = number[flow] >= 0
        rate = fair_rates(bandwidth, number[flow[kept]], link[kept], len(open_flows))
        needs = left[open_flows] / rate
        step = needs.min()
        now += step
        done = needs <= step * (1 + TOLERANCE)
        end[open_flows[done]] = now
        left[open_flows] -= step * np.where(np.isfinite(rate), rate, 0.0)
        open_flows = open_flows[~done]
    return end
