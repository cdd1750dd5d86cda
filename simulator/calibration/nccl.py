"""Profiles of all platforms from their logs, and how far they can be trusted on logs they have not seen.

logs of all platforms --fit, one vote each--> nccl_any_node, nccl_any_fabric --centre of--> one profile per platform
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

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
from simulator.collectives import level_of
from simulator.errors import CalibrationError
from simulator.hardware.coefficients import Pair, Profile, Residual, pooled_profile

__all__ = [
    "Key",
    "Pairs",
    "common_without",
    "export_profile",
    "fit_all",
    "fit_common",
    "fit_nccl",
    "fit_platform",
    "platform_of",
    "predict",
    "residuals",
]

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
    for level in ("node", "fabric"):
        mine = [log for log in usable if level_of(log.place) == level]
        if not mine:
            continue
        platforms: dict[Key, list[NcclLog]] = defaultdict(list)
        for log in mine:
            platforms[platform_of(log)].append(log)
        common, share = fit_common(platforms, f"nccl_any_{level}")
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
    pooled = pooled_profile(level_of(logs[0].place))
    centre = pooled.pairs
    profile = fit_nccl(logs, name, centre, key, hops=pooled.network_latency)
    if len(logs) > 1:
        return _widened(profile, _optimism({key: list(logs)}, {key: profile}, centre)[key])
    return _widened(profile, _halves(logs[0], profile, centre))


def _halves(log: NcclLog, profile: Profile, centre: Pairs) -> float:
    """Return how many times larger the error is at sizes left out: each half of them in turn."""
    sizes = np.unique(log.message)
    if len(sizes) < 6:
        return 1.0
    outside = []
    for part in (0, 1):
        left = np.isin(log.message, sizes[part::2])
        fit = fit_pairs([_points(log, ~left)], centre, STARTS, hops=profile.network_latency)
        outside.append(residuals(_points(log, left), fit.pairs, fit.launch, fit.hops))
    return _ratio(outside, [residuals(log, profile.pairs, profile.single_process_launch, profile.network_latency)])


def _points(log: NcclLog, chosen: NDArray[np.bool_]) -> NcclLog:
    return replace(log, message=log.message[chosen], seconds=log.seconds[chosen])


def _optimism(platforms: dict[Key, list[NcclLog]], fits: dict[Key, Profile], centre: Pairs) -> dict[Key, float]:
    """Return how many times larger a platform's error is on a log left out than on one fitted."""
    inside: dict[Key, list[NDArray[np.float64]]] = defaultdict(list)
    outside: dict[Key, list[NDArray[np.float64]]] = defaultdict(list)
    for key, group in platforms.items():
        for left in group:
            rest = [log for log in group if log is not left]
            if not pairs_offered(left) <= set().union(*map(pairs_offered, rest)):
                continue
            sizes = np.concatenate([log.message for log in rest])
            known = (sizes.min() <= left.message) & (left.message <= sizes.max())
            if not known.any():
                continue
            fit = fit_pairs(rest, centre, STARTS, hops=fits[key].network_latency)
            outside[key].append(residuals(left, fit.pairs, fit.launch, fit.hops)[known])
            own = fits[key]
            inside[key].append(residuals(left, own.pairs, own.single_process_launch, own.network_latency)[known])
    ratios = {key: _ratio(outside[key], inside[key]) for key in outside}
    everywhere = _ratio([*chain(*outside.values())], [*chain(*inside.values())])
    return {key: ratios.get(key, everywhere) for key in platforms}


def _ratio(outside: list[NDArray[np.float64]], inside: list[NDArray[np.float64]]) -> float:
    if not outside:
        return 1.0
    return max(1.0, sigma_of(np.concatenate(outside)) / sigma_of(np.concatenate(inside)))


def _widened(profile: Profile, ratio: float) -> Profile:
    def wide(value: Residual) -> Residual:
        return value.model_copy(update={"sigma": round(value.sigma * ratio, 4)})

    classes = {name: wide(value) for name, value in profile.classes.items()}
    return profile.model_copy(update={"classes": classes, "everything": wide(profile.everything)})


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

    share = min(_SHARES, key=error)
    fit = _part(_common_pairs(platforms, None), share)
    profile = fit_nccl(everyone, name, fit=fit)
    return profile, share


def _common_pairs(platforms: dict[Key, list[NcclLog]], without: Key | None) -> PairFit:
    """Return the fit to all platforms but one (all of them if it is the only one), each with one vote.

    Logs of GPUs that talk through host memory have no vote beside others: their wires obey no data sheet.
    """
    some = {key: group for key, group in platforms.items() if key != without} or platforms
    some = {key: group for key, group in some.items() if key[3]} or some
    logs = _of_several([log for group in some.values() for log in group])
    counts = Counter(platform_of(log) for log in logs)
    return fit_pairs(logs, {}, STARTS[:1], [1.0 / counts[platform_of(log)] for log in logs], fits_hops=True)


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
