"""Platforms that differ in one thing that hardly matters, so that one can stand for the other where it has no logs.

InfiniBand and RoCE are the same cards and verbs over different switches: what a GPU with its links makes of one it makes
of the other, but for the latency of a hop, which is fitted for each network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.calibration.nccl_fit import Hops, Key, Pairs, fit_pairs
from simulator.calibration.nccl_logs import NcclLog
from simulator.hardware.coefficients import AppliesTo, Profile

__all__ = ["by_kin", "fit_kin", "kin_of", "with_kin"]

_SAME_CARDS = {"infiniband": "roce", "roce": "infiniband"}


def kin_of(key: Key) -> Key | None:
    """Return the platform that can stand for this one, None where none can.

    >>> kin_of(("hopper", "nvlink", "roce", True)), kin_of(("hopper", "nvlink", "", True))
    (('hopper', 'nvlink', 'infiniband', True), None)
    """
    architecture, intra, network, peer = key
    return (architecture, intra, _SAME_CARDS[network], peer) if network in _SAME_CARDS else None


def fit_kin(key: Key, platforms: Mapping[Key, Sequence[NcclLog]], centre: Pairs, hops: Hops) -> Pairs:
    """Return the multipliers of a platform's kin, {} where it has none with logs."""
    kin = kin_of(key)
    logs = platforms.get(kin) if kin else None
    return fit_pairs(logs, centre, hops=hops).pairs if logs else {}


def with_kin(profile: Profile, kin: Pairs) -> Profile:
    """Return a profile with its kin's multipliers for the pairs that its own logs do not hold."""
    borrowed = {name: pair for name, pair in kin.items() if name not in profile.pairs}
    return profile.model_copy(update={"pairs": profile.pairs | borrowed, "borrowed": tuple(sorted(borrowed))})


def by_kin(common: Profile, kin: Pairs, name: str, key: Key, of: str) -> Profile:
    """Return the profile of a platform without logs: its kin's multipliers, the spread of platforms nobody measured.

    Args:
        common: the profile of all platforms.
        kin: multipliers.
        name: of the new profile.
        key: what it applies to.
        of: the name of the kin's profile.
    """
    return common.model_copy(
        update={
            "name": name,
            "applies_to": AppliesTo(architecture=key[0], intra=key[1], network=key[2], peer_to_peer=key[3]),
            "pairs": kin,
            "borrowed": tuple(sorted(kin)),
            "classes": {},
            "logs": {},
            "unseen": {},
            "sources": {"*": f"no logs: the multipliers of {of}, whose cards differ in their switches alone"},
        }
    )
