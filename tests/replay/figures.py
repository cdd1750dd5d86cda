"""Rounded figures of all cases of the replay, kept in figures.csv: a guard between machines whose last bit differs."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FILE", "TOLERANCE", "differing", "read_figures", "write_figures"]

FILE = Path(__file__).with_name("figures.csv")
TOLERANCE = 1e-6


def write_figures(found: Mapping[str, Mapping[str, str]]) -> None:
    """Write case, figures (step time, low, high [s], peak [B], bubble, HFU; 7 digits), or the refusal's first words."""
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("case", "figures"))
        writer.writerows((name, _said(columns)) for name, columns in found.items())


def _said(columns: Mapping[str, str]) -> str:
    return columns.get("figures") or "refused"


def read_figures() -> dict[str, str]:
    """Return case -> figures."""
    with FILE.open(newline="") as file:
        return {row["case"]: row["figures"] for row in csv.DictReader(file)}


def differing(recorded: str, columns: Mapping[str, str]) -> bool:
    """Return whether figures differ by more than rounding does."""
    now = _said(columns)
    if "refused" in (recorded, now):
        return recorded != now
    pairs = zip(map(float, recorded.split()), map(float, now.split()), strict=True)
    return any(abs(a - b) > TOLERANCE * max(abs(a), abs(b)) for a, b in pairs)
