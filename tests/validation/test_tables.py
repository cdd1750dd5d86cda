"""docs/tables.md shows what the command prints.  `nox -s tables` writes the table of runs anew."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.package_sources import ROOT

PAGE = ROOT / "docs" / "tables.md"
COMMAND = ("validate", "--leave-one-out", "--markdown")


def shown() -> str:
    """Return the table that stands behind the command on the page."""
    return PAGE.read_text().partition(f"dtsim {' '.join(COMMAND)}\n```\n\n")[2].partition("\n\n")[0]


def printed() -> str:
    """Return what the command prints."""
    command = (sys.executable, "-m", "simulator", *COMMAND)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_the_table_of_runs_is_what_the_command_prints() -> None:
    assert shown().splitlines() == printed().splitlines()


def test_the_readme_repeats_the_tables_last_row() -> None:
    runs, _, median, _, _, _, inside = [cell.strip() for cell in shown().splitlines()[-1].strip("|").split("|")][1:]

    assert (
        f"| {runs} runs, {len(shown().splitlines()) - 3} sources | {median} | {inside} |"
        in (ROOT / "README.md").read_text()
    )


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(shown(), printed()))
