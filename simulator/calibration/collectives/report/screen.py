"""What `dtsim calibrate nccl` shows: per log the error before and after, the numbers fitted, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calibration.collectives.fit.launch import host_seconds, with_host
from simulator.calibration.collectives.fit.platforms import predict
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.calibration.collectives.tool import Collected
from simulator.collectives import bus_factor, collective_seconds, profile_of
from simulator.errors import SimulatorError
from simulator.hardware.coefficients import SIZE_CLASSES, PairName, Profile
from simulator.report.log_axis import label_log_axis
from simulator.report.picture import new_picture, save_picture
from simulator.report.prediction import QUANTILE
from simulator.report.table import Section, Table, percent
from simulator.units import in_unit, show

__all__ = ["calibration_sections", "fit_figures", "plot_fit"]

_MOST_ERROR = 50.0
"""Per cent at the edges of the picture of residuals."""
_COLOURS = ("#4e79a7", "#e15759", "#59a14f", "#f28e2b", "#b07aa1", "#76b7b2", "#9c755f", "#edc948")


def _logs_of(profile: Profile, logs: Sequence[NcclLog]) -> list[NcclLog]:
    return [log for log in logs if log.name in profile.logs]


def _errors(log: NcclLog, profile: Profile) -> NDArray[np.float64]:
    return np.asarray(
        np.expm1(
            np.log(predict(log, profile.pairs, profile.single_process_launch, profile.network_latency) / log.seconds)
        )
    )


def _before(log: NcclLog) -> float | None:
    """Return the median error of the predictions without the new profile."""
    try:
        host = host_seconds(log, profile_of(log.fabric, log.place).single_process_launch)
        seconds = [
            collective_seconds(log.kind, size, log.place, log.fabric, log.algorithm, log.protocol).seconds
            for size in log.message
        ]
    except SimulatorError:
        return None
    return float(np.median(np.abs(with_host(seconds, host) / log.seconds - 1)))


def fit_figures(profile: Profile, collected: Collected) -> dict[str, Any]:
    """Return the fit's figures for JSON: sizes in bytes, errors as fractions, sigma in log space."""
    logs = []
    for log in _logs_of(profile, collected.logs):
        far = np.abs(_errors(log, profile))
        logs.append(
            {
                "log": log.name,
                "kind": log.kind,
                "ranks": log.place.ranks,
                "nodes": log.place.nodes,
                "points": len(log.message),
                "smallest_bytes": float(log.message.min()),
                "largest_bytes": float(log.message.max()),
                "median_error": float(np.median(far)),
                "p95_error": float(np.quantile(far, 0.95)),
                "median_error_before": _before(log),
                "band": {
                    name: float(np.expm1(QUANTILE * getattr(profile.own[log.name], name))) for name in SIZE_CLASSES
                },
                "sha256": profile.logs[log.name],
            }
        )
    return {
        "name": profile.name,
        "applies_to": profile.applies_to.model_dump() if profile.applies_to else None,
        "points": profile.everything.points,
        "residual_p50": profile.everything.residual_p50,
        "residual_p95": profile.everything.residual_p95,
        "sigma": profile.everything.sigma,
        "pairs": {str(name): pair.model_dump() for name, pair in profile.pairs.items()},
        "logs": logs,
    }


def calibration_sections(profiles: Sequence[Profile], collected: Collected) -> list[Section]:
    """Return the answer to read: a section per profile, then what was noticed and what was left out."""
    sections = [section for profile in profiles for section in _sections(profile, collected)]
    if collected.remarks:
        sections.append(Section(title="noticed", lines=collected.remarks))
    if collected.refused:
        sections.append(Section(title="left out", lines=collected.refused))
    return sections


def _sections(profile: Profile, collected: Collected) -> list[Section]:
    figures = fit_figures(profile, collected)
    applies = figures["applies_to"] or {}
    where = ", ".join(
        str(value) for value in (applies.get("architecture"), applies.get("intra"), applies.get("network")) if value
    )
    rows = tuple(
        (
            one["log"][:48],
            f"{one['kind']} {one['ranks']}/{one['nodes']}",
            str(one["points"]),
            f"{show(one['smallest_bytes'], 'B')} - {show(one['largest_bytes'], 'B')}",
            "" if one["median_error_before"] is None else percent(one["median_error_before"]),
            percent(one["median_error"]),
            percent(one["p95_error"]),
            " ".join(f"{100 * width:.0f}" for width in one["band"].values()) + " %",
        )
        for one in figures["logs"]
    )
    pairs = tuple(
        (str(name), f"{pair.latency:.3g}", f"{pair.bandwidth:.3g}", f"{pair.ramp:.3g}")
        for name, pair in profile.pairs.items()
        if _wins(name, profile)
    )
    return [
        Section(
            title=f"{profile.name} ({where}): {profile.everything.points} times, error p50 "
            f"{percent(profile.everything.residual_p50)}, p95 {percent(profile.everything.residual_p95)}; "
            f"band of another machine of this kind from sigma {profile.everything.sigma:.3f}",
            table=Table(
                headings=("log", "ranks/nodes", "times", "sizes", "p50 before", "p50", "p95", "80 % here"),
                rows=rows,
                left=(0, 1),
            ),
            below=(
                "80 % here: half the band on this very machine, for messages below 64 KiB, below 16 MiB and larger",
            ),
        ),
        Section(
            title="multipliers on NCCL's own constants, of the algorithms that win somewhere in these logs",
            table=Table(headings=("algorithm:protocol", "latency", "bandwidth", "ramp"), rows=pairs),
        ),
    ]


def _wins(name: PairName, profile: Profile) -> bool:
    return any(which.algorithm == name.algorithm for which in profile.classes)


def plot_fit(profiles: Sequence[Profile], logs: Sequence[NcclLog], path: str | Path) -> Path:
    """Draw points, fitted curves and residuals of the logs into a file; its ending chooses the format.

    Raises:
        SpecError: an ending that names no picture format.
    """
    figure = new_picture(path, 11.0, 7.0, dpi=120)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]})
    number = 0
    for profile in profiles:
        for log in _logs_of(profile, logs):
            _draw(above, below, log, profile, _COLOURS[number % len(_COLOURS)])
            number += 1
    above.set_xscale("log", base=2)
    above.set_yscale("log")
    label_log_axis(above.xaxis, lambda value: show(value, "B"), base=2)
    label_log_axis(above.yaxis, lambda value: f"{value:g}")
    above.set_title("points: measured; lines: fitted", loc="left", fontsize=11, weight="bold")
    above.set_ylabel("bus bandwidth [GB/s]")
    above.legend(fontsize=7, loc="upper left")
    above.grid(alpha=0.3)
    below.axhline(0.0, color="#404040", lw=0.8)
    below.set_ylim(-1.04 * _MOST_ERROR, 1.04 * _MOST_ERROR)
    below.set_ylabel("error of the time [%]", fontsize=9)
    below.set_xlabel("message; errors beyond the edge lie on it")
    below.grid(alpha=0.3)
    return save_picture(figure, path)


def _draw(above: Any, below: Any, log: NcclLog, profile: Profile, colour: str) -> None:
    factor = bus_factor(log.kind, log.place.ranks)
    order = np.argsort(log.message)
    size, seconds = log.message[order], log.seconds[order]
    fitted = predict(log, profile.pairs, profile.single_process_launch, profile.network_latency)[order]
    above.plot(
        size,
        in_unit(factor, "GB/s", "B/s") * size / seconds,
        "o",
        ms=3.5,
        color=colour,
        label=f"{log.name} ({log.kind})",
    )
    above.plot(size, in_unit(factor, "GB/s", "B/s") * size / fitted, "-", lw=1.2, color=colour)
    errors = np.clip(100.0 * (fitted / seconds - 1), -_MOST_ERROR, _MOST_ERROR)
    below.plot(size, errors, ".", ms=5, color=colour)
