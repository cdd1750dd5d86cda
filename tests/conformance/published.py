"""Published runs of eager codes, predicted twice: by profile, as every run is, and through a recording of such a code.

python -m tests.conformance.published        the table of docs/behind_the_numbers.md (needs torch and transformers: nox -s capture)
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simulator.accuracy.attempt import attempt
from simulator.capture.child import capture
from simulator.capture.program import captured_program
from simulator.importers.table.row_simulation import row_simulation
from simulator.simulation import simulate_program
from tests.package_sources import ROOT

SCRIPT = Path(__file__).parent / "scripts" / "eager.py"
TABLES = ("workloads/published/measured_runs.csv", "tests/data/held_out_runs.csv", "tests/data/blind_runs.csv")
CASES = {
    "titan-0001": "operators", "titan-0008": "operators", "titana100-0001": "alternate", "titana100-0002": "operators",
    "titana100-0003": "full", "titana100-0004": "none", "titana100-0005": "alternate", "titana100-0006": "operators",
    "titana100-0007": "operators", "titana100-0008": "full", "f8nc-0001": "none", "f8nc-0004": "operators", "f8nc-0007": "full",
    "kempner-0008": "full",
    "ullm-0001": "full", "ullm-0002": "full", "ullm-0003": "full", "ullm-0004": "full", "ullm-0005": "full", "ullm-0006": "full",
}  # fmt: skip
"""Case -> what it recomputes, in the words of the script."""


_RELEASES = {"sdpa_2025": "2.10"}
"""Kernel of a row -> a release of PyTorch that has it."""


@dataclass(frozen=True)
class Twice:
    """A run predicted by profile and through a recording [s].

    Args:
        parts: of the step, by which the recording's is longer [s].
    """

    case: str
    code: str
    measured: float
    profile: float
    recorded: float
    parts: dict[str, float]

    def errors(self) -> tuple[float, float]:
        """Of both, relative."""
        return self.profile / self.measured - 1.0, self.recorded / self.measured - 1.0

    def parting(self) -> str:
        """The two parts that differ most, in per cent of the profile's step."""
        largest = sorted(self.parts, key=lambda part: -abs(self.parts[part]))[:2]
        return ", ".join(f"{part} {self.parts[part] / self.profile:+.1%}" for part in largest)


def rows() -> Iterator[dict[str, str]]:
    """Yield the rows of the cases."""
    for table in TABLES:
        with open(ROOT / table, encoding="utf-8") as file:
            yield from (r for r in csv.DictReader(line for line in file if line[0] != "#") if r["case_id"] in CASES)


def twice(row: dict[str, str], seconds: float = 600.0) -> Twice:
    """Return both predictions of a row."""
    placed = row_simulation(row)
    tried = attempt(row, True).prediction
    assert tried is not None, row["case_id"]
    gpus = int(row["n_gpus"])
    code = "titan" if "FSDP2" in row["framework"] else "phi3" if "phi" in row["model"] else "llama"
    words = {
        "code": code, "layers": row["arch_layers"], "hidden": row["hidden"], "heads": row["heads"], "groups": row["kv_heads"],
        "width": row["ffn_hidden"], "vocabulary": row["vocab"], "tokens": row["seq_len"], "batch": row["mbs"],
        "recompute": CASES[row["case_id"]], "accumulate": str(int(row["gbs"]) // int(row["mbs"]) // gpus),
        "release": _RELEASES.get(str(placed.fields.get("attention")), "2.13"),
    }  # fmt: skip
    found = capture(f"{SCRIPT}:step", gpus, 0, [f"--{key}={value}" for key, value in words.items()], seconds)
    program = captured_program(found, str(tried.made.get("framework", "pytorch_ddp")))
    recorded = simulate_program(program, placed.cluster)
    ours, theirs = tried.breakdown, recorded.breakdown
    parts = {part: theirs.get(part, 0.0) - ours.get(part, 0.0) for part in {**ours, **theirs}}
    measured = float(row["step_time_s"])
    return Twice(row["case_id"], row["framework"], measured, tried.step_time, recorded.step_time, parts)


def main(names: list[str]) -> None:
    """Print the table, row by row, and the medians."""
    print(
        "| run | code | measured | by profile | through a recording | where they part |\n|---|---|---:|---:|---:|---|"
    )
    found = []
    for row in rows():
        if names and row["case_id"] not in names:
            continue
        one = twice(row)
        found.append(one)
        first, second = one.errors()
        print(
            f"| {one.case} | {one.code} | {one.measured:.4g} s | {first:+.1%} | {second:+.1%} | {one.parting()} |",
            flush=True,
        )
    medians = [statistics.median(abs(one.errors()[i]) for one in found) for i in (0, 1)]
    print(f"| median of {len(found)} | | | {medians[0]:.1%} | {medians[1]:.1%} | |")


if __name__ == "__main__":
    main(sys.argv[1:])
