"""What each lever buys: the same runs with one thing changed at a time (a tornado).

A number is drawn by its place, so a changed run meets the same failures where the lever leaves them; differences need few samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.errors import SpecError
from simulator.goodput.run_model import STOP, RunModel
from simulator.goodput.sampled import sample_runs

__all__ = ["Lever", "pull_levers"]

_SAMPLES = 100
_NINE = 10.0
_HALF, _DOUBLE = 0.5, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change.

    Args:
        name, change: what, and how.
        before, goodput: mean useful part of the time without and with it.
        saves: wall time that a run of the same work is shorter by [s].
    """

    name: str
    change: str
    before: float
    goodput: float
    saves: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "name": self.name,
            "change": self.change,
            "goodput": self.goodput,
            "goodput_gain": self.goodput - self.before,
            "saves_s": self.saves,
        }


def pull_levers(
    model: RunModel, samples: int, seed: int = 0, say: Callable[[str], None] = lambda text: None
) -> tuple[Lever, ...]:
    """Return what every change that matters to a run would buy, largest gain or loss first.

    Args:
        model: the run as it is.
        samples: of the run; at most a hundred serve here.
        seed: that of the run.
        say: told the progress.
    """
    count = min(samples, _SAMPLES)
    changes = _changes(model)
    if not changes:
        return ()
    say(f"trying {len(changes)} single changes ...")
    base, _ = sample_runs(model, count, seed)
    before, wall = float(base.goodput.mean()), float(base.wall.mean())
    out = []
    for name, change, changed in changes:
        try:
            found, _ = sample_runs(changed, count, seed)
        except SpecError:
            continue
        good = float(found.goodput.mean())
        saves = (
            wall - float(found.wall.mean())
            if math.isfinite(model.work)
            else wall * (1.0 - before / good if good else 0.0)
        )
        out.append(Lever(name=name, change=change, before=before, goodput=good, saves=saves))
    return tuple(sorted(out, key=lambda lever: -abs(lever.saves)))


def _changes(model: RunModel) -> list[tuple[str, str, RunModel]]:
    """(name, what is done, the changed run) of every lever that this run has."""
    causes = model.causes
    out: list[tuple[str, str, RunModel]] = []
    for name in dict.fromkeys(causes.name):
        own = np.array([n == name for n in causes.name])
        scale = np.where(own, _NINE * causes.scale, causes.scale)
        out.append((name, "fails a tenth as often", replace(model, causes=replace(causes, scale=scale))))
    if (causes.detection > 0.0).any():
        out.append(
            (
                "detection",
                "in half the time",
                replace(model, causes=replace(causes, detection=_HALF * causes.detection)),
            )
        )
    for key, words in (("restart", "in half the time"), ("stall", "half as long"), ("write", "half as long")):
        if getattr(model, key) > 0.0:
            name = {"stall": "checkpoint", "write": "background write"}.get(key, key)
            out.append((name, words, replace(model, **{key: _HALF * getattr(model, key)})))
    if 0.0 < model.interval < math.inf and (causes.effect == STOP).any():
        out += [
            ("checkpoint interval", "halved", replace(model, interval=_HALF * model.interval)),
            ("checkpoint interval", "doubled", replace(model, interval=_DOUBLE * model.interval)),
        ]
    if model.spares >= 0:
        more = max(1, model.spares)
        out.append(("spares", f"{more} more", replace(model, spares=model.spares + more)))
        if model.spares:
            out.append(("spares", "none", replace(model, spares=0)))
        out.append(("repair", "in half the time", replace(model, repair=_HALF * model.repair)))
    if math.isfinite(model.maintenance_every):
        out.append(("maintenance", "none", replace(model, maintenance_every=math.inf)))
    return out
