"""Platforms that differ in one thing that hardly matters, so that one can stand for the other where it has no logs.

InfiniBand and RoCE are the same cards and verbs over different switches: what a GPU with its links makes of one it makes
of the other, but for the latency of a hop, which is fitted for each network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.calibration.collectives.fit.cost_model import Hops, Key, Pairs, fit_pairs
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.hardware.coefficients import AppliesTo, Profile

__all__ = ["by_fallback", "fallback_of", "fit_fallback", "with_fallback"]

_SAME_CARDS = {"infiniband": "roce", "roce": "infiniband"}


def fallback_of(key: Key) -> Key | None:
    """Return the platform that can stand for this one, None where none can.

    >>> fallback_of(("hopper", "nvlink", "roce", True)), fallback_of(("hopper", "nvlink", "", True))
    (('hopper', 'nvlink', 'infiniband', True), None)
    """
    architecture, intra, network, peer = key
    return (architecture, intra, _SAME_CARDS[network], peer) if network in _SAME_CARDS else None


def fit_fallback(key: Key, platforms: Mapping[Key, Sequence[NcclLog]], centre: Pairs, hops: Hops) -> Pairs:
    """Return the multipliers of a platform's fallback, {} where it has none with logs."""
    fallback = fallback_of(key)
    logs = platforms.get(fallback) if fallback else None
    return fit_pairs(logs, centre, hops=hops).pairs if logs else {}


def with_fallback(profile: Profile, fallback: Pairs) -> Profile:
    """Return a profile with its fallback's multipliers for the pairs that its own logs do not hold."""
    borrowed = {name: pair for name, pair in fallback.items() if name not in profile.pairs}
    return profile.model_copy(update={"pairs": profile.pairs | borrowed, "borrowed": tuple(sorted(borrowed))})


def by_fallback(common: Profile, fallback: Pairs, name: str, key: Key, of: str) -> Profile:
    """Return the profile of a platform without logs: its fallback's multipliers, the spread of platforms nobody measured.

    Args:
        common: the profile of all platforms.
        fallback: multipliers.
        name: of the new profile.
        key: what it applies to.
        of: the name of the fallback's profile.
    """
    return common.model_copy(
        update={
            "name": name,
            "applies_to": AppliesTo(architecture=key[0], intra=key[1], network=key[2], peer_to_peer=key[3]),
            "pairs": fallback,
            "borrowed": tuple(sorted(fallback)),
            "classes": {},
            "logs": {},
            "unseen": {},
            "sources": {"*": f"no logs: the multipliers of {of}, whose cards differ in their switches alone"},
        }
    )
