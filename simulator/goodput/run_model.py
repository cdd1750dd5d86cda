"""A run as numbers: what both simulations of it mean, and nothing about how they do it.

**Work** is counted in seconds of undisturbed steps; a run ends when `work` is done and saved, or at `horizon` of wall time.

1. Components fail on wall time, whether the job runs or not.  What one failure does is its effect:
   *stop*: training ends at once; *slow*: training goes on at `pace` until the slowness ends by itself or is found;
   *corrupt*: nothing shows until it is found, and then everything computed since is worth nothing.
2. After a stop: `detection`, then machines are replaced (free spares at once, cold ones after `cold_start`, else the first
   that comes back from repair; with `paces` for fewer machines the job goes on without), then `restart`.  Any failure in this
   time begins it anew (as in Daly's model).
3. Work is done again from the last checkpoint that was safe.  A checkpoint is due after `interval` of work: training stands for
   `stall`; it is safe `write` later, while training goes on at 1 - `drag` of its pace.  The next one waits for it.
   A checkpoint under way is lost with a failure.  With a `near` copy a failure that takes fewer than `copies` machines
   goes back to the near one, others to the last of every `far_every` that also went to the file system.
4. A planned stop (maintenance, a slow machine found, a repaired machine that joins a smaller job) first saves, waits until that is
   safe, and restarts; nothing is done again.
5. Every second of wall time belongs to one account, or is useful: the first time that work which lasted was done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACCOUNTS", "CORRUPT", "MAINTENANCE", "SLOW", "STOP", "Causes", "RunModel", "Runs"]

ACCOUNTS = ("detection", "restart", "rework", "checkpoint", "slow", "repair", "maintenance")
"""Where time is lost; `repair` is waiting for a machine, `slow` also what fewer machines cost."""
STOP, SLOW, CORRUPT = 0, 1, 2
MAINTENANCE = "maintenance"
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Causes:
    """Ways of failing, one row each.

    Args:
        name: of the component.
        effect: STOP, SLOW or CORRUPT.
        count: components.
        scale, shape: of the Weibull distribution of one component's life [s]; shape 1: scale is the mean time between failures.
        age: of the components at the start [s].
        detection: until it is found [s].
        lasts: until a slow one is well again by itself [s]; inf = never.
        pace: of a job with one slow component.
        nodes: machines it takes away.
    """

    name: tuple[str, ...]
    effect: NDArray[np.int64]
    count: NDArray[np.int64]
    scale: Floats
    shape: Floats
    age: Floats
    detection: Floats
    lasts: Floats
    pace: Floats
    nodes: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Failures that stop the job per second, by mean lives."""
        means = self.scale * np.array([math.gamma(1.0 + 1.0 / k) for k in self.shape])
        return float((self.count / means)[self.effect == STOP].sum()) if len(self.name) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunModel:
    """A run; times in seconds.

    Args:
        work: of undisturbed steps; inf where the horizon ends the run.
        horizon: wall time at which a run ends in any case; inf = when its work is done.
        causes: of failures.
        restart: from the moment that machines are there.
        interval: work between two checkpoints; inf = one at the end, 0 = none at all.
        stall, write, drag: of a checkpoint, see the head of this file.
        near: until the copy at a neighbour is safe; < 0 = there is none.
        far_every: every which checkpoint goes to the file system.
        copies: machines that hold the same near copy.
        spares, cold_spares: machines that stand by; spares < 0 = a replacement is always at hand.
        cold_start, repair: of one machine; repair is the mean of an exponential distribution.
        crews: repairs at a time; 0 = any number.
        paces: of the job with 0, 1, 2, ... machines missing.
        evict: whether slow components that were found are replaced at once.
        maintenance_every, maintenance_length: windows; inf = none.
        limit: wall time after which a run counts as one that never ends.
    """

    work: float
    horizon: float = math.inf
    causes: Causes
    restart: float = 0.0
    interval: float = 0.0
    stall: float = 0.0
    write: float = 0.0
    drag: float = 0.0
    near: float = -1.0
    far_every: int = 1
    copies: int = 2
    spares: int = -1
    cold_spares: int = 0
    cold_start: float = 0.0
    repair: float = 0.0
    crews: int = 0
    paces: Floats
    evict: bool = True
    maintenance_every: float = math.inf
    maintenance_length: float = 0.0
    limit: float = math.inf

    @property
    def scalars(self) -> Floats:
        """What the compiled loop takes, in the order that it unpacks."""
        return np.array(
            [
                self.work, self.horizon, self.restart, self.interval, self.stall, self.write, self.drag, self.near,
                self.far_every, self.copies, self.spares, self.cold_spares, self.cold_start, self.repair, self.crews,
                self.evict, self.maintenance_every, self.maintenance_length, self.limit,
            ],
            np.float64,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """What came of some runs.

    Args:
        model: what was run.
        wall: [samples] seconds from start to end.
        done: [samples] seconds of work that was done and lasted.
        lost: [samples, ACCOUNTS] seconds.
        interruptions: [samples, causes + 1] by cause, and for maintenance.
        waits: [samples] interruptions in which the job had to wait for a machine.
    """

    model: RunModel
    wall: Floats
    done: Floats
    lost: Floats
    interruptions: NDArray[np.int64]
    waits: NDArray[np.int64]

    @property
    def goodput(self) -> Floats:
        """[samples] useful time over all time."""
        return self.done / np.where(self.wall > 0.0, self.wall, 1.0)

    def __len__(self) -> int:
        return len(self.wall)

    @classmethod
    def join(cls, parts: list[Runs]) -> Runs:
        """Return several batches of the same model as one."""
        fields: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("wall", "done", "lost", "interruptions", "waits")
        }
        return cls(model=parts[0].model, **fields)
