"""The JSON that nccl-tests writes since 2026 (-J FILE): the same table as the text, with names on everything."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulator.calibration.collectives.read.benchmark_table import BenchmarkRow, Device, Header, collective_in
from simulator.calibration.collectives.read.nccl_text import TextTable, spelled
from simulator.errors import CalibrationError
from simulator.units import parse

__all__ = ["read_json", "read_reported"]


def read_json(content: object, name: str) -> list[TextTable]:
    """Return the tables of one JSON value: one per size range and experiment.

    Raises:
        CalibrationError: it is no output of nccl-tests, or a value in it is of another type than it must be.
    """
    if isinstance(content, list) and content and all(isinstance(row, Mapping) and "busBw" in row for row in content):
        return read_reported(content, name)
    if not isinstance(content, Mapping) or not isinstance(content.get("results"), list):
        raise CalibrationError(f'{name}: is JSON, but not of nccl-tests -J: it has no list "results"')
    try:
        header = _header(content)
        remarks: list[str] = []
        groups: list[list[BenchmarkRow]] = [[]]
        for number, result in enumerate(content["results"], 1):
            row = _row(result, number, remarks)
            if groups[-1] and row.message < groups[-1][-1].message:
                groups.append([])
            if row.message > 0:
                groups[-1].append(row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no key {error}" if isinstance(error, KeyError) else str(error)
        raise CalibrationError(f"{name}: is JSON of nccl-tests, but cannot be read ({what[:120]})") from None
    counts = content.get("out_of_bounds")
    if isinstance(counts, Mapping) and str(counts.get("okay")).lower() == "false":
        groups = [[replace(row, wrong=True) for row in group] for group in groups]
    return [TextTable(header, group, list(remarks)) for group in groups if group]


def read_reported(content: Sequence[Mapping[str, Any]], name: str) -> list[TextTable]:
    """Return the tables of what rccl-tests reports with -x FILE: one row per size and place, with names on everything.

    Args:
        content: rows with name, size, inPlace, time, algBw, busBw, wrong; ranks, nodes or gpus.
        name: of the file.

    Raises:
        CalibrationError: a key is missing, or a value is no number.
    """
    found: dict[tuple[str, str], dict[float, BenchmarkRow]] = {}
    headers: dict[tuple[str, str], Header] = {}
    try:
        for number, row in enumerate(content, 1):
            table = (str(row.get("numCycle", 0)), collective_in(str(row["name"])))
            headers.setdefault(table, Header(kind=table[1], ranks=int(row.get("ranks") or row.get("gpus") or 0)))
            headers[table].nodes = int(row.get("nodes") or 0)
            size, place = float(row["size"]), int(row.get("inPlace", 0))
            triple = _triple({"time": row["time"], "alg_bw": row["algBw"], "bus_bw": row["busBw"]})
            rows = found.setdefault(table, {})
            old = rows.get(size)
            pairs = [list(pair) for pair in (old.seconds, old.algorithm_bandwidth, old.bus_bandwidth)] if old else None
            pairs = pairs or [[math.nan, math.nan] for _ in range(3)]
            for pair, value in zip(pairs, triple, strict=True):
                pair[place] = value
            wrong = _number(row.get("wrong")) > 0 or bool(old and old.wrong)
            seconds, algorithm, bus = ((first, second) for first, second in pairs)
            if size > 0:
                rows[size] = BenchmarkRow(size, seconds, algorithm, bus, wrong, number)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        what = f"no key {error}" if isinstance(error, KeyError) else str(error)
        raise CalibrationError(f"{name}: is a report of rccl-tests, but cannot be read ({what[:120]})") from None
    return [TextTable(headers[table], list(rows.values()), []) for table, rows in found.items() if rows]


def _header(content: Mapping[str, Any]) -> Header:
    config = content.get("config") or {}
    header = Header(largest=float(config.get("maximum_bytes") or 0), gpus_per_process=int(config.get("ngpus") or 0))
    said = " ".join(str(argument) for argument in content.get("args") or ())
    header.kind = collective_in(said) or collective_in(str(content.get("name", "")))
    for device in content.get("devices") or config.get("devices") or ():
        rank = int(device["rank"])
        bus = re.search(r"\[?([0-9A-Fa-f:.x]+)\]?", str(device.get("device_hex", rank)))
        header.devices[rank] = Device(
            rank,
            int(device.get("pid", 0)),
            str(device.get("hostname", "")),
            bus.group(1) if bus else "",
            str(device.get("device_info", "")).strip(),
            group=int(device.get("group", 0)),
        )
    for variable in content.get("env") or ():
        key, _, value = str(variable).partition("=")
        if key in ("NCCL_ALGO", "NCCL_PROTO") and re.fullmatch(r"\w+", value):
            setattr(header, "algorithm" if key == "NCCL_ALGO" else "protocol", value.lower())
    for key, label in (("nccl_version", "NCCL"), ("version", "nccl-tests JSON")):
        number = content.get(key)
        if number is not None:
            header.versions[label] = (
                spelled(number) if key == "nccl_version" and isinstance(number, int) else str(number)
            )
    return header


def _row(result: Mapping[str, Any], number: int, remarks: list[str]) -> BenchmarkRow:
    places = [result.get("out_of_place"), result.get("in_place")]
    if any(isinstance(place, Mapping) and "cpu_time" in place and "time" not in place for place in places):
        note = "times are those of the CPU (-C 1)"
        if note not in remarks:
            remarks.append(note)
    triples = [_triple(place) for place in places]
    wrong = [place.get("nwrong") for place in places if isinstance(place, Mapping)]
    return BenchmarkRow(
        message=float(result["size"]),
        seconds=(triples[0][0], triples[1][0]),
        algorithm_bandwidth=(triples[0][1], triples[1][1]),
        bus_bandwidth=(triples[0][2], triples[1][2]),
        wrong=any(_number(count) > 0 for count in wrong),
        line=number,
    )


def _triple(place: Any) -> Sequence[float]:
    if not isinstance(place, Mapping):
        return (math.nan,) * 3
    time = float(place.get("time", place.get("cpu_time", math.nan)))
    rates = [float(place.get(key, math.nan)) for key in ("alg_bw", "bus_bw")]
    seconds = parse(f"{time} us", "s") if math.isfinite(time) and time > 0 else math.nan
    return (seconds, *(parse(f"{rate} GB/s", "B/s") if math.isfinite(rate) else math.nan for rate in rates))


def _number(value: Any) -> float:
    """Return a count as a number, 0 for "N/A" and the like."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
