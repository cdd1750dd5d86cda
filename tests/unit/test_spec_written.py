"""A calibration that is written reads back as it was, whatever it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.hardware.coefficients import Profile
from simulator.hardware.compute_coefficients import (
    AttentionCoefficients,
    GemmCoefficients,
    MemoryBoundCoefficients,
)
from simulator.hardware.interference import Interference
from simulator.hardware.memory_residuals import MemoryResiduals
from simulator.hardware.run_residuals import RunResiduals
from simulator.specs import load_named, load_spec, names
from simulator.specs.written import spec_toml

KINDS = {
    "gemm": GemmCoefficients,
    "attention": AttentionCoefficients,
    "memory_bound": MemoryBoundCoefficients,
    "interference": Interference,
    "memory_residuals": MemoryResiduals,
    "run_residuals": RunResiduals,
    "nccl_a": Profile,
    "nccl_b": Profile,
}
FILES = [(kind, name) for kind in KINDS for name in names("calibrations") if name.startswith(kind)]


@pytest.mark.parametrize(("kind", "name"), FILES, ids=[name for _, name in FILES])
def test_the_file_that_is_written_reads_back_the_same(kind: str, name: str, tmp_path: Path) -> None:
    shipped = load_named("calibrations", name, KINDS[kind])
    path = tmp_path / "again.toml"
    path.write_text(spec_toml(shipped, "how it was made\nand by whom"), encoding="utf-8")
    assert load_spec(path, KINDS[kind]) == shipped
    assert path.read_text().startswith("# how it was made\n# and by whom\n")
