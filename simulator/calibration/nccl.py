"""Profiles of all platforms from their logs, and how far they can be trusted on logs they have not seen.

logs of all platforms --fit, one vote each--> nccl_any_node, nccl_any_fabric --centre of--> one profile per platform
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    load_cost_table,
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
    "points_of",
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
    shipped: list[tuple[Key, Profile, LeftOut]] = []
    commons: list[Profile] = []
    for level, library in POOLS:
        platforms: dict[Key, list[NcclLog]] = defaultdict(list)
        for log in usable:
            if pool_of(log) == (level, library):
                platforms[platform_of(log)].append(log)
        if not platforms:
            continue
        common, share = fit_common(platforms, pooled_name(level, library))
        for key, group in sorted(platforms.items()):
            profile = fit_nccl(group, _name(key), common.pairs, key, hops=common.network_latency)
            shipped.append((key, profile, _leave_out(group, profile, common.pairs)))
        commons.append(_judged_abroad(common, platforms, share))
    usual = _ratios([one for _, _, found in shipped for one in found], lone=True)
    out = [_widened(profile, _of_platform(found, usual)) for _, profile, found in shipped]
    return out + [common.model_copy(update={"unseen": usual}) for common in commons]


def fit_platform(logs: Sequence[NcclLog], name: str) -> Profile:
    """Return the profile of one platform alone, drawn to what all shipped platforms say; sigmas widened to unseen logs.

    Of several logs each is left out in turn; a lone log says nothing of other machines, so what the shipped platforms
    found counts.

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
    return _widened(profile, _of_platform(_leave_out(logs, profile, centre), pooled.unseen))


def points_of(log: NcclLog, chosen: NDArray[np.bool_]) -> NcclLog:
    """Return a log with some of its points only."""
    return replace(log, message=log.message[chosen], seconds=log.seconds[chosen])


Ratios = dict[str, float]
"""How many times larger an error is on data that a fit has not seen, by size class."""


@dataclass(frozen=True, slots=True)
class _Miss:
    """One log: message sizes [B], and log(predicted / measured) by fits to the other logs, to all, to it alone."""

    sizes: NDArray[np.float64]
    outside: NDArray[np.float64]
    together: NDArray[np.float64]
    alone: NDArray[np.float64]


LeftOut = list[_Miss]


def _leave_out(group: Sequence[NcclLog], profile: Profile, centre: Pairs) -> LeftOut:
    """Return how far a platform's logs are missed, those of which the other logs hold the algorithms and sizes."""
    out, hops = [], profile.network_latency
    for left in group:
        rest = [log for log in group if log is not left]
        if not rest or not pairs_offered(left) <= set().union(*map(pairs_offered, rest)):
            continue
        sizes = np.concatenate([log.message for log in rest])
        known = (sizes.min() <= left.message) & (left.message <= sizes.max())
        if known.any():
            others, alone = (fit_pairs(logs, centre, STARTS, hops=hops) for logs in (rest, [left]))
            shared = PairFit(profile.pairs, profile.others, profile.single_process_launch, hops)
            errors = (residuals(left, fit.pairs, fit.launch, fit.hops)[known] for fit in (others, shared, alone))
            out.append(_Miss(left.message[known], *errors))
    return out


def _of_platform(found: LeftOut, usual: Ratios) -> Ratios:
    """Return a platform's own ratios; where fewer than two of its logs say it, the usual ones for a lone log."""
    return _ratios(found) if len(found) > 1 else usual


def _ratios(found: LeftOut, lone: bool = False) -> Ratios:
    """Return, by size class, the median over logs of the sigma outside over that of a fit to all logs of the platform
    (`lone`: to that log alone), from 1 to `_MOST`."""
    out = {}
    for name in SIZE_CLASSES:
        ratios = []
        for miss in found:
            mine = np.array([size_class(size) == name for size in miss.sizes], bool)
            if mine.any():
                near = sigma_of((miss.alone if lone else miss.together)[mine])
                ratios.append(sigma_of(miss.outside[mine]) / max(near, _LEAST_SIGMA))
        out[name] = round(float(np.clip(np.median(ratios), 1.0, _MOST)), 4) if ratios else 1.0
    return out


def _widened(profile: Profile, ratios: Ratios) -> Profile:
    def wide(value: Residual, ratio: float) -> Residual:
        return value.model_copy(update={"sigma": round(max(value.sigma * ratio, _LEAST_SIGMA), 4)})

    usual = float(np.median(list(ratios.values()) or [1.0]))
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
            residuals(log, _part(fit, share).pairs, fit.launch, fit.hops)
            for log in everyone
            if (fit := abroad[platform_of(log)])
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
        return PairFit(pairs={}, others=PRIOR, launch=load_cost_table().single_process_launch, hops={})
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
