"""The readable truth of a run: SimPy processes for the components, the background writes and the job.

The job trains, saves, and comes back from failures; every component class is a process that interrupts it.  What the words mean
is told in `run_model.py`; random numbers are those of `draws.py`, so that the compiled form can be held against it run by run.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simulator.goodput.draws import key_of, uniform
from simulator.goodput.lives import failure_times
from simulator.goodput.run_model import ACCOUNTS, CORRUPT, SLOW, STOP, RunModel, Runs

__all__ = ["Phase", "run_readable", "trace_run"]

Waits = Generator[simpy.Event, Any, Any]
_REPAIRS = 1_000_000


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a run: its account ("run" where it trains), wall time from `start` to `end` [s], work at both ends [s]."""

    account: str
    start: float
    end: float
    before: float
    after: float


@dataclass(slots=True, kw_only=True)
class _Slow:
    """A component that is slow: until when, when found, how much is left of the job's pace, which cause."""

    ends: float
    found: float
    pace: float
    cause: int


@dataclass(frozen=True, slots=True)
class _Failed:
    """Training stopped: by which cause, and whether it was found already."""

    cause: int
    found: bool


def run_readable(model: RunModel, samples: int, seed: int = 0, first: int = 0) -> Runs:
    """Return some runs; slow, for tests and pictures."""
    runs = [_Run(model, seed, first + i) for i in range(samples)]
    for run in runs:
        run.live()
    return Runs(
        model=model,
        wall=np.array([run.now for run in runs]),
        done=np.array([run.work for run in runs]),
        lost=np.array([[run.lost[name] for name in ACCOUNTS] for run in runs]),
        interruptions=np.array([run.interruptions for run in runs], np.int64),
        waits=np.array([run.waits for run in runs], np.int64),
    )


def trace_run(model: RunModel, seed: int, number: int) -> list[Phase]:
    """Return the phases of one run, in order."""
    run = _Run(model, seed, number)
    run.live()
    return run.phases


class _Run:
    """One run: the clock, the job, and what is broken."""

    def __init__(self, model: RunModel, seed: int, number: int) -> None:
        self.model, self.seed, self.number = model, seed, number
        self.clock = simpy.Environment()
        self.work = 0.0
        self.safe, self.safe_near = 0.0, 0.0
        """Work in the last checkpoint of the file system, and at a neighbour."""
        self.writing: dict[str, tuple[float, simpy.Event]] = {}
        """"far" and "near" -> when the checkpoint under way is safe, and what happens then."""
        self.checkpoints = 0
        self.lost = dict.fromkeys(ACCOUNTS, 0.0)
        self.interruptions = [0] * (len(model.causes.name) + 1)
        self.waits = 0
        self.slow: list[_Slow] = []
        self.corrupt: tuple[float, float, int] | None = None
        """Work at the last safe moment before numbers went wrong, when that is found, by which cause."""
        self.repairs: list[float] = []
        self.crews = [0.0] * max(model.crews, 1)
        self.repaired = 0
        self.missing, self.took = 0, False
        self.window = model.maintenance_every
        self.training = self.maintained = False
        self.changed = self.clock.event()
        self.phases: list[Phase] = []
        self.job: simpy.Process = self.clock.process(self._job())
        for cause in range(len(model.causes.name)):
            self.clock.process(self._component(cause))

    @property
    def now(self) -> float:
        """Wall time [s]."""
        return float(self.clock.now)

    def live(self) -> None:
        """Run to the end of the work or to the horizon."""
        if math.isfinite(self.model.horizon):
            self.clock.process(self._end())
        self.clock.run(until=self.job)

    def _end(self) -> Waits:
        yield self.clock.timeout(self.model.horizon)
        if self.job.is_alive:
            self.job.interrupt(None)

    # Components

    def _component(self, cause: int) -> Waits:
        """All components of one kind: each time that one fails, its effect."""
        for moment in failure_times(self.model.causes, cause, key_of(self.seed, self.number, cause)):
            yield self.clock.timeout(max(0.0, moment - self.now))
            self._fail(cause)

    def _fail(self, cause: int) -> None:
        causes, now = self.model.causes, self.now
        effect, detection = int(causes.effect[cause]), float(causes.detection[cause])
        if effect == STOP:
            self.interruptions[cause] += 1
            if self.maintained:  # repaired in the window
                self._to_repair(int(causes.nodes[cause]))
            else:
                self.job.interrupt(_Failed(cause, found=False))
        elif effect == SLOW:
            self.slow.append(
                _Slow(
                    ends=now + float(causes.lasts[cause]),
                    found=now + detection,
                    pace=float(causes.pace[cause]),
                    cause=cause,
                )
            )
            self._change()
        elif effect == CORRUPT and self.training:
            base, found, which = self.corrupt or (math.inf, math.inf, cause)
            if now + detection < found:
                found, which = now + detection, cause
                self.clock.process(self._discover(found))
            self.corrupt = (min(base, max(self.safe, self.safe_near)), found, which)

    def _discover(self, moment: float) -> Waits:
        """Wrong numbers are found, unless a failure took the job back before them meanwhile."""
        yield self.clock.timeout(moment - self.now)
        if self.corrupt and self.corrupt[1] == moment:
            base, _, cause = self.corrupt
            self.interruptions[cause] += 1
            self.safe, self.safe_near = min(self.safe, base), min(self.safe_near, base)
            self.job.interrupt(_Failed(cause, found=True))

    def _change(self) -> None:
        """Tell the job that its pace, or what it should do, has changed."""
        self.changed.succeed()
        self.changed = self.clock.event()

    # The job

    def _job(self) -> Waits:
        """Train to the end; after every failure come back and go on."""
        failed: _Failed | None = None
        while True:
            try:
                if failed is not None:
                    yield from self._come_back(failed)
                    failed = None
                yield from self._train()
                return
            except simpy.Interrupt as interrupt:
                failed = interrupt.cause
                if failed is None:
                    return
                self._roll_back(failed.cause)

    def _train(self) -> Waits:
        """Work from checkpoint to checkpoint, with planned stops between."""
        model = self.model
        while True:
            due = min(self.work + model.interval, model.work) if model.interval else model.work
            stop = yield from self._work_until(due)
            if stop == "due" and self.work >= model.work:
                if model.interval:
                    yield from self._save("final")
                return
            yield from self._save(stop)
            if stop == "window":
                self.interruptions[-1] += 1
                self.maintained = True
                try:
                    yield from self._spend("maintenance", model.maintenance_length)
                finally:
                    self.maintained = False
            if stop != "due":
                yield from self._restart()

    def _work_until(self, due: float) -> Waits:
        """Train until so much work is done, or a planned stop is wanted; the reason."""
        while True:
            stop = self._wanted()
            if stop:
                if stop == "window":
                    while self.window <= self.now:
                        self.window += self.model.maintenance_every
                return stop
            self.slow = [one for one in self.slow if one.ends > self.now]
            pace = float(self.model.paces[self.missing]) * min((one.pace for one in self.slow), default=1.0)
            rate = pace * (1.0 - self.model.drag) if self.writing else pace
            start, before = self.now, self.work
            finish = start + (due - before) / rate
            until = min(self._next_change(), finish)
            self.training = True
            try:
                if math.isfinite(until):
                    yield self.clock.timeout(until - start) | self.changed
                else:
                    yield self.changed
            finally:
                self.training = False
                passed = self.now - start
                self.work += passed * rate
                self.lost["slow"] += passed * (1.0 - pace)
                self.lost["checkpoint"] += passed * (pace - rate)
                self.phases.append(Phase("run", start, self.now, before, self.work))
            if self.now >= finish:
                self.work = due
                return "due"

    def _wanted(self) -> str:
        """The planned stop that should be now, if any."""
        if self.window <= self.now:
            return "window"
        found = self.model.evict and any(one.found <= self.now < one.ends for one in self.slow)
        joins = self.missing > 0 and self.model.paces[self._short()] > self.model.paces[self.missing]
        return "planned" if found or joins else ""

    def _next_change(self) -> float:
        """When the pace, or what is wanted, changes if nothing fails before [s]."""
        moments = [self.window, *(moment for moment, _ in self.writing.values()), *(one.ends for one in self.slow)]
        if self.model.evict:
            moments += [one.found for one in self.slow]
        if self.missing:
            moments += [back for back in self.repairs if back > self.now]
        return min(moments)

    def _save(self, reason: str) -> Waits:
        """Write a checkpoint; all but a due one wait until it is safe."""
        model = self.model
        near = model.near >= 0.0
        goes_far = not near or (self.checkpoints + 1) % model.far_every == 0 or reason in ("final", "window")
        yield from self._written_to("near")
        if goes_far:
            yield from self._written_to("far")
        yield from self._spend("checkpoint", model.stall)
        self.checkpoints += 1
        if near:
            self._write("near", model.near)
        if goes_far:
            self._write("far", model.write)
        if reason != "due":
            yield from self._written_to("near" if reason == "planned" and near else "far")

    def _written_to(self, where: str) -> Waits:
        """Wait until the checkpoint under way is safe: for the event, not for its moment, which a sum of delays may miss by a bit."""
        if where in self.writing:
            yield from self._spend("checkpoint", self.writing[where][1])

    def _write(self, where: str, seconds: float) -> None:
        """Begin to write the present work in the background."""
        if seconds == 0.0:
            self._is_safe(where, self.work)
            return
        written = self.clock.event()
        self.writing[where] = self.now + seconds, written
        self.clock.process(self._written(where, seconds, written, self.work))

    def _written(self, where: str, seconds: float, written: simpy.Event, level: float) -> Waits:
        yield self.clock.timeout(seconds)
        if where in self.writing and self.writing[where][1] is written:  # no failure threw it away
            del self.writing[where]
            self._is_safe(where, level)
            written.succeed()

    def _is_safe(self, where: str, level: float) -> None:
        if where == "far":
            self.safe = level
        else:
            self.safe_near = level

    # Failures

    def _roll_back(self, cause: int) -> None:
        """Go back to the last checkpoint that the failure left."""
        taken = int(self.model.causes.nodes[cause])
        near = self.model.near >= 0.0 and taken < self.model.copies
        level = max(self.safe, self.safe_near) if near else self.safe
        self.safe_near = min(self.safe_near, level)
        self.lost["rework"] += self.work - level
        self.work = level
        self.writing.clear()
        if self.corrupt and level <= self.corrupt[0]:
            self.corrupt = None
        self._to_repair(taken)

    def _come_back(self, failed: _Failed) -> Waits:
        if not failed.found:
            yield from self._spend("detection", float(self.model.causes.detection[failed.cause]))
        yield from self._restart()

    def _restart(self) -> Waits:
        """Replace what is broken, and start again."""
        model, now = self.model, self.now
        gone = [one for one in self.slow if one.found <= now < one.ends]
        for one in gone:
            self.interruptions[one.cause] += 1
            self._to_repair(int(model.causes.nodes[one.cause]))
        self.slow = [one for one in self.slow if one not in gone and one.ends > now]
        if model.spares >= 0:
            waiting = sorted(back for back in self.repairs if back > now)
            short = len(waiting) - model.spares - model.cold_spares - (len(model.paces) - 1)
            took, self.took = self.took, False
            if short > 0:
                self.waits += 1
                yield from self._spend("repair", waiting[short - 1] - now)
            elif took and len(waiting) > model.spares and model.cold_spares:
                yield from self._spend("repair", model.cold_start)
        yield from self._spend("restart", model.restart)
        self.missing = self._short()

    def _short(self) -> int:
        """Machines that are missing now, spares counted."""
        if self.model.spares < 0:
            return 0
        out = sum(back > self.now for back in self.repairs)
        return min(max(0, out - self.model.spares - self.model.cold_spares), len(self.model.paces) - 1)

    def _to_repair(self, machines: int) -> None:
        if self.model.spares < 0 or not machines:
            return
        self.took = True
        key = key_of(self.seed, self.number, _REPAIRS)
        self.repairs = [back for back in self.repairs if back > self.now]
        for _ in range(machines):
            crew = int(np.argmin(self.crews))
            start = max(self.now, self.crews[crew]) if self.model.crews else self.now
            back = start - math.log(uniform(key, self.repaired)) * self.model.repair
            self.repaired += 1
            self.repairs.append(back)
            if self.model.crews:
                self.crews[crew] = back

    # Accounts

    def _spend(self, account: str, what: float | simpy.Event) -> Waits:
        """Let seconds pass, or the time until an event, on an account, also where a failure cuts it short."""
        if not isinstance(what, simpy.Event):
            if what <= 0.0:
                return
            what = self.clock.timeout(what)
        start = self.now
        try:
            yield what
        finally:
            self.lost[account] += self.now - start
            self.phases.append(Phase(account, start, self.now, self.work, self.work))
