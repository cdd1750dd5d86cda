"""Profiles of all platforms from their logs, and how far they can be trusted on logs they have not seen.

logs of all platforms --fit, one vote each--> nccl_any_node, nccl_any_fabric --centre of--> one profile per platform
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.fit.between_machines import (
    LeftOut,
    Spreads,
    at_least,
    left_out,
    machine_of,
    of_platform,
    spreads,
    widened,
)
from simulator.calibration.collectives.fit.cost_model import (
    STARTS,
    Key,
    PairFit,
    Pairs,
    classes_of,
    fit_nccl,
    fit_pairs,
    platform_of,
    predict,
    residual_of,
    residuals,
)
from simulator.calibration.collectives.fit.platform_fallback import (
    by_fallback,
    fallback_of,
    fit_fallback,
    with_fallback,
)
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.collectives import PRIOR, level_of
from simulator.errors import CalibrationError
from simulator.hardware.coefficients import (
    Library,
    Pair,
    Profile,
    library_of,
    load_cost_table,
    pooled_name,
    pooled_profile,
)

__all__ = [
    "POOLS",
    "Key",
    "Pairs",
    "common_without",
    "fit_all",
    "fit_common",
    "fit_nccl",
    "fit_platform",
    "platform_of",
    "points_of",
    "pool_of",
    "pools_of",
    "predict",
    "residuals",
]

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


_SHARE = 0.5
"""How far common profiles go from NCCL's constants towards the fit of all platforms, in logs: of a quarter to the whole way,
platforms left out are missed by the same mean within 2 points."""


def pools_of(
    logs: Sequence[NcclLog],
) -> Iterator[tuple[Literal["node", "fabric"], Library, dict[Key, list[NcclLog]]]]:
    """Yield level, library, and the logs of each platform, of those that are fitted together."""
    for level, library in POOLS:
        platforms: dict[Key, list[NcclLog]] = defaultdict(list)
        for log in logs:
            if pool_of(log) == (level, library):
                platforms[platform_of(log)].append(log)
        if platforms:
            yield level, library, platforms


def fit_all(logs: Iterable[NcclLog]) -> list[Profile]:
    """Return one profile per platform of the logs, and the two for all others; sigmas are widened to unseen logs.

    A fit says nothing of other machines of its kind.  How far they lie apart is measured by leaving out each machine of a
    platform in turn, over sizes and algorithms that the others hold; that spread is added to its sigmas.
    One machine whose GPUs talk through host memory makes no profile: its wires obey no data sheet, and other hosts are not its like.
    A platform without logs whose fallback has some takes that one's multipliers; the sigma of such, as of the common profiles, is
    that of platforms left out whole.
    """
    usable = [log for log in logs if log.usable]
    shipped: list[tuple[Profile, LeftOut]] = []
    strangers: list[Profile] = []
    commons: list[Profile] = []
    for level, library, platforms in pools_of(usable):
        common = fit_common(platforms, pooled_name(level, library))
        for key, group in sorted(platforms.items()):
            if not _speaks_for_others(key, group):
                continue
            fallback = fit_fallback(key, platforms, common.pairs, common.network_latency)
            centre = common.pairs | fallback
            profile = with_fallback(fit_nccl(group, _name(key), centre, key, hops=common.network_latency), fallback)
            shipped.append((profile, left_out(group, centre, common.network_latency)))
        everyone = _judged_abroad(common, platforms)
        commons.append(everyone)
        without_logs = {
            stand_in: key for key in platforms if (stand_in := fallback_of(key)) and stand_in not in platforms
        }
        for key in sorted(without_logs):
            fallback = fit_fallback(key, platforms, common.pairs, common.network_latency)
            strangers.append(by_fallback(everyone, fallback, _name(key), key, _name(without_logs[key])))
    usual = spreads([one for _, found in shipped for one in found])
    out = [widened(profile, _apart(profile, found, usual)) for profile, found in shipped]
    commons = [at_least(common, usual).model_copy(update={"unseen": usual}) for common in commons]
    return out + strangers + commons


def _speaks_for_others(key: Key, group: Sequence[NcclLog]) -> bool:
    """Whether logs of a platform say something of its other machines: where hosts set the speed, those of one host do not."""
    return key[3] or len({machine_of(log) for log in group}) > 1


def fit_platform(logs: Sequence[NcclLog], name: str) -> Profile:
    """Return the profile of one platform alone, drawn to what all shipped platforms say; sigmas widened to other machines.

    Of several machines each is left out in turn; a lone one says nothing of others, so what the shipped platforms found
    counts.

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
    return widened(profile, _apart(profile, left_out(logs, centre, pooled.network_latency), pooled.unseen))


def _apart(profile: Profile, found: LeftOut, usual: Spreads) -> Spreads:
    """Return how far machines of a platform lie apart; those that talk through host memory at least as far as hosts do."""
    apart = of_platform(found, usual)
    direct = profile.applies_to is None or profile.applies_to.peer_to_peer
    return apart if direct else {name: max(sigma, load_cost_table().between_hosts) for name, sigma in apart.items()}


def points_of(log: NcclLog, chosen: NDArray[np.bool_]) -> NcclLog:
    """Return a log with some of its points only."""
    return replace(log, message=log.message[chosen], seconds=log.seconds[chosen])


def _of_several(logs: Sequence[NcclLog]) -> list[NcclLog]:
    """Return the logs of collectives that several logs measured, if any: one machine says little about others."""
    counts = Counter(log.kind for log in logs)
    return [log for log in logs if counts[log.kind] > 1] or list(logs)


def fit_common(platforms: dict[Key, list[NcclLog]], name: str) -> Profile:
    """Return the profile of all platforms together; each has one vote, however many logs it has."""
    everyone = [log for group in platforms.values() for log in group]
    fit = _common_pairs(platforms, None)
    return fit_nccl(everyone, name, fit=_part(fit) if len(platforms) > 1 else fit)


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


def common_without(platforms: dict[Key, list[NcclLog]], without: Key) -> Profile:
    """Return the profile for a platform by the others: its fallback's if there is one."""
    fit = _abroad(platforms, without)
    seen = [log for key, group in platforms.items() if key != without for log in group] or platforms[without]
    return fit_nccl(seen, "nccl_abroad", fit=fit)


def _abroad(platforms: dict[Key, list[NcclLog]], without: Key) -> PairFit:
    """Return what a platform without logs would be predicted by: all others together, and its fallback."""
    fit = _part(_common_pairs(platforms, without))
    fallback = fit_fallback(without, platforms, fit.pairs, fit.hops)
    return replace(fit, pairs=fit.pairs | fallback)


def _part(fit: PairFit) -> PairFit:
    """Return a fit that goes only a part of the way from NCCL's constants."""
    pairs = {
        name: Pair(
            latency=round(pair.latency**_SHARE, 4),
            bandwidth=round(pair.bandwidth**_SHARE, 4),
            ramp=round(pair.ramp * _SHARE, 4),
        )
        for name, pair in fit.pairs.items()
    }
    return PairFit(pairs=pairs, others=fit.others, launch=fit.launch, hops=fit.hops)


def _judged_abroad(common: Profile, platforms: dict[Key, list[NcclLog]]) -> Profile:
    """Return the common profile with the residuals that platforms show when they are left out of its fit."""
    errors: dict[str, NDArray[np.float64]] = {}
    for key, group in platforms.items():
        fit = _abroad(platforms, key)
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
