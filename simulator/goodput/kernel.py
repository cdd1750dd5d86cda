"""The compiled form of a run: one loop over the instants at which something changes.

This module imports numba, so `sampled.py` imports it only when it runs.  The meaning is told in `run_model.py`, and in `readable.py`
by processes; both draw the same numbers, so they must find the same runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from simulator.goodput.draws import key_of, uniform

__all__ = ["run_kernel"]

Array = Any

_RUN, _WAIT, _SAVE, _SETTLE, _DETECT, _HOLD, _RESTART, _MAINTAIN = 0, 1, 2, 3, 4, 5, 6, 7
_DUE, _FINAL, _PLANNED, _WINDOW = 0, 1, 2, 3
_CHECKPOINT, _REWORK, _SLOW = 3, 2, 4
_ACCOUNT = np.array([-1, 3, 3, 3, 0, 5, 1, 6])
"""Per phase: the account of its time; running is told apart."""
_REPAIRS = 1_000_000
"""Number of the stream of repair times; those below are the causes'."""


@njit(cache=True, nogil=True)
def _grown(values: Array, used: int) -> Array:
    """The array with room for one more in its last axis."""
    if used < values.shape[-1]:
        return values
    out = np.full((values.shape[0], 2 * values.shape[1]), np.inf)
    out[:, : values.shape[1]] = values
    return out


@njit(cache=True, nogil=True)
def _life(key: Any, index: int, scale: float, shape: float) -> float:
    """Time until a new component fails [s]."""
    return float(scale * (-np.log(uniform(key, index))) ** (1.0 / shape))


@njit(cache=True, nogil=True)
def _short(back: Array, t: float, spares: int, most: int) -> int:
    """Machines that are missing at an instant, spares counted, and never more than the job can do without."""
    return int(min(max(0, np.sum(back > t) - spares), most))


@njit(cache=True, nogil=True)
def _one_run(
    numbers: Array, paces: Array, effect: Array, count: Array, lives: Array, nodes: Array, seed: int, run: int,
    lost: Array, interruptions: Array,
) -> tuple[float, float, int]:  # fmt: skip
    """One run; fills `lost` [accounts] and `interruptions` [causes + 1]; returns (wall, work that lasted, waits for a machine)."""
    work, horizon, restart, interval, stall, write, drag, near = numbers[:8]
    far_every, copies, spares, cold_spares = int(numbers[8]), int(numbers[9]), int(numbers[10]), int(numbers[11])
    cold_start, repair, crews, evict = numbers[12], numbers[13], int(numbers[14]), numbers[15] > 0.0
    every, length, limit = numbers[16], numbers[17], numbers[18]
    scale, shape, age, detection, lasts, pace_of = lives
    causes, inf = len(effect), np.inf

    # Arrivals: the first failures of all originals in order, and those of what replaced them.
    keys = np.zeros(causes + 1, np.uint64)
    index, left, hazard = np.zeros(causes + 1, np.int64), count.copy(), np.zeros(causes)
    first, next_at = np.full(causes, inf), np.full(causes, inf)
    renewed, renewals = np.full((max(causes, 1), 16), inf), np.zeros(causes, np.int64)
    for c in range(causes):
        keys[c] = key_of(seed, run, c)
        if shape[c] == 1.0:
            next_at[c] = -np.log(uniform(keys[c], 0)) * scale[c] / count[c]
        else:
            hazard[c] = (age[c] / scale[c]) ** shape[c] - np.log(uniform(keys[c], 0)) / left[c]
            first[c] = scale[c] * hazard[c] ** (1.0 / shape[c]) - age[c]
            next_at[c] = first[c]
        index[c] = 1
    keys[causes] = key_of(seed, run, _REPAIRS)

    back, away = np.full((1, 16), inf), 0  # machines in repair: when each is back
    crew_free = np.zeros(max(crews, 1))
    slow, slows = np.full((4, 8), inf), 0  # slow components: ends, found, pace, cause
    corrupt_base, corrupt_found, corrupt_cause = inf, inf, 0
    t, w, number, waits = 0.0, 0.0, 0, 0
    near_level, far_level = 0.0, 0.0
    near_next, near_at, far_next, far_at = 0.0, inf, 0.0, inf
    due = min(interval, work) if interval > 0.0 else work
    phase, phase_end, reason, missing, took, window = _RUN, 0.0, _DUE, 0, False, every

    while True:
        # How long the phase goes on if nothing comes between, and what may come between.
        rate, pace = 0.0, 1.0
        if phase == _RUN:
            pace = paces[missing]
            slowest = 1.0
            for i in range(slows):
                slowest = min(slowest, slow[2, i])
            pace *= slowest
            rate = pace * (1.0 - drag) if near_at < inf or far_at < inf else pace
            phase_end = t + (due - w) / rate
        cause = -1
        stop = phase_end
        for c in range(causes):
            if next_at[c] < stop:
                stop, cause = next_at[c], c
        stop = min(stop, corrupt_found, near_at, far_at, horizon)
        if phase == _RUN:
            for i in range(slows):
                stop = min(stop, slow[0, i])
                if evict:
                    stop = min(stop, max(slow[1, i], t))
            stop = min(stop, max(window, t))
            if missing > 0:
                for i in range(away):
                    if back[0, i] > t:
                        stop = min(stop, back[0, i])
                if paces[_short(back[0, :away], t, spares + cold_spares, len(paces) - 1)] > paces[missing]:
                    stop = t

        # Time passes.
        passed = stop - t
        if phase == _RUN:
            w = due if stop == phase_end else w + passed * rate
            lost[_SLOW] += passed * (1.0 - pace)
            lost[_CHECKPOINT] += passed * (pace - rate)
        else:
            lost[_ACCOUNT[phase]] += passed
        t = stop
        if t >= horizon:
            return t, w, waits
        if t > limit:
            return inf, w, waits

        # What is safe now, and which slow ones are well again.
        if near_at <= t:
            near_level, near_at = near_next, inf
        if far_at <= t:
            far_level, far_at = far_next, inf
        kept = 0
        for i in range(slows):
            if slow[0, i] > t:
                slow[:, kept] = slow[:, i]
                kept += 1
        slows = kept

        # The end of a phase.
        begin, enter = -1, -1
        if phase_end <= t:
            if phase == _RUN:
                if due >= work and interval == 0.0:
                    return t, w, waits
                begin = _FINAL if due >= work else _DUE
            elif phase == _WAIT:
                enter = _SAVE
            elif phase == _SAVE:
                number += 1
                if near >= 0.0:
                    near_next, near_at = w, t + near
                if near < 0.0 or number % far_every == 0 or reason in (_FINAL, _WINDOW):
                    far_next, far_at = w, t + write
                if near_at <= t:
                    near_level, near_at = near_next, inf
                if far_at <= t:
                    far_level, far_at = far_next, inf
                due = min(w + interval, work) if interval > 0.0 else work
                enter = _RUN if reason == _DUE else _SETTLE
            elif phase == _SETTLE:
                if reason == _FINAL:
                    return t, w, waits
                enter = _HOLD
                if reason == _WINDOW:
                    interruptions[causes] += 1
                    enter = _MAINTAIN
            elif phase in (_DETECT, _MAINTAIN):
                enter = _HOLD
            elif phase == _HOLD:
                enter = _RESTART
            else:
                missing = 0
                if spares >= 0:
                    missing = _short(back[0, :away], t, spares + cold_spares, len(paces) - 1)
                enter = _RUN

        # A failure, or wrong numbers that are found: what was done since the last safe checkpoint is lost.
        taken, dead = 0, -1
        if corrupt_found <= t:
            interruptions[corrupt_cause] += 1
            near_level, far_level = min(near_level, corrupt_base), min(far_level, corrupt_base)
            taken, dead = nodes[corrupt_cause], corrupt_cause
        elif cause >= 0 and next_at[cause] <= t:
            if effect[cause] == 0:
                interruptions[cause] += 1
                taken, dead = nodes[cause], cause
            elif effect[cause] == 1:
                slow = _grown(slow, slows)
                slow[0, slows], slow[1, slows] = t + lasts[cause], t + detection[cause]
                slow[2, slows], slow[3, slows] = pace_of[cause], cause
                slows += 1
            elif phase == _RUN:
                corrupt_base = min(corrupt_base, max(near_level, far_level))
                if t + detection[cause] < corrupt_found:
                    corrupt_found, corrupt_cause = t + detection[cause], cause
            if shape[cause] == 1.0:
                next_at[cause] = t - np.log(uniform(keys[cause], index[cause])) * scale[cause] / count[cause]
                index[cause] += 1
            else:
                life = t + _life(keys[cause], index[cause], scale[cause], shape[cause])
                index[cause] += 1
                if first[cause] <= t:
                    renewed = _grown(renewed, renewals[cause])
                    renewed[cause, renewals[cause]] = life
                    renewals[cause] += 1
                    left[cause] -= 1
                    first[cause] = inf
                    if left[cause] > 0:
                        hazard[cause] -= np.log(uniform(keys[cause], index[cause])) / left[cause]
                        index[cause] += 1
                        first[cause] = scale[cause] * hazard[cause] ** (1.0 / shape[cause]) - age[cause]
                else:
                    renewed[cause, np.argmin(renewed[cause, : renewals[cause]])] = life
                next_at[cause] = first[cause]
                for i in range(renewals[cause]):
                    next_at[cause] = min(next_at[cause], renewed[cause, i])
        if dead >= 0 and phase == _MAINTAIN and corrupt_found > t:
            dead = -1  # repaired in the window
        if dead >= 0:
            level = max(near_level, far_level) if near >= 0.0 and taken < copies else far_level
            near_level = min(near_level, level)
            lost[_REWORK] += w - level
            w, near_at, far_at = level, inf, inf
            due = min(w + interval, work) if interval > 0.0 else work
            begin = -1
            enter = _HOLD if corrupt_found <= t else _DETECT
            if level <= corrupt_base:
                corrupt_base, corrupt_found = inf, inf

        # In a run that goes on, what asks for a planned stop.
        if phase == _RUN and enter < 0 and begin < 0:
            if window <= t:
                begin = _WINDOW
            else:
                if evict:
                    for i in range(slows):
                        if slow[1, i] <= t:
                            begin = _PLANNED
                if missing > 0:
                    now = _short(back[0, :away], t, spares + cold_spares, len(paces) - 1)
                    if paces[now] > paces[missing]:
                        begin = _PLANNED
        if begin >= 0:
            reason = begin
            while reason == _WINDOW and window <= t:
                window += every
            until = near_at if near_at < inf else t
            if far_at < inf and (near < 0.0 or (number + 1) % far_every == 0 or reason in (_FINAL, _WINDOW)):
                until = max(until, far_at)
            enter, phase_end = (_WAIT, until) if until > t else (_SAVE, t)

        # Machines go to repair.
        if enter == _HOLD:
            kept = 0
            for i in range(slows):  # those found go with this restart
                if slow[1, i] <= t:
                    which = int(slow[3, i])
                    interruptions[which] += 1
                    taken += nodes[which]
                else:
                    slow[:, kept] = slow[:, i]
                    kept += 1
            slows = kept
        if taken > 0 and spares >= 0:
            kept = 0
            for i in range(away):
                if back[0, i] > t:
                    back[0, kept] = back[0, i]
                    kept += 1
            away = kept
            for _ in range(taken):
                back = _grown(back, away)
                start = t
                if crews > 0:
                    crew = np.argmin(crew_free)
                    start = max(t, crew_free[crew])
                back[0, away] = start - np.log(uniform(keys[causes], index[causes])) * repair
                if crews > 0:
                    crew_free[crew] = back[0, away]
                index[causes] += 1
                away += 1
            took = True

        # The next phase.
        if enter >= 0:
            phase = enter
            if phase == _SAVE:
                phase_end = t + stall
            elif phase == _SETTLE:
                phase_end = near_at if reason == _PLANNED and near >= 0.0 else far_at
                phase_end = t if phase_end == inf else phase_end
            elif phase == _DETECT:
                phase_end = t + detection[dead]
            elif phase == _MAINTAIN:
                phase_end = t + length
            elif phase == _HOLD:
                phase_end = t
                if spares >= 0:
                    waiting = np.sort(back[0, :away][back[0, :away] > t])
                    short = len(waiting) - spares - cold_spares - (len(paces) - 1)
                    if short > 0:
                        waits += 1
                        phase_end = waiting[short - 1]
                    elif took and len(waiting) > spares and cold_spares > 0:
                        phase_end = t + cold_start
                took = False
            elif phase == _RESTART:
                phase_end = t + restart


@njit(cache=True, nogil=True)
def run_kernel(
    numbers: Array, paces: Array, effect: Array, count: Array, lives: Array, nodes: Array, seed: int, start: int,
    wall: Array, done: Array, lost: Array, interruptions: Array, waits: Array,
) -> None:  # fmt: skip
    """Fill one row of the last five per run, for runs `start`, `start` + 1, ..."""
    for sample in range(len(wall)):
        wall[sample], done[sample], waits[sample] = _one_run(
            numbers, paces, effect, count, lives, nodes, seed, start + sample, lost[sample], interruptions[sample]
        )
        if wall[sample] == np.inf:
            return  # a run that does not end: one is enough
