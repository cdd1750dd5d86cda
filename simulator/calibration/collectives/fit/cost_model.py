"""Fit NCCL's own cost model to logs of nccl-tests.

The model stays NCCL's: for each algorithm and protocol a latency and a bandwidth, the quickest wins.  A fit changes
only multipliers: three that all pairs of a platform share, and three of each pair that are held close to them.  A pair
that never wins thus moves with its platform only.  All are held back by what all platforms together say, and that by
NCCL's constants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.fit.launch import host_seconds, with_host
from simulator.calibration.collectives.fit.own_width import own_of
from simulator.calibration.collectives.fit.terms import Term, pairs_offered, stacked, terms_of
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.collectives import PRIOR, level_of
from simulator.errors import CalibrationError
from simulator.hardware.coefficients import (
    AppliesTo,
    Pair,
    PairName,
    Profile,
    Residual,
    ResidualClass,
    SizeRange,
    load_cost_table,
    size_class,
)
from simulator.units import parse

__all__ = [
    "STARTS",
    "Hops",
    "Key",
    "PairFit",
    "Pairs",
    "classes_of",
    "fit_nccl",
    "fit_pairs",
    "pairs_chosen",
    "pairs_offered",
    "platform_of",
    "predict",
    "residual_of",
    "residuals",
    "sigma_of",
]

_SPREAD = np.array([0.4, 0.1, 0.4])
"""How far a pair's multipliers are expected to lie from those of its platform: log latency, log bandwidth, ramp."""
_SHARED = np.array([1.2, 0.3, 0.6])
"""How far a platform's multipliers, common to all its pairs, are expected to lie from the centre."""
_LATENCY_SEEN, _LATENCY_LOST = 2.0**16, 2.0**24
_BANDWIDTH_SEEN, _BANDWIDTH_LOST = 2.0**26, 2.0**20
"""Messages [B] that show latency, or bandwidth, and messages in which it is lost."""
STARTS = ((0.0, 0.0), (1.0, -0.3), (-0.5, 0.0))
"""Where a fit starts (log latency, log bandwidth of the platform): there are several valleys."""
_HOPS, _LEAST_HOP = 1.0, parse("2 us", "s")
"""How far a network's latency is expected to lie from its data sheet (log), which counts as at least this."""
_LAUNCH = 0.3
"""How far what one process takes to launch for one of its GPUs is expected to lie from the usual (log)."""
_FEW = 6
"""Points of which a size class of its own is made."""
_NOISE = 0.1
"""Error in log space that a good model still makes; sets the balance between logs and centre."""
_SMALL = 32768.0
"""Messages below this size [B] count for a third: their times are the latency alone, over and over."""

Pairs = dict[PairName, Pair]
Hops = Mapping[str, float]
"""What a hop takes beyond NCCL's constants [s], by network technology."""
Key = tuple[str, str, str, bool]


def platform_of(log: NcclLog) -> Key:
    """Return what a profile for this log applies to: (architecture, intra, network, peer_to_peer)."""
    wanted = AppliesTo.of(log.fabric, level_of(log.place))
    return wanted.architecture, wanted.intra, wanted.network, wanted.peer_to_peer


def fit_nccl(
    logs: Sequence[NcclLog],
    name: str,
    centre: Pairs | None = None,
    applies_to: Key | None = None,
    fit: PairFit | None = None,
    hops: Hops | None = None,
) -> Profile:
    """Return the profile that agrees best with the logs.

    Minimises soft_l1 of log(predicted / measured) / 0.1 over all points plus (log multiplier - centre)^2 / spread^2.

    Args:
        logs: all of one level (inside a domain, or across).
        name: of the profile.
        centre: where multipliers are drawn to; None = NCCL's own constants.
        applies_to: platform; None = a profile for platforms without one.
        fit: multipliers that are known already; None = fit them.
        hops: latencies of the networks that are known already; None = the data sheets'.

    Raises:
        CalibrationError: no logs, or of both levels.
    """
    if len({level_of(log.place) for log in logs}) != 1:
        raise CalibrationError(
            f"a profile speaks for groups inside a node or for groups that leave it, got {len(logs)} logs"
        )
    if fit is None:
        fit = fit_pairs(logs, centre or {}, STARTS if applies_to else STARTS[:1], hops=hops)
    pairs = fit.pairs
    errors = {log.name: residuals(log, pairs, fit.launch, fit.hops) for log in logs}
    return Profile(
        name=name,
        sources={
            "*": "fitted by simulator.calibration.collectives to the logs listed; the centre of each fit is nccl_any_*"
        },
        applies_to=_applies(applies_to),
        size_range=SizeRange(
            smallest=min(float(log.message.min()) for log in logs),
            largest=max(float(log.message.max()) for log in logs),
        ),
        pairs=pairs,
        classes=classes_of(logs, errors, pairs, fit.hops),
        everything=residual_of(np.concatenate(list(errors.values()))),
        logs={log.name: log.digest for log in logs},
        own={log.name: own_of(log, errors[log.name]) for log in logs} if applies_to else {},
        others=fit.others if applies_to else PRIOR,
        single_process_launch=fit.launch,
        network_latency={
            log.fabric.network: float(f"{_hop(log, fit.hops):.4g}") for log in logs if level_of(log.place) == "fabric"
        },
    )


def predict(log: NcclLog, pairs: Pairs, launch: float = 0.0, hops: Hops | None = None) -> NDArray[np.float64]:
    """Return the seconds of the log's messages by a profile's multipliers; pairs that it lacks keep NCCL's constants.

    `launch` [s] per GPU bounds them from below where one process launched for all ranks of a node; `hops` None = the
    data sheets'.
    """
    return with_host(_choose(terms_of(log), pairs, _hop(log, hops))[0], host_seconds(log, launch))


def pairs_chosen(log: NcclLog, pairs: Pairs, hops: Hops | None = None) -> list[PairName]:
    """Return the pair of each of the log's points by a profile's multipliers."""
    terms = terms_of(log)
    return [terms[i].pair for i in _choose(terms, pairs, _hop(log, hops))[1]]


def residuals(log: NcclLog, pairs: Pairs, launch: float = 0.0, hops: Hops | None = None) -> NDArray[np.float64]:
    """Return log(predicted / measured) of each point."""
    return np.asarray(np.log(predict(log, pairs, launch, hops) / log.seconds))


def _hop(log: NcclLog, hops: Hops | None) -> float:
    """Return the latency of the log's network beyond NCCL's constants [s]: as given, else by its data sheet."""
    if level_of(log.place) != "fabric":
        return 0.0
    network = log.fabric.network
    return (hops or {}).get(network, load_cost_table().network_latency.get(network, 0.0))


def _choose(terms: list[Term], pairs: Pairs, hop: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the least seconds per point, and which term it is."""
    rows = []
    for term in terms:
        pair = pairs.get(term.pair, PRIOR)
        rows.append(term.seconds(pair.latency, pair.bandwidth, pair.ramp, hop))
    return np.min(rows, 0), np.argmin(rows, 0)


@dataclass(frozen=True, slots=True)
class PairFit:
    """Multipliers of the pairs; those of any other pair; launch [s] per GPU of logs that one process ran for all ranks;
    latency of networks."""

    pairs: Pairs
    others: Pair
    launch: float
    hops: Hops


def fit_pairs(
    logs: Sequence[NcclLog],
    centre: Pairs,
    starts: Sequence[tuple[float, float]] = STARTS,
    votes: Sequence[float] | None = None,
    hops: Hops | None = None,
    fits_hops: bool = False,
) -> PairFit:
    """Return the multipliers that agree best with the logs.

    Args:
        logs: of one level.
        centre: where multipliers are drawn to.
        starts: where to start from; the best end counts.
        votes: weight of each log, None = 1 each.
        hops: latencies of networks that are known; None = the data sheets'.
        fits_hops: also fit the latency of a hop, one number per network technology but InfiniBand, whose hops are what
            NCCL's constants describe; drawn to the data sheets'.
    """
    from scipy.optimize import least_squares

    terms = [terms_of(log) for log in logs]
    names = sorted({term.pair for group in terms for term in group})
    start = np.array([_to_logs(centre.get(name, PRIOR)) for name in names])
    size = start.size
    known = np.array([_hop(log, hops) for log in logs])
    free = sorted({log.fabric.network for log in logs if level_of(log.place) == "fabric"} - {"infiniband"})
    free = free if fits_hops else []
    index = [free.index(log.fabric.network) if log.fabric.network in free else -1 for log in logs]
    usual = np.array([max(load_cost_table().network_latency.get(name, 0.0), _LEAST_HOP) for name in free])
    usual_launch = load_cost_table().single_process_launch
    weights = [_weights(log) * np.sqrt(vote) for log, vote in zip(logs, votes or [1.0] * len(logs), strict=True)]

    sight = _sight(logs)

    def multipliers(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return start + x[:3] + x[3 : 3 + size].reshape(-1, 3)

    stacks = [stacked(group, names) for group in terms]
    seconds, weight = np.concatenate([log.seconds for log in logs]), np.concatenate(weights)

    def misses(x: NDArray[np.float64]) -> NDArray[np.float64]:
        values = multipliers(x)
        values = np.stack([np.exp(values[:, 0]), np.exp(values[:, 1]), np.abs(values[:, 2])], 1)
        networks = usual * np.exp(x[4 + size :])
        launch = float(np.exp(x[3 + size])) * usual_launch
        best = [
            with_host(
                stack.seconds(values, known[i] if index[i] < 0 else networks[index[i]]), host_seconds(logs[i], launch)
            )
            for i, stack in enumerate(stacks)
        ]
        out = _soft(np.log(np.concatenate(best) / seconds) / _NOISE) * weight
        pairs = x[3 : 3 + size] / np.tile(sight * _SPREAD, len(names))
        held = [x[:3] / (sight * _SHARED), pairs, x[3 + size : 4 + size] / _LAUNCH]
        return np.concatenate([out, *held, x[4 + size :] / _HOPS])

    first = np.zeros((len(starts), 4 + size + len(free)))
    first[:, :2] = starts
    found = min((least_squares(misses, x, method="trf", max_nfev=60) for x in first), key=lambda fit: fit.cost).x
    fitted = dict(zip(free, (usual * np.exp(found[4 + size :])).tolist(), strict=True))
    return PairFit(
        pairs={name: _from_logs(*row) for name, row in zip(names, multipliers(found), strict=True)},
        others=_from_logs(found[0], min(found[1], 0.0), 0.0),
        launch=float(np.exp(found[3 + size])) * usual_launch,
        hops={**(hops or {}), **fitted},
    )


def _sight(logs: Sequence[NcclLog]) -> NDArray[np.float64]:
    """Return how free latency, bandwidth and ramp are: logs of large messages alone say little about latency.

    All of the spread where the smallest message is at most 64 KiB and the largest at least 64 MiB, a fifth of it where
    latency is lost in 16 MiB, or bandwidth in 1 MiB.
    """
    least = min(float(log.message.min()) for log in logs)
    most = max(float(log.message.max()) for log in logs)
    latency = np.log2(_LATENCY_LOST / least) / np.log2(_LATENCY_LOST / _LATENCY_SEEN)
    bandwidth = np.log2(most / _BANDWIDTH_LOST) / np.log2(_BANDWIDTH_SEEN / _BANDWIDTH_LOST)
    return np.asarray(np.clip([latency, bandwidth, 1.0], 0.2, 1.0))


def _soft(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return z with its far ends pulled in, so that its square is the soft_l1 loss: 2 (sqrt(1 + z^2) - 1)."""
    return np.asarray(np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z**2) - 1)))


def _weights(log: NcclLog) -> NDArray[np.float64]:
    """Return the weight of each point: small messages count less, and a log of many rows no more than one of few."""
    return np.asarray(np.where(log.message < _SMALL, 1 / 3, 1.0) / np.sqrt(len(log.message) / 10.0))


def _to_logs(pair: Pair) -> tuple[float, float, float]:
    return float(np.log(pair.latency)), float(np.log(pair.bandwidth)), max(pair.ramp, 0.05)


def _from_logs(latency: float, bandwidth: float, ramp: float) -> Pair:
    return Pair(
        latency=round(float(np.exp(latency)), 4),
        bandwidth=round(float(np.exp(bandwidth)), 4),
        ramp=round(abs(float(ramp)), 4),
    )


def _applies(key: Key | None) -> AppliesTo | None:
    if key is None:
        return None
    return AppliesTo(architecture=key[0], intra=key[1], network=key[2], peer_to_peer=key[3])


def classes_of(
    logs: Sequence[NcclLog], errors: dict[str, NDArray[np.float64]], pairs: Pairs, hops: Hops | None = None
) -> dict[ResidualClass, Residual]:
    """Return the residuals by collective and algorithm chosen, and by size class where it has `_FEW` points."""
    found: dict[ResidualClass, list[float]] = defaultdict(list)
    for log in logs:
        terms = terms_of(log)
        chosen = _choose(terms, pairs, _hop(log, hops))[1]
        for size, error, i in zip(log.message, errors[log.name], chosen, strict=True):
            every = ResidualClass(log.kind, terms[i].pair.algorithm)
            found[every].append(float(error))
            found[every._replace(size=size_class(float(size)))].append(float(error))
    return {
        which: residual_of(np.array(values))
        for which, values in sorted(found.items())
        if not which.size or len(values) >= _FEW
    }


def residual_of(errors: NDArray[np.float64]) -> Residual:
    """Return how far log(predicted / measured) lie from 0."""
    far = np.abs(np.expm1(errors))
    return Residual(
        points=len(errors),
        residual_p50=round(float(np.quantile(far, 0.5)), 4),
        residual_p95=round(float(np.quantile(far, 0.95)), 4),
        sigma=round(max(sigma_of(errors), 0.001), 4),
    )


def sigma_of(errors: NDArray[np.float64]) -> float:
    """Return the sigma whose 80 % band holds 80 % of the errors: one wild point does not widen all bands."""
    return float(np.quantile(np.abs(errors), 0.8)) / 1.2816
