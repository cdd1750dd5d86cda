"""Where the time of a step goes: each instant of each rank's compute stream belongs to exactly one account.

    |--0F0--|....wait....|--0B0--|...end of step...|
     forward   ^           backward   ^
     (tp, host |                      a collective that still runs -> dp; else bubble
      inside)  the row that ended the wait tells: in flight -> pp, a collective -> its account, the rest -> bubble

* While a compute row runs, its time is split as its price is; a row slowed by others is split in the same proportion.
* An idle time ends because one row ended, the latest of those the next compute row waits for.  As long as that row ran
  (or its message was in flight) the rank waited for it; if another transfer or collective kept that one waiting, the
  other is blamed for the time before.  Where the cause is computation of another rank, the rank was in the bubble.
* After its last compute row a rank waits for the transfers and collectives it takes part in; where several run, for the
  one that ends last.

The accounts of a rank sum to the step time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ProgramError
from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import Link, Program
from simulator.program.trace import Trace

__all__ = ["EXPOSED", "breakdown", "exposed_communication", "mean_breakdown"]

EXPOSED = ("tp", "cp", "ep", "pp", "dp")
"""Accounts that are communication which nothing hides."""


def breakdown(
    program: Program, prices: Prices, trace: Trace, window: tuple[float, float] | None = None
) -> NDArray[np.float64]:
    """Return [ranks, len(ACCOUNTS)] seconds; each row sums to the makespan, or to the length of the window.

    Args:
        program: what ran.
        prices: seconds by account of each item, and latencies.
        trace: when it ran.
        window: (start, end) [s] of the part of the step to account for; by default all of it.

    Segments without priced accounts (abstract schedules) count whole for their phase.

    Raises:
        ProgramError: a link names an account that does not exist.
    """
    from simulator.report import breakdown_kernel

    low, high = (0.0, trace.makespan) if window is None else window
    out = np.zeros((program.ranks, len(ACCOUNTS)))
    account, fraction = _accounts(program, prices)

    def ints(array: NDArray[np.generic], dtype: type[np.generic] = np.int32) -> NDArray[np.generic]:
        return np.ascontiguousarray(array, dtype)

    account_instants: Any = breakdown_kernel.account_instants
    account_instants(
        ints(program.item),
        ints(program.stream_offsets, np.int64),
        ints(program.streams),
        ints(program.stream_rank),
        ints(program.compute_stream),
        ints(program.after_offsets, np.int64),
        ints(program.after),
        *(np.ascontiguousarray(array, np.float64) for array in (trace.start, trace.end, prices.latency)),
        fraction,
        account,
        (float(low), float(high)),
        ACCOUNTS.index("bubble"),
        out,
    )
    return out


def mean_breakdown(program: Program, table: NDArray[np.float64]) -> dict[str, float]:
    """Return seconds by account, the mean over real ranks (a folded rank counts `rank_weight` times) of `breakdown`."""
    mean = program.rank_weight @ table / program.rank_weight.sum()
    return {name: float(seconds) for name, seconds in zip(ACCOUNTS, mean, strict=True)}


def exposed_communication(program: Program, table: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean seconds a rank waits in or for communication: tp, cp, ep, pp and dp of `mean_breakdown`."""
    mean = mean_breakdown(program, table)
    return {name: mean[name] for name in EXPOSED}


def _accounts(program: Program, prices: Prices) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Per item: its account if it is a link, -1 for segments; and the parts of a segment's time by account (sum 1)."""
    account = np.full(len(program.items), -1, np.int32)
    total = prices.account.sum(axis=1)
    fraction = prices.account / np.where(total > 0.0, total, 1.0)[:, np.newaxis]
    for number, item in enumerate(program.items):
        if isinstance(item, Link):
            if item.account not in ACCOUNTS:
                raise ProgramError(
                    f"the waiting for a link goes to one of {', '.join(ACCOUNTS)}, but link "
                    f"{item.name!r} names {item.account!r}; give it one of these."
                )
            account[number] = ACCOUNTS.index(item.account)
        elif total[number] <= 0.0:
            fraction[number] = 0.0
            fraction[number, ACCOUNTS.index(item.phase)] = 1.0
    return account, fraction
