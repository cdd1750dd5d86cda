"""Residuals of predictions as a data file: how far they were from what was measured, and where that was published."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simulator.specs import NamedSpec, write_text
from simulator.specs.written import spec_toml

__all__ = ["write_residuals"]


def write_residuals(residuals: NamedSpec, what: str, far: str, sources: Iterable[str], path: Path) -> None:
    """Write residuals.

    Args:
        what: was measured and predicted of the runs.
        far: from what, to go on after "How far".
        sources: names of the tables that it was published in.
    """
    listed = f"measured and predicted {what} of the runs published in: {'; '.join(sorted(sources))}"
    written = residuals.model_copy(update={"sources": {"*": listed}})
    write_text(path, spec_toml(written, f"Written by simulator.calibration.runs; do not edit.  How far {far}."))
