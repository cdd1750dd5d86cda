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

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.fit.cost_model import pairs_chosen
from simulator.calibration.collectives.fit.platforms import (
    Key,
    Pairs,
    common_without,
    fit_common,
    fit_nccl,
    points_of,
    pool_of,
    pools_of,
    predict,
    residuals,
)
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.hardware.coefficients import Pair, Profile, find_profile, pooled_name, pooled_profile, size_class
from simulator.report.bands import HEADINGS, BandScores, judge_bands
from simulator.report.prediction import QUANTILE
from simulator.report.table import Section, Table, percent

__all__ = [
    "LogAccuracy",
    "accuracy_figures",
    "accuracy_section",
    "band_scores",
    "bands_section",
    "log_accuracies",
    "medians",
]

_WAYS = ("own", "shared", "unseen", "prior", "tables")
"""Profiles whose errors are shown."""

_SMALLEST, _MIDDLE, _LARGE = 2.0**10, (2.0**16, 2.0**26), 2.0**24
_LONG = 8
"""Sizes from which on a log says what a fit to it is worth."""
BANDS = ("own", "unseen", "prior")
_NODE = 16
"""GPUs of the largest node; a larger domain is a rack."""
Array = NDArray[np.float64]
Points = list[tuple[bool, float]]
"""Whether each point lies inside its band, and high / low of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAccuracy:
    """The errors of one log, as log(predicted / measured) of its points from 1 KiB up.

    Args:
        log: the log.
        message: [points] sizes [B].
        own, shared, unseen, prior, tables: [points] by the way of predicting.
        own_sigma, unseen_sigma, prior_sigma: [points] that ship with such predictions.
        split: each point by a profile of the other half of the sizes: whether it lies inside its band, high / low; none
            of a log with fewer than 8 sizes.
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
    own_sigma: Array
    split: Points
    unseen_sigma: Array
    prior_sigma: Array
    partner: bool
    twins: float | None

    def error(self, way: str, low: float = _SMALLEST, high: float = np.inf) -> float:
        """Return the median |predicted / measured - 1| between two sizes [B], NaN without points."""
        inside = (self.message >= low) & (self.message <= high)
        return float(np.median(np.abs(np.expm1(getattr(self, way)[inside])))) if inside.any() else np.nan

    def coverage(self, way: str) -> float:
        """Return the share of points inside the 80 % band of predictions made "own", "unseen" or "prior"."""
        return float(np.mean([held for held, _ in self.points(way)]))

    def points(self, way: str) -> Points:
        """Return whether each point lies inside such a band, and high / low of it."""
        return _points(getattr(self, way), getattr(self, f"{way}_sigma"))


def log_accuracies(logs: Sequence[NcclLog]) -> Iterator[LogAccuracy]:
    """Yield the accuracy of each log; refits without it, and without its platform, so allow seconds per log."""
    for level, library, platforms in pools_of(logs):
        everywhere = fit_common(platforms, pooled_name(level, library))
        for key, group in sorted(platforms.items()):
            common = common_without(platforms, key)
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
        own_sigma=_own_sigmas(log, own)[kept],
        split=_split(log, key, common),
        unseen_sigma=_sigmas(log, sigmas if rest else pooled, others)[kept],
        prior_sigma=_sigmas(log, pooled, common)[kept],
        partner=bool(partners),
        twins=_twins(log, [other for other in partners if other.place == log.place]),
    )


def _own_sigmas(log: NcclLog, own: Profile) -> Array:
    one = own.own[log.name]
    return np.array([getattr(one, size_class(size)) for size in log.message.tolist()], float)


def _points(errors: Array, sigma: Array) -> Points:
    widths = QUANTILE * sigma
    return list(zip((np.abs(errors) <= widths).tolist(), np.exp(2 * widths).tolist(), strict=True))


def _split(log: NcclLog, key: Key, common: Profile) -> Points:
    """Return the points by bands that the other half of the sizes learns; none of short logs."""
    sizes, out = np.unique(log.message), Points()
    for part in (0, 1) if len(sizes) >= _LONG else ():
        left = np.isin(log.message, sizes[part::2])
        half, rest = points_of(log, ~left), points_of(log, left & (log.message >= _SMALLEST))
        fit = fit_nccl([half], "nccl_half", common.pairs, key, hops=common.network_latency)
        errors = residuals(rest, _completed(fit, common), fit.single_process_launch, fit.network_latency)
        out += _points(errors, _own_sigmas(rest, fit))
    return out


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


def accuracy_figures(found: Sequence[LogAccuracy]) -> dict[str, object]:
    """Return the errors per log and their medians over logs for JSON; errors are fractions."""
    rows = [
        {
            "log": one.log.name,
            "partner": one.partner,
            "twins": one.twins,
            "coverage_own": one.coverage("own"),
            "coverage_split": float(np.mean([held for held, _ in one.split])) if one.split else None,
            "coverage_unseen": one.coverage("unseen"),
            "coverage_prior": one.coverage("prior"),
        }
        | {way: one.error(way) for way in _WAYS}
        for one in found
    ]
    return {
        "rows": rows,
        "summary": {way: medians(found, way) for way in _WAYS},
        "bands": [asdict(one) for one in band_scores(found)],
    }


def accuracy_section(found: Sequence[LogAccuracy]) -> Section:
    """Return the table of errors per log, and the medians over logs below it."""
    rows = []
    for one in sorted(found, key=lambda one: one.log.name):
        figures = [one.error(way) for way in _WAYS]
        twins = "" if one.twins is None else percent(one.twins, 0)
        kind = "partner" if one.partner else "alone"
        name = one.log.name[:44]
        rows.append(
            (
                name,
                kind,
                *(percent(x, 1) for x in figures),
                twins,
                *(percent(one.coverage(way), 0) for way in BANDS),
            )
        )
    return Section(
        title="|predicted / measured - 1|, median over sizes from 1 KiB up",
        table=Table(
            headings=(
                "log",
                "others",
                "own",
                "shared",
                "unseen",
                "prior",
                "tables",
                "twins",
                *(f"in {way}" for way in BANDS),
            ),
            rows=tuple(rows),
            left=(0, 1),
        ),
        below=_summary(found),
    )


def _summary(found: Sequence[LogAccuracy]) -> tuple[str, ...]:
    long = [one for one in found if len(np.unique(one.message)) >= _LONG]
    wired = [one for one in found if one.log.fabric.peer_to_peer]
    partners, alone = [one for one in wired if one.partner], [one for one in wired if not one.partner]
    staged = [one for one in found if not one.log.fabric.peer_to_peer]
    far = {one.log.name: int(np.sum(np.abs(one.prior[one.message >= _LARGE]) > np.log(2))) for one in wired}
    wild = [f"{name} ({points})" for name, points in far.items() if points]
    which = f": {', '.join(wild)}" if wild else ""
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
        f"{len(wild)} logs with points beyond a factor 2 from 16 MiB up{which}{apart}",
    )


def band_scores(found: Sequence[LogAccuracy]) -> list[BandScores]:
    """Return how the bands of each way of predicting hold.

    The own band is learnt from the errors it then holds; how it does at sizes that no fit has seen is the second line.
    """
    partners, alone = [one for one in found if one.partner], [one for one in found if not one.partner]
    ways = (
        ("own log", "own", found),
        ("left out, with a partner", "unseen", partners),
        ("left out, without", "unseen", alone),
        ("prior", "prior", found),
    )
    out = [judge_bands(name, [one.points(way) for one in logs]) for name, way, logs in ways if logs]
    halves = [one for one in found if one.split]
    return [
        *out[:1],
        *([judge_bands("own log, sizes left out", [one.split for one in halves])] if halves else []),
        *out[1:],
    ]


def bands_section(found: Sequence[LogAccuracy]) -> Section:
    """Return the table of how the bands hold."""
    return Section(
        title="Points of each log inside the band, by what the prediction rests on",
        table=Table(headings=HEADINGS, rows=tuple(scores.cells for scores in band_scores(found)), left=(0,)),
    )
