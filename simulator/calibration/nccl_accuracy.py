"""How far predictions are from logs: on the logs fitted, on logs left out, and with no calibration at all.

    own     a profile fitted to this log alone, as `dtsim calibrate nccl` does with one log
    shared  the profile of its platform, fitted to all its logs: what ships
    unseen  the platform fitted without this log; of a platform's only log: all other platforms together
    prior   all other platforms together, as for a machine that nobody measured
    tables  NCCL's constants and data sheets alone

An error is |predicted / measured - 1|; the figure of a log is the median over its points, that of a table the median
over its logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.nccl import (
    POOLS,
    Key,
    Pairs,
    common_without,
    fit_common,
    fit_nccl,
    platform_of,
    pool_of,
    predict,
)
from simulator.calibration.nccl_fit import pairs_chosen
from simulator.calibration.nccl_logs import NcclLog
from simulator.hardware.coefficients import Pair, Profile, find_profile, pooled_name, pooled_profile
from simulator.report.table import Section, Table, percent

__all__ = ["LogAccuracy", "accuracy_figures", "accuracy_section", "log_accuracies", "medians"]

_SMALLEST, _MIDDLE, _LARGE = 2.0**10, (2.0**16, 2.0**26), 2.0**24
_QUANTILE = 1.2816
_NODE = 16
"""GPUs of the largest node; a larger domain is a rack."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAccuracy:
    """The errors of one log, as log(predicted / measured) of its points from 1 KiB up.

    Args:
        log: the log.
        message: [points] sizes [B].
        own, shared, unseen, prior, tables: [points] by the way of predicting.
        sigma, unseen_sigma, prior_sigma: [points] that ship with such predictions.
        partner: whether other logs of the same wires and collective exist.
        twins: median |difference| to the quickest partner of the same place, None without one [1].
    """

    log: NcclLog
    message: Array
    own: Array
    shared: Array
    unseen: Array
    prior: Array
    tables: Array
    sigma: Array
    unseen_sigma: Array
    prior_sigma: Array
    partner: bool
    twins: float | None

    def error(self, way: str, low: float = _SMALLEST, high: float = np.inf) -> float:
        """Return the median |predicted / measured - 1| between two sizes [B], NaN without points."""
        inside = (self.message >= low) & (self.message <= high)
        return float(np.median(np.abs(np.expm1(getattr(self, way)[inside])))) if inside.any() else np.nan

    def coverage(self, way: str = "shared") -> float:
        """Return the share of points inside the 80 % band."""
        sigma = {"prior": self.prior_sigma, "unseen": self.unseen_sigma}.get(way, self.sigma)
        return float(np.mean(np.abs(getattr(self, way)) <= _QUANTILE * sigma))


def log_accuracies(logs: Sequence[NcclLog]) -> Iterator[LogAccuracy]:
    """Yield the accuracy of each log; refits without it, and without its platform, so allow seconds per log."""
    for level, library in POOLS:
        platforms: dict[Key, list[NcclLog]] = defaultdict(list)
        for log in logs:
            if pool_of(log) == (level, library):
                platforms[platform_of(log)].append(log)
        if not platforms:
            continue
        everywhere, share = fit_common(platforms, pooled_name(level, library))
        for key, group in sorted(platforms.items()):
            common = common_without(platforms, key, share)
            shared = fit_nccl(group, "nccl_shared", everywhere.pairs, key, hops=everywhere.network_latency)
            sigmas = find_profile(group[0].fabric, level)
            for log in group:
                yield _accuracy(log, group, key, common, shared, sigmas)


def _accuracy(
    log: NcclLog, group: Sequence[NcclLog], key: Key, common: Profile, fitted: Profile, sigmas: Profile
) -> LogAccuracy:
    rest = [other for other in group if other is not log]
    partners = [other for other in rest if other.kind == log.kind and _wires(other) == _wires(log)]
    others = fit_nccl(rest, "nccl_rest", common.pairs, key, hops=common.network_latency) if rest else common
    own = fit_nccl([log], "nccl_own", common.pairs, key, hops=common.network_latency)
    kept, pooled = log.message >= _SMALLEST, pooled_profile(*pool_of(log))

    def errors(profile: Profile) -> Array:
        pairs = _completed(profile, common)
        return np.asarray(
            np.log(predict(log, pairs, profile.single_process_launch, profile.network_latency) / log.seconds)[kept]
        )

    return LogAccuracy(
        log=log,
        message=log.message[kept],
        own=errors(own),
        shared=errors(fitted),
        unseen=errors(others),
        prior=errors(common),
        tables=np.asarray(np.log(predict(log, {}) / log.seconds)[kept]),
        sigma=_sigmas(log, sigmas, fitted)[kept],
        unseen_sigma=_sigmas(log, sigmas if rest else pooled, others)[kept],
        prior_sigma=_sigmas(log, pooled, common)[kept],
        partner=bool(partners),
        twins=_twins(log, [other for other in partners if other.place == log.place]),
    )


def _wires(log: NcclLog) -> tuple[object, ...]:
    """Return what two machines of the same make have in common."""
    fabric = log.fabric
    rack = fabric.domain_size if fabric.domain_size > fabric.node_size or fabric.domain_size > _NODE else 0
    return (
        fabric.architecture,
        fabric.intra_bandwidth,
        fabric.switched,
        fabric.network,
        fabric.network_bandwidth,
        rack,
    )


def _completed(profile: Profile, common: Profile) -> Pairs:
    """Return the profile's pairs, and those it lacks as predictions take them: the common ones times its `others`."""
    other = profile.others
    scaled = {
        name: Pair(latency=pair.latency * other.latency, bandwidth=pair.bandwidth * other.bandwidth, ramp=pair.ramp)
        for name, pair in common.pairs.items()
    }
    return scaled | profile.pairs


def _sigmas(log: NcclLog, shipped: Profile, used: Profile) -> Array:
    """Return the sigma that a prediction by `used` would ship with: the platform's where `used` has measured such
    points, else at least that of platforms nobody measured."""
    chosen = pairs_chosen(log, used.pairs, used.network_latency)
    pooled = pooled_profile(*pool_of(log))
    out = []
    for (algorithm, protocol), size in zip(chosen, log.message.tolist(), strict=True):
        sigma = shipped.residual(log.kind, algorithm, size).sigma
        if not used.measured(log.kind, algorithm, protocol, size):
            sigma = max(sigma, pooled.residual(log.kind, algorithm, size).sigma)
        out.append(sigma)
    return np.array(out)


def _twins(log: NcclLog, twins: Sequence[NcclLog]) -> float | None:
    apart = []
    for twin in twins:
        shared = np.intersect1d(log.message[log.message >= _SMALLEST], twin.message)
        times = [[np.median(one.seconds[one.message == size]) for size in shared] for one in (log, twin)]
        if len(shared):
            apart.append(float(np.median(np.abs(np.array(times[0]) / np.array(times[1]) - 1))))
    return min(apart, default=None)


def medians(found: Sequence[LogAccuracy], way: str, low: float = _SMALLEST, high: float = np.inf) -> float:
    """Return the median over logs of the median over points, NaN without any."""
    values = [value for one in found if np.isfinite(value := one.error(way, low, high))]
    return float(np.median(values)) if values else np.nan


def accuracy_figures(found: Sequence[LogAccuracy]) -> dict[str, Any]:
    """Return the errors per log and their medians over logs for JSON; errors are fractions."""
    ways = ("own", "shared", "unseen", "prior", "tables")
    rows = [
        {
            "log": one.log.name,
            "partner": one.partner,
            "twins": one.twins,
            "coverage": one.coverage(),
            "coverage_unseen": one.coverage("unseen"),
        }
        | {way: one.error(way) for way in ways}
        for one in found
    ]
    return {"rows": rows, "summary": {way: medians(found, way) for way in ways}}


def accuracy_section(found: Sequence[LogAccuracy]) -> Section:
    """Return the table of errors per log, and the medians over logs below it."""
    rows = []
    for one in sorted(found, key=lambda one: one.log.name):
        figures = [one.error(way) for way in ("own", "shared", "unseen", "prior", "tables")]
        twins = "" if one.twins is None else percent(one.twins, 0)
        kind = "partner" if one.partner else "alone"
        name = one.log.name[:44]
        rows.append(
            (
                name,
                kind,
                *(percent(x, 1) for x in figures),
                twins,
                percent(one.coverage(), 0),
                percent(one.coverage("unseen"), 0),
            )
        )
    return Section(
        title="|predicted / measured - 1|, median over sizes from 1 KiB up",
        table=Table(
            headings=("log", "others", "own", "shared", "unseen", "prior", "tables", "twins", "in band", "unseen"),
            rows=tuple(rows),
            left=(0, 1),
        ),
        below=_summary(found),
    )


def _summary(found: Sequence[LogAccuracy]) -> tuple[str, ...]:
    def points(way: str) -> float:
        return float(np.average([one.coverage(way) for one in found], weights=[len(one.message) for one in found]))

    long = [one for one in found if len(np.unique(one.message)) >= 8]
    wired = [one for one in found if one.log.fabric.peer_to_peer]
    partners, alone = [one for one in wired if one.partner], [one for one in wired if not one.partner]
    staged = [one for one in found if not one.log.fabric.peer_to_peer]
    even = sum(0.75 <= one.coverage() <= 0.88 for one in found)
    above = sum(one.coverage() > 0.88 for one in found)
    wild = sum(float(np.max(np.abs(one.prior[one.message >= _LARGE]), initial=0.0)) > np.log(2) for one in wired)
    twins = [one.twins for one in partners if one.twins is not None]
    spread = f"; their twins differ by {percent(float(np.median(twins)))}" if twins else ""
    apart = f"; {len(staged)} logs through host memory, apart: {percent(medians(staged, 'prior'))}" if staged else ""
    return (
        f"own, {len(long)} logs of 8 sizes or more: {percent(medians(long, 'own'))}; "
        f"64 KiB to 64 MiB: {percent(medians(long, 'own', *_MIDDLE))}",
        f"unseen, {len(partners)} logs with a partner: {percent(medians(partners, 'unseen'))}; "
        f"from 16 MiB: {percent(medians(partners, 'unseen', _LARGE))}{spread}; "
        f"{len(alone)} logs without: {percent(medians(alone, 'unseen'))}",
        f"prior, {len(wired)} logs: {percent(medians(wired, 'prior'))} "
        f"(NCCL's tables alone: {percent(medians(wired, 'tables'))}); "
        f"{wild} logs with a point beyond a factor 2 from 16 MiB up{apart}",
        f"band: {even} of {len(found)} logs have 75 to 88 % of their points inside, {above} more; of all points "
        f"{percent(points('shared'), 0)}, of logs left out {percent(points('unseen'), 0)}, of platforms left out "
        f"{percent(points('prior'), 0)}",
    )
