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

__all__ = ["Chain", "SampledEngine", "row_times", "unfold_fully"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """The longest chain of a step: rows of the folded program, replicas, and the seconds each row ran."""

    row: NDArray[np.int64]
    replica: NDArray[np.int64]
    seconds: NDArray[np.float64]


def unfold_fully(step: NoisyStep) -> tuple[Unfolded, Program]:
    """Return the program with every replica apart, and the same with an item number of its own for each row."""
    each = np.arange(step.mesh.count, dtype=np.int64)
    unfolded = unfold(step.program, step.mesh, each, np.ones((step.mesh.count, step.program.ranks), np.int64))
    item = np.arange(unfolded.program.size, dtype=np.int32)
    item.flags.writeable = False
    return unfolded, replace(unfolded.program, item=item)


def row_times(unfolded: Unfolded, times: StepTimes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return occupancy and latency [s] of every row of the unfolded program; bars take no time."""
    row, replica = unfolded.folded_row, unfolded.owner
    occupancy = np.where(unfolded.bar, 0.0, times.occupancy[row, replica])
    index = times.latency_of[row]
    latency = np.zeros(len(row))
    has = np.flatnonzero(index >= 0)
    latency[has] = times.latency[index[has], replica[has] if times.latency.shape[1] > 1 else 0]
    return occupancy, latency


class SampledEngine:
    """Runs noisy steps of one program.

    Args:
        step: the program, its replicas and prices.
        engine: "compiled" or "simpy".
        exact: whether steps in which rows slow each other run unfolded; False leaves them as `step.stretch` has them.
    """

    def __init__(self, step: NoisyStep, engine: str = "compiled", exact: bool = True) -> None:
        self.step, self.engine, self.exact = step, engine, exact
        self._ran: tuple[Trace, Prices] | None = None
        """The last step, if it ran unfolded."""

    @functools.cached_property
    def _unfolded(self) -> tuple[Unfolded, Program]:
        return unfold_fully(self.step)

    @functools.cached_property
    def _mix(self) -> NDArray[np.int32]:
        """Per row of the unfolded program: the item whose shares of resources it has (a bar's take no time)."""
        unfolded, _ = self._unfolded
        own = self.step.item_of[self.step.class_of[unfolded.owner], unfolded.folded_row]
        return own.astype(np.int32)

    @functools.cached_property
    def _replicas(self) -> Any:
        from simulator.engine.compiled_engine import settled_order
        from simulator.engine.replicas import ReplicaEngine

        return ReplicaEngine(self.step, settled_order(self.step.program), self.exact)

    def makespan(self, times: StepTimes) -> float:
        """Return the time of a step [s].

        Raises:
            DeadlockError: rows are left that wait for each other.
        """
        self._ran = None
        if self.engine == "compiled":
            seconds: float = self._replicas.run(times)
            if not self.exact or not self._replicas.meets():
                return seconds
        unfolded, program = self._unfolded
        occupancy, latency = row_times(unfolded, times)
        trace = self._fluid(program, occupancy, latency) if self.engine == "compiled" else None
        prices = Prices.plain(occupancy, latency)
        if trace is None:
            whole = replace(program, items=tuple(program.items[i] for i in unfolded.program.item.tolist()))
            shared = prices if self.step.stretch is not None else self._shared(prices)
            trace = run(whole, shared, self.engine)
        self._ran = trace, prices
        return trace.makespan

    def _fluid(self, program: Program, occupancy: NDArray[np.float64], latency: NDArray[np.float64]) -> Trace:
        from simulator.engine.compiled_interference import flow

        start, end = np.empty(program.size), np.empty(program.size)
        flow(program, occupancy, latency, self._mix, self.step.prices, start, end)
        return Trace(start=start, end=end, engine="compiled")

    def _shared(self, prices: Prices) -> Prices:
        """The same with shares of resources, and how they slow each other."""
        share = np.where(self._unfolded[0].bar[:, None], 0.0, self.step.prices.share[self._mix])
        return replace(prices, share=share, slowdown=self.step.prices.slowdown)

    def forget(self) -> None:
        """Let go of the last step: the next one needs its place."""
        self._ran = None
        if self.engine == "compiled":
            self._replicas.forget()

    def chain(self, times: StepTimes) -> Chain:
        """Return the longest chain of the step that `makespan` ran last; `times` are its own."""
        if self._ran is None:
            rows, replicas, seconds = self._replicas.chain(times)
            return Chain(row=rows.astype(np.int64), replica=replicas.astype(np.int64), seconds=seconds)
        (unfolded, program), (trace, prices) = self._unfolded, self._ran
        path = critical_path(program, prices, trace)
        path = path[~unfolded.bar[path]]
        return Chain(
            row=unfolded.folded_row[path], replica=unfolded.owner[path], seconds=trace.end[path] - trace.start[path]
        )
