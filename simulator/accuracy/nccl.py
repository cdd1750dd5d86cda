"""Measured collectives: time of each message size of each log (an index.csv with its logs beside it)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulator.accuracy.scores import Outcome
from simulator.calibration.collectives.fit.launch import host_seconds, with_host
from simulator.calibration.collectives.read.tidy_logs import NcclLog, describe_row, load_log, log_digest, single_process
from simulator.calibration.files import csv_rows
from simulator.collectives import collective_seconds, profile_of
from simulator.errors import CalibrationError, SimulatorError, SpecError
from simulator.hardware.coefficients import Profile
from simulator.importers.table.rows import CannotPlace, Row, flag, text
from simulator.report.prediction import QUANTILE
from simulator.units import in_unit, plain_number

__all__ = ["OWN_LOG", "SAME_PLATFORM", "UNMEASURED", "nccl_outcomes"]

OWN_LOG, SAME_PLATFORM, UNMEASURED = "a log the profile was fitted to", "another machine of its kind", "no profile"
"""For what a band was made."""


def nccl_outcomes(rows: list[dict[str, str]], index: Path, everything: bool = False) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each log: time_us of every row, size and placement.

    Args:
        rows: of the index.
        index: its path; the logs lie beside it.
        everything: also logs whose posters report a fault (healthy = false).
    """
    for row in rows:
        yield _log_outcomes(row, index, everything)


def _log_outcomes(row: Row, index: Path, everything: bool) -> list[Outcome]:
    import math

    name = text(row, "log_id")
    if not name:
        raise SpecError(
            f"{index}: an index of logs names each, without .csv, in a column log_id, but a row of this names none"
        )
    path = index.parent / f"{name}.csv"
    lines = _lines(path)
    try:
        counts = flag(row, "healthy") is not False or everything
    except CannotPlace as why:
        return [_row(name, i, line, None, 0.0, why.reason, why.counts) for i, line in lines]
    if not counts:
        return [
            _row(name, i, line, None, 0.0, "the log is marked unhealthy (--all predicts it)", False)
            for i, line in lines
        ]
    try:
        log = _described(row, path)
    except (SimulatorError, KeyError, ValueError) as error:
        return [_row(name, i, line, None, 0.0, f"the machine cannot be told: {error}", True) for i, line in lines]
    out = []
    for i, line in lines:
        try:
            size = plain_number(line["size_bytes"])
            time = collective_seconds(log.kind, size, log.place, log.fabric, log.algorithm, log.protocol)
        except (SimulatorError, ValueError) as error:
            out.append(_row(name, i, line, None, 0.0, str(error), True))
            continue
        profile = profile_of(log.fabric, log.place)
        own = _own(profile, log, size)
        seconds = float(with_host(time.seconds, host_seconds(log, profile.single_process_launch)))
        factor = math.exp(QUANTILE * (own or time.sigma))
        known = profile.measured(log.kind, time.algorithm, time.protocol, size)
        band = OWN_LOG if own else SAME_PLATFORM if known else UNMEASURED
        assumed = (f"{'prior' if band is UNMEASURED else 'profile'} {profile.name}: {band}", *_rate_taken(row, log))
        out.append(replace(_row(name, i, line, seconds, factor, "", True), band_of=band, assumed=assumed))
    return out


def _rate_taken(row: Row, log: NcclLog) -> tuple[str, ...]:
    """Return what was taken for network cards whose rate the index does not say."""
    if not log.fabric.network or text(row, "nic_gbps_per_gpu"):
        return ()
    rate = in_unit(log.fabric.network_bandwidth, "Gb/s", "B/s")
    return (f"the index does not say how fast the network is: {rate:g} Gb/s per GPU",)


def _own(profile: Profile, log: NcclLog, size: float) -> float | None:
    """Return the spread for the very machine of a log that the profile was fitted to; None for any other log."""
    fitted = next((name for name, digest in profile.logs.items() if digest == log.digest), "")
    return profile.own_sigma(log.kind, size, log.place, fitted) if fitted else None


def _described(row: Row, path: Path) -> NcclLog:
    kind, place, fabric, algorithm, protocol = describe_row(row)
    sizes, times = load_log(path)
    if algorithm == "collnet":
        algorithm = "auto"
    return NcclLog(
        name=text(row, "log_id"),
        kind=kind,
        place=place,
        fabric=fabric,
        message=sizes,
        seconds=times,
        algorithm=algorithm,
        protocol=protocol,
        digest=log_digest(path),
        single_process=single_process(row),
    )


def _lines(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Rows of a log with bytes and a time, with their numbers."""
    try:
        rows = csv_rows(path)
    except CalibrationError as error:
        raise SpecError(f"the log that the index names: {error}") from None
    kept = []
    for i, row in enumerate(rows, 1):
        try:
            if plain_number(row["size_bytes"]) > 0 and plain_number(row["time_us"]) > 0:
                kept.append((i, row))
        except (KeyError, TypeError, ValueError):
            continue
    return kept


def _row(
    name: str, i: int, line: dict[str, str], seconds: float | None, factor: float, reason: str, counts: bool
) -> Outcome:
    predicted = None if seconds is None else in_unit(seconds, "us", "s")
    return Outcome(
        case_id=f"{name}:{line['size_bytes']}:{line.get('placement') or i}",
        quantity="time_us",
        group=name,
        measured=float(line["time_us"]),
        predicted=predicted,
        low=None if predicted is None else predicted / factor,
        high=None if predicted is None else predicted * factor,
        reason=reason,
        counts=counts,
    )
