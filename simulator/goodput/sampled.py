"""Many runs by the compiled form, batch by batch, so that a user who has waited long enough gets what is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from simulator.errors import SpecError
from simulator.goodput.run_model import ACCOUNTS, SLOW, RunModel, Runs
from simulator.units import show

__all__ = ["MOST_CHANGES", "MOST_SAMPLES", "changes_of", "sample_runs"]

MOST_SAMPLES = 1_000_000
_BATCH, _MANY = 20, 10_000
MOST_CHANGES = 2_000_000
"""Of a run, about: its checkpoints, its failures, the machines that these take."""
_AT_ONCE = 10.0
"""Slow components or machines in repair that cost as much to look through as a change."""
_HOPELESS = 10.0
"""Failures that are expected in one attempt: one of e^10 attempts succeeds."""


def sample_runs(
    model: RunModel,
    samples: int,
    seed: int = 0,
    first: int = 0,
    say: Callable[[str], None] = lambda text: None,
    partial: bool = False,
) -> tuple[Runs, bool]:
    """Return runs `first`, `first` + 1, ... of a seed, and whether a KeyboardInterrupt cut them short.

    Args:
        model: the run.
        samples: how many.
        seed: the same seed gives the same runs; run i is the same however many are asked for.
        first: number of the first.
        say: told the progress of many runs, a tenth at a time.
        partial: whether Ctrl-C ends the runs with those that are done.

    Raises:
        SpecError: failures come faster than work can be saved, so that a run does not end.
        KeyboardInterrupt: of Ctrl-C, before the first batch was done or where a part of the runs does not serve.
    """
    from simulator.goodput.kernel import run_kernel

    causes = model.causes
    if _hopeless(model):
        raise SpecError(_endless(model))
    if changes_of(model) > MOST_CHANGES:
        raise SpecError(_too_many(model))
    lives = np.stack([causes.scale, causes.shape, causes.age, causes.detection, causes.lasts, causes.pace])
    parts: list[Runs] = []
    try:
        for start in range(0, samples, _BATCH):
            size = min(_BATCH, samples - start)
            out = Runs(
                model=model,
                wall=np.zeros(size),
                done=np.zeros(size),
                lost=np.zeros((size, len(ACCOUNTS))),
                interruptions=np.zeros((size, len(causes.name) + 1), np.int64),
                waits=np.zeros(size, np.int64),
            )
            run_kernel(
                model.scalars, model.paces, causes.effect, causes.count, lives, causes.nodes, seed, first + start,
                out.wall, out.done, out.lost, out.interruptions, out.waits,
            )  # fmt: skip
            if not np.isfinite(out.wall).all():
                raise SpecError(_endless(model))
            parts.append(out)
            done = start + size
            if samples >= _MANY and done < samples and 10 * done // samples > 10 * start // samples:
                say(f"{done:,} of {samples:,} runs")
    except KeyboardInterrupt:
        if not parts or not partial:
            raise
        return Runs.join(parts), True
    return Runs.join(parts), False


def changes_of(model: RunModel) -> float:
    """Return about how much happens in a run: changes, each counted once and again for every so many things under way with it."""
    causes, span = model.causes, min(model.work, model.horizon)
    lives = causes.scale * np.array([math.gamma(1.0 + 1.0 / shape) for shape in causes.shape])
    rates = causes.count / np.maximum(lives, 1e-30)
    failures = span * float((rates * (1.0 + causes.nodes * (model.spares >= 0))).sum())
    planned = span / max(model.interval, 1e-30) if model.interval else 0.0
    planned += span / max(model.maintenance_every, 1e-30)
    slow = rates * np.minimum(np.minimum(causes.lasts, span), causes.detection if model.evict else span)
    held = float(slow[causes.effect == SLOW].sum())
    if model.spares >= 0:
        taken = float((rates * causes.nodes).sum())
        backlog = max(taken - model.crews / max(model.repair, 1e-30), 0.0) if model.crews else 0.0
        held += taken * min(model.repair, span) + backlog * span
    held += float(np.minimum(rates * span, causes.count)[causes.shape != 1.0].sum())
    return (failures + planned) * (1.0 + held / _AT_ONCE)


def _hopeless(model: RunModel) -> bool:
    """Whether at constant rates hardly any attempt gets from one checkpoint to the next, or through a restart."""
    if not math.isfinite(model.work):
        return False
    each = min(model.interval or math.inf, model.work) + model.stall
    return bool(model.causes.rate * max(each, model.restart) > _HOPELESS and (model.causes.shape == 1.0).all())


def _too_many(model: RunModel) -> str:
    every = f"a checkpoint every {show(model.interval, 's')}" if model.interval else "no checkpoint"
    window = f", a window every {show(model.maintenance_every, 's')}" if math.isfinite(model.maintenance_every) else ""
    causes = model.causes
    often = [
        f"{name} every {show(float(life), 's')}"
        for name, life in zip(causes.name, causes.scale / causes.count, strict=True)
    ]
    return (
        f"a run goes through at most about {MOST_CHANGES:,} checkpoints, failures and machines in repair, but "
        f"{show(min(model.work, model.horizon), 's')} with {every}{window}, and failures of {', '.join(often) or 'nothing'}, are "
        f"{changes_of(model):.0e}. Way out: a shorter run, longer mtbf, lasts shorter, or checkpoints further apart"
    )


def _endless(model: RunModel) -> str:
    between = 1.0 / model.causes.rate if model.causes.rate else float("inf")
    last = "no checkpoint" if not model.interval else f"a checkpoint every {show(min(model.interval, model.work), 's')}"
    return (
        f"a run does not end: it would not do {show(model.work, 's')} of steps in {show(model.limit, 's')}. A failure comes "
        f"every {show(between, 's')}, {last}, {show(model.restart, 's')} to restart. Way out: a shorter checkpoint.interval or "
        "restart, a longer mtbf, or --days N to see how far it gets"
    )
