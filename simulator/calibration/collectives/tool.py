"""From files on a disk to profiles: the work of `dtsim calibrate nccl`.

    files --read_log--> tables --place_table--> where --judge_table--> logs --fit_platform--> one profile per platform

A file that cannot be used costs one message; the others go on.  Logs that are not well are named and left out.
"""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from simulator import __version__
from simulator.calibration.collectives.fit.platforms import Key, fit_platform, platform_of
from simulator.calibration.collectives.judge.checks import Judged, judge_table, mark_slow_twins
from simulator.calibration.collectives.judge.machine import Machine, index_rows, place_table
from simulator.calibration.collectives.read.log_file import read_log
from simulator.calibration.collectives.read.tidy_logs import NcclLog
from simulator.errors import CalibrationError, SimulatorError
from simulator.hardware.coefficients import Profile

__all__ = ["Collected", "collect_logs", "fit_profiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What became of the files.

    Args:
        logs: good ones.
        remarks: what was found in the good ones, "log: sentence".
        refused: files and tables left out, "log: reason".
        versions: of the libraries that the logs name, by log.
    """

    logs: tuple[NcclLog, ...]
    remarks: tuple[str, ...]
    refused: tuple[str, ...]
    versions: Mapping[str, str]

    def check(self, use: str) -> None:
        """Refuse to go on without a log.

        Raises:
            CalibrationError: none is left, with what became of each.
        """
        if not self.logs:
            raise CalibrationError(f"no log is left to {use}:\n" + "\n".join(f"  {line}" for line in self.refused))


def collect_logs(paths: Sequence[Path], machine: Machine, everything: bool = False) -> Collected:
    """Read, place and judge the logs of these files; an index (log_id, collective, gpu, ...) stands for its own logs.

    Args:
        paths: files; a tidy CSV finds its machine in an index.csv beside it.
        machine: what the user says of it.
        everything: also take logs that are not well.
    """
    judged: list[Judged] = []
    refused: list[str] = []
    versions: dict[str, str] = {}
    for path, row in _expanded(paths):
        try:
            tables = read_log(path)
        except SimulatorError as error:
            refused.append(str(error))
            continue
        for table in tables:
            try:
                judged.append(judge_table(table, place_table(table, machine, row)))
                versions[table.name] = table.versions
            except SimulatorError as error:
                refused.append(_named(path, table.name, str(error)))
    judged = mark_slow_twins(_renamed(judged))
    good = [one for one in judged if everything or not one.complaint]
    refused += [f"{one.log.name}: {one.complaint}" for one in judged if one.complaint and not everything]
    remarks = [f"{one.log.name}: {remark}" for one in good for remark in one.remarks]
    remarks += [f"{one.log.name}: used although {one.complaint}" for one in good if one.complaint]
    return Collected(
        logs=tuple(one.log for one in good),
        remarks=tuple(remarks),
        refused=tuple(refused),
        versions={one.log.name: versions.get(one.log.name, "") for one in good},
    )


def _expanded(paths: Sequence[Path]) -> list[tuple[Path, Mapping[str, str] | None]]:
    """Return each log file with its row of an index, if it has one; the same file once."""
    out: list[tuple[Path, Mapping[str, str] | None]] = []
    for path in paths:
        rows = index_rows(path) if path.suffix == ".csv" else {}
        if rows:
            out += [(path.parent / f"{name}.csv", row) for name, row in rows.items()]
        elif path.suffix == ".csv":
            out.append((path, index_rows(path.parent / "index.csv").get(path.stem)))
        else:
            out.append((path, None))
    return list({file.resolve(): (file, row) for file, row in out}.values())


def _named(path: Path, table: str, message: str) -> str:
    """Return the message with the file in front, once."""
    return message if str(path) in message else f"{path}: {message.removeprefix(f'{table}: ')}"


def _renamed(judged: Sequence[Judged]) -> list[Judged]:
    """Give logs of one name, from different folders, different names."""
    seen: dict[str, int] = defaultdict(int)
    out = []
    for one in judged:
        seen[one.log.name] += 1
        if seen[one.log.name] > 1:
            one = replace(one, log=replace(one.log, name=f"{one.log.name}#{seen[one.log.name]}"))
        out.append(one)
    return out


def fit_profiles(collected: Collected, name: str) -> list[Profile]:
    """Return one profile per platform of the logs, that with the most points first and under the name given.

    A platform is a generation of GPU, its link, its network; groups inside a node and across nodes are two.

    Raises:
        CalibrationError: no log is left.
    """
    collected.check("fit")
    platforms: dict[Key, list[NcclLog]] = defaultdict(list)
    for log in collected.logs:
        platforms[platform_of(log)].append(log)
    ordered = sorted(platforms.values(), key=lambda logs: -sum(len(log.message) for log in logs))
    names = _names(ordered, name)
    return [
        _documented(fit_platform(logs, own), logs, collected.versions) for logs, own in zip(ordered, names, strict=True)
    ]


def _names(platforms: Sequence[Sequence[NcclLog]], name: str) -> list[str]:
    names = [name]
    for logs in platforms[1:]:
        architecture, intra, network, peer = platform_of(logs[0])
        parts = [architecture, intra or "single", "" if peer else "staged", network]
        names.append("_".join([name, *(part for part in parts if part)]))
    return names


def _documented(profile: Profile, logs: Sequence[NcclLog], versions: Mapping[str, str]) -> Profile:
    """Add who fitted it, when, and with what; which libraries the logs name; and whether all are of one kind of wires, so
    that a cluster which names the profile can be the machine they were made on."""
    tools = ", ".join([f"dtsim {__version__}", *(f"{package} {version(package)}" for package in ("numpy", "scipy"))])
    said = [f"{log}: {text}" for log in profile.logs if (text := versions.get(log, ""))]
    libraries = "; ".join(said) or "no log names its library"
    made = f"fitted by dtsim calibrate nccl on {datetime.date.today().isoformat()} ({tools}) to the logs listed"
    return profile.model_copy(
        update={
            "one_machine": len({_wires(log) for log in logs}) == 1,
            "sources": {"*": made, "logs": re.sub(r"\s+", " ", f"versions of the libraries: {libraries}")},
        }
    )


def _wires(log: NcclLog) -> tuple[object, ...]:
    fabric = log.fabric
    return fabric.architecture, fabric.intra_bandwidth, fabric.network, fabric.network_bandwidth, fabric.card_bandwidth
