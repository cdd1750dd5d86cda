"""Profiles of all platforms from their logs, and how far they can be trusted on logs they have not seen.

logs of all platforms --fit, one vote each--> nccl_any_node, nccl_any_fabric --centre of--> one profile per platform
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.nccl_fit import (
    STARTS,
    Key,
    PairFit,
    Pairs,
    classes_of,
    fit_nccl,
    fit_pairs,
    pairs_offered,
    platform_of,
    predict,
    residual_of,
    residuals,
    sigma_of,
)
from simulator.calibration.nccl_logs import NcclLog
from simulator.calibration.nccl_toml import export_profile
from simulator.collectives import PRIOR, level_of
from simulator.errors import CalibrationError
from simulator.hardware.coefficients import (
    SIZE_CLASSES,
    Library,
    Pair,
    Profile,
    Residual,
    library_of,
    pooled_name,
    pooled_profile,
    size_class,
)

__all__ = [
    "POOLS",
    "Key",
    "Pairs",
    "common_without",
    "export_profile",
    "fit_all",
    "fit_common",
    "fit_nccl",
    "fit_platform",
    "platform_of",
    "pool_of",
    "predict",
    "residuals",
]

_MOST, _LEAST_SIGMA = 4.0, 0.01
"""Bounds of how much a sigma is widened [1], and of how small it can be: two runs of one machine differ by 1 %."""
POOLS: tuple[tuple[Literal["node", "fabric"], Library], ...] = (
    ("node", "nccl"),
    ("fabric", "nccl"),
    ("node", "rccl"),
)
"""Whose logs are fitted together: (level, library)."""


def pool_of(log: NcclLog) -> tuple[Literal["node", "fabric"], Library]:
    """Return with whose logs a log is fitted together."""
    level = level_of(log.place)
    return level, library_of(log.fabric.architecture, level)


_SHARES = (0.25, 0.5, 0.75, 1.0)
"""How far the common profiles may go from NCCL's constants towards the fit of all platforms."""


def fit_all(logs: Iterable[NcclLog]) -> list[Profile]:
    """Return one profile per platform of the logs, and the two for all others; sigmas are widened to unseen logs.

    A fit looks better on its own logs than on new ones.  How much is measured by leaving out each log of a platform in
    turn, over sizes and algorithms that the others hold; its sigmas are multiplied by that ratio (of a platform with one
    log only: by the ratio of all platforms together).
    The sigma of the two common profiles is that of platforms left out whole.
    """
    usable = [log for log in logs if log.usable]
    out: list[Profile] = []
    for level, library in POOLS:
        mine = [log for log in usable if pool_of(log) == (level, library)]
        if not mine:
            continue
        platforms: dict[Key, list[NcclLog]] = defaultdict(list)
        for log in mine:
            platforms[platform_of(log)].append(log)
        common, share = fit_common(platforms, pooled_name(level, library))
        fits = {
            key: fit_nccl(group, _name(key), common.pairs, key, hops=common.network_latency)
            for key, group in sorted(platforms.items())
        }
        ratio = _optimism(platforms, fits, common.pairs)
        out += [_widened(profile, ratio[key]) for key, profile in fits.items()]
        out.append(_judged_abroad(common, platforms, share))
    return out


def fit_platform(logs: Sequence[NcclLog], name: str) -> Profile:
    """Return the profile of one platform alone, drawn to what all shipped platforms say; sigmas widened to unseen logs.

    Of several logs each is left out in turn; of a lone log, every other message size.

    Raises:
        CalibrationError: no logs, or of several platforms.
    """
    keys = {platform_of(log) for log in logs}
    if len(keys) != 1:
        raise CalibrationError(f"a profile speaks for one platform, but {len(logs)} logs are of {len(keys)}")
    key = keys.pop()
    pooled = pooled_profile(*pool_of(logs[0]))
    centre = pooled.pairs
    profile = fit_nccl(logs, name, centre, key, hops=pooled.network_latency)
    if len(logs) > 1:
        return _widened(profile, _optimism({key: list(logs)}, {key: profile}, centre)[key])
    return _widened(profile, _halves(logs[0], profile, centre))


def _halves(log: NcclLog, profile: Profile, centre: Pairs) -> Ratios:
    """Return how many times larger the error is at sizes left out: each half of them in turn."""
    sizes = np.unique(log.message)
    if len(sizes) < 6:
        return dict.fromkeys(SIZE_CLASSES, 1.0)
    outside, inside = [], []
    for part in (0, 1):
        left = np.isin(log.message, sizes[part::2])
        fit = fit_pairs([_points(log, ~left)], centre, STARTS, hops=profile.network_latency)
        outside.append((log.message[left], residuals(_points(log, left), fit.pairs, fit.launch, fit.hops)))
        own = profile.pairs, profile.single_process_launch, profile.network_latency
        inside.append((log.message[left], residuals(_points(log, left), *own)))
    return _ratios(outside, inside)


def _points(log: NcclLog, chosen: NDArray[np.bool_]) -> NcclLog:
    return replace(log, message=log.message[chosen], seconds=log.seconds[chosen])


Ratios = dict[str, float]
"""How many times larger an error is on data that a fit has not seen, by size class."""
Errors = list[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Of each log: message sizes [B], log(predicted / measured)."""


def _optimism(platforms: dict[Key, list[NcclLog]], fits: dict[Key, Profile], centre: Pairs) -> dict[Key, Ratios]:
    """Return how many times larger a platform's error is on a log left out than on one fitted."""
    inside: dict[Key, Errors] = defaultdict(list)
    outside: dict[Key, Errors] = defaultdict(list)
    for key, group in platforms.items():
        for left in group:
            rest = [log for log in group if log is not left]
            if not pairs_offered(left) <= set().union(*map(pairs_offered, rest)):
                continue
            sizes = np.concatenate([log.message for log in rest])
            known = (sizes.min() <= left.message) & (left.message <= sizes.max())
            if not known.any():
                continue
            own, kept = fits[key], left.message[known]
            fit = fit_pairs(rest, centre, STARTS, hops=own.network_latency)
            outside[key].append((kept, residuals(left, fit.pairs, fit.launch, fit.hops)[known]))
            fitted = residuals(left, own.pairs, own.single_process_launch, own.network_latency)
            inside[key].append((kept, fitted[known]))
    everywhere = _ratios([*chain(*outside.values())], [*chain(*inside.values())])
    return {key: _ratios(outside[key], inside[key]) if len(outside[key]) > 1 else everywhere for key in platforms}


def _ratios(outside: Errors, inside: Errors) -> Ratios:
    """Return, by size class, the median over logs of the sigma outside over that inside, from 1 to `_MOST`."""
    out = {}
    for name in SIZE_CLASSES:
        found = []
        for (sizes, far), (_, near) in zip(outside, inside, strict=True):
            mine = np.array([size_class(size) == name for size in sizes], bool)
            if mine.any():
                found.append(sigma_of(far[mine]) / max(sigma_of(near[mine]), _LEAST_SIGMA))
        out[name] = float(np.clip(np.median(found), 1.0, _MOST)) if found else 1.0
    return out


def _widened(profile: Profile, ratios: Ratios) -> Profile:
    def wide(value: Residual, ratio: float) -> Residual:
        return value.model_copy(update={"sigma": round(max(value.sigma * ratio, _LEAST_SIGMA), 4)})

    usual = float(np.median(list(ratios.values())))
    classes = {name: wide(value, ratios.get(name.rpartition(":")[2], usual)) for name, value in profile.classes.items()}
    return profile.model_copy(update={"classes": classes, "everything": wide(profile.everything, usual)})


def _of_several(logs: Sequence[NcclLog]) -> list[NcclLog]:
    """Return the logs of collectives that several logs measured, if any: one machine says little about others."""
    counts = Counter(log.kind for log in logs)
    return [log for log in logs if counts[log.kind] > 1] or list(logs)


def fit_common(platforms: dict[Key, list[NcclLog]], name: str) -> tuple[Profile, float]:
    """Return the profile of all platforms together, and how far it goes from NCCL's constants towards the fit.

    Each platform has one vote, however many logs it has.  The share of the way is the one with the least error on
    platforms left out whole.
    """
    everyone = [log for group in platforms.values() for log in group]
    abroad = {key: _common_pairs(platforms, key) for key in platforms}

    def error(share: float) -> float:
        far = [
            residuals(log, _part(fit, share).pairs, 0.0, fit.hops)
            for log in everyone
            if not log.single_process and (fit := abroad[platform_of(log)])
        ]
        return float(np.median([np.median(np.abs(one)) for one in far])) if far else 0.0

    share = min(_SHARES, key=error) if len(platforms) > 1 else 1.0
    fit = _part(_common_pairs(platforms, None), share)
    profile = fit_nccl(everyone, name, fit=fit)
    return profile, share


def _common_pairs(platforms: dict[Key, list[NcclLog]], without: Key | None) -> PairFit:
    """Return the fit to all platforms but one, each with one vote; where it is the only one, NCCL's constants.

    Logs of GPUs that talk through host memory have no vote beside others: their wires obey no data sheet.
    """
    some = {key: group for key, group in platforms.items() if key != without}
    if not some:
        return PairFit(pairs={}, others=PRIOR, launch=0.0, hops={})
    some = {key: group for key, group in some.items() if key[3]} or some
    logs = _of_several([log for group in some.values() for log in group])
    counts = Counter(platform_of(log) for log in logs)
    return _fit_together(tuple(logs), tuple(1.0 / counts[platform_of(log)] for log in logs))


@functools.lru_cache(maxsize=128)
def _fit_together(logs: tuple[NcclLog, ...], votes: tuple[float, ...]) -> PairFit:
    """Return the fit to logs of many platforms; remembered, as each is wanted to choose, to judge and to centre fits."""
    return fit_pairs(logs, {}, STARTS[:1], votes, fits_hops=True)


def common_without(platforms: dict[Key, list[NcclLog]], without: Key, share: float) -> Profile:
    """Return the common profile that never saw one platform; `share` as `fit_common` found it."""
    fit = _part(_common_pairs(platforms, without), share)
    seen = [log for key, group in platforms.items() if key != without for log in group] or platforms[without]
    return fit_nccl(seen, "nccl_abroad", fit=fit)


def _part(fit: PairFit, share: float) -> PairFit:
    """Return a fit that goes only a share of the way from NCCL's constants."""
    pairs = {
        name: Pair(
            latency=round(pair.latency**share, 4),
            bandwidth=round(pair.bandwidth**share, 4),
            ramp=round(pair.ramp * share, 4),
        )
        for name, pair in fit.pairs.items()
    }
    return PairFit(pairs=pairs, others=fit.others, launch=fit.launch, hops=fit.hops)


def _judged_abroad(common: Profile, platforms: dict[Key, list[NcclLog]], share: float) -> Profile:
    """Return the common profile with the residuals that platforms show when they are left out of its fit."""
    errors: dict[str, NDArray[np.float64]] = {}
    for key, group in platforms.items():
        fit = _part(_common_pairs(platforms, key), share)
        errors |= {log.name: residuals(log, fit.pairs, fit.launch, fit.hops) for log in group}
    logs = [log for group in platforms.values() for log in group]
    return common.model_copy(
        update={
            "classes": classes_of(logs, errors, common.pairs, common.network_latency),
            "everything": residual_of(np.concatenate(list(errors.values()))),
        }
    )


def _name(key: Key) -> str:
    architecture, intra, network, peer = key
    return "_".join(
        ["nccl", architecture, intra or "single", *(["staged"] if not peer else []), *([network] if network else [])]
    )
