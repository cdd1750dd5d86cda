"""How far machines of one kind lie apart, from each machine's logs left out in turn.

    logs of a platform --without one machine--> fit --errors on that machine--> spread, by size of the message

Logs of one source on the same wires are of one machine: they say nothing of another, however many they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.fit.cost_model import (
    STARTS,
    Hops,
    Pairs,
    fit_pairs,
    pairs_offered,
    residuals,
    sigma_of,
)
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.hardware.coefficients import SIZE_CLASSES, Profile, Residual, size_class

__all__ = ["LeftOut", "Spreads", "at_least", "left_out", "machine_of", "of_platform", "spreads", "widened"]

_LEAST_SIGMA = 0.01
"""Two runs of one machine differ by 1 %."""
_HELD = 0.8
"""The share of machines that the spread is to hold, as a band does points."""

Spreads = dict[str, float]
"""Sigma between machines of one kind, by size class, in log time."""


@dataclass(frozen=True, slots=True)
class _Miss:
    """One log: its machine, message sizes [B], and log(predicted / measured) by a fit to other machines, and to it alone."""

    machine: tuple[object, ...]
    sizes: NDArray[np.float64]
    outside: NDArray[np.float64]
    alone: NDArray[np.float64]


LeftOut = list[_Miss]


def machine_of(log: NcclLog) -> tuple[object, ...]:
    """Return what logs of one machine have in common: where they were published, and the wires."""
    fabric = log.fabric
    wires = (fabric.architecture, fabric.intra_bandwidth, fabric.network, fabric.network_bandwidth)
    return (log.source, *wires)


def left_out(group: Sequence[NcclLog], centre: Pairs, hops: Hops) -> LeftOut:
    """Return how far the machines of a platform are missed by the others, where those hold the algorithms and sizes."""
    out = []
    for left in group:
        rest = [log for log in group if machine_of(log) != machine_of(left)]
        if not rest or not pairs_offered(left) <= set().union(*map(pairs_offered, rest)):
            continue
        sizes = np.concatenate([log.message for log in rest])
        known = (sizes.min() <= left.message) & (left.message <= sizes.max())
        if known.any():
            fits = [fit_pairs(logs, centre, STARTS, hops=hops) for logs in (rest, [left])]
            errors = [residuals(left, fit.pairs, fit.launch, fit.hops)[known] for fit in fits]
            out.append(_Miss(machine_of(left), left.message[known], *errors))
    return out


def of_platform(found: LeftOut, usual: Spreads) -> Spreads:
    """Return a platform's spread: the usual one, or its own where its machines lie further apart."""
    own = spreads(found) if len(found) > 1 else {}
    return {name: max(usual.get(name, 0.0), own.get(name, 0.0)) for name in SIZE_CLASSES}


def spreads(found: LeftOut) -> Spreads:
    """Return the sigma between machines by size class: what is missed beyond a fit to the machine itself, so that most
    machines are held; each has one vote, however many logs it has."""
    out = {}
    for name in SIZE_CLASSES:
        apart: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for miss in found:
            mine = np.array([size_class(size) == name for size in miss.sizes], bool)
            if mine.any():
                more = sigma_of(miss.outside[mine]) ** 2 - sigma_of(miss.alone[mine]) ** 2
                apart[miss.machine].append(max(more, 0.0) ** 0.5)
        votes = [float(np.median(some)) for some in apart.values()]
        out[name] = round(float(np.quantile(votes, _HELD)), 4) if votes else 0.0
    return out


def widened(profile: Profile, apart: Spreads) -> Profile:
    """Return a profile whose sigmas hold other machines of its kind: the spread between them added."""
    return _with_sigmas(profile, apart, lambda own, more: round(max(float(np.hypot(own, more)), _LEAST_SIGMA), 4))


def at_least(profile: Profile, apart: Spreads) -> Profile:
    """Return a profile of all platforms whose sigmas are at least those between machines of one kind: a platform that
    nobody measured is no better known."""
    return _with_sigmas(profile, apart, max)


def _with_sigmas(profile: Profile, apart: Spreads, joined: Callable[[float, float], float]) -> Profile:
    """Return a profile with every sigma joined with the spread of its size class; of all sizes, with the median spread."""
    usual = float(np.median(list(apart.values()) or [0.0]))

    def of(value: Residual, more: float) -> Residual:
        return value.model_copy(update={"sigma": joined(value.sigma, more)})

    classes = {which: of(value, apart.get(which.size, usual)) for which, value in profile.classes.items()}
    return profile.model_copy(update={"classes": classes, "everything": of(profile.everything, usual)})
