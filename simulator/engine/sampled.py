"""Steps with noise, one after the other: the compiled engine over replicas, or an engine on the program unfolded in full.

Without interference, and where rows that slow each other never meet, `ReplicaEngine` is exact and quick.  Where they do, the
step runs unfolded, every replica with streams of its own; or, in large worlds, rows keep the stretch that interference gave
them in the step without noise (`NoisyStep.stretch`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.engine import run
from simulator.engine.noise import NoisyStep, StepTimes
from simulator.program.critical import critical_path
from simulator.program.prices import Prices
from simulator.program.program import Program
from simulator.program.trace import Trace
from simulator.program.unfold import Unfolded, unfold

__all__ = ["Chain", "SampledEngine", "row_prices", "unfold_fully"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """The longest chain of a step: rows of the folded program, replicas, and the seconds each row ran."""

    row: NDArray[np.int64]
    replica: NDArray[np.int64]
    seconds: NDArray[np.float64]


def unfold_fully(step: NoisyStep) -> tuple[Unfolded, Program]:
    """Return the program with every replica apart, and the same with an item of its own for each row, so that each row can
    have its own price."""
    each = np.arange(step.mesh.count, dtype=np.int64)
    unfolded = unfold(step.program, step.mesh, each, np.ones((step.mesh.count, step.program.ranks), np.int64))
    program = unfolded.program
    item = np.arange(program.size, dtype=np.int32)
    item.flags.writeable = False
    return unfolded, replace(program, items=tuple(program.items[i] for i in program.item.tolist()), item=item)


def row_prices(step: NoisyStep, unfolded: Unfolded, times: StepTimes) -> Prices:
    """Return prices with one item per row of the unfolded program; bars take no time, latency passes after the last bar."""
    row, replica, bar = unfolded.folded_row, unfolded.owner, unfolded.bar
    occupancy = np.where(bar, 0.0, times.occupancy[row, replica])
    index = times.latency_of[row]
    latency = np.zeros(len(row))
    has = np.flatnonzero(index >= 0)
    latency[has] = times.latency[index[has], replica[has]]
    item = step.item_of[step.class_of[replica], row]
    share = np.where(bar[:, None], 0.0, step.prices.share[item])
    plain = Prices.plain(occupancy, latency)
    return replace(plain, share=share, slowdown=step.prices.slowdown) if step.stretch is None else plain


class SampledEngine:
    """Runs noisy steps of one program.

    Args:
        step: the program, its replicas and prices.
        engine: "compiled" or "simpy".
        exact: whether steps in which rows slow each other run unfolded; False leaves them as `step.stretch` has them.
    """

    def __init__(self, step: NoisyStep, engine: str = "compiled", exact: bool = True) -> None:
        self.step, self.engine, self.exact = step, engine, exact
        self._fluid: Trace | None = None
        self._prices: Prices | None = None

    @functools.cached_property
    def _unfolded(self) -> tuple[Unfolded, Program]:
        return unfold_fully(self.step)

    @functools.cached_property
    def _replicas(self) -> Any:
        from simulator.engine.compiled_engine import settled_order
        from simulator.engine.replicas import ReplicaEngine

        return ReplicaEngine(
            self.step, settled_order(self.step.program, self.step.prices, self.step.item_of[0]), self.exact
        )

    def makespan(self, times: StepTimes) -> float:
        """Return the time of a step [s].

        Raises:
            DeadlockError: rows are left that wait for each other.
        """
        self._fluid = None
        if self.engine == "compiled":
            seconds: float = self._replicas.run(times)
            if not self.exact or not self._replicas.meets():
                return seconds
        unfolded, program = self._unfolded
        self._prices = row_prices(self.step, unfolded, times)
        self._fluid = run(program, self._prices, self.engine)
        return self._fluid.makespan

    def chain(self, times: StepTimes) -> Chain:
        """Return the longest chain of the step that `makespan` ran last; `times` are its own."""
        if self._fluid is None:
            rows, replicas, seconds = self._replicas.chain(times)
            return Chain(row=rows.astype(np.int64), replica=replicas.astype(np.int64), seconds=seconds)
        unfolded, program = self._unfolded
        path = critical_path(program, self._prices, self._fluid)  # type: ignore[arg-type]
        path = path[~unfolded.bar[path]]
        return Chain(
            row=unfolded.folded_row[path],
            replica=unfolded.owner[path],
            seconds=self._fluid.end[path] - self._fluid.start[path],
        )
