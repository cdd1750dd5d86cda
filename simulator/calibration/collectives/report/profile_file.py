"""Writes a fitted profile as a data file that a cluster can name."""

from __future__ import annotations

from pathlib import Path

from simulator.hardware.coefficients import Profile
from simulator.specs import write_text
from simulator.specs.written import spec_toml

__all__ = ["export_profile"]

_HEADER = """Written by simulator.calibration.collectives; do not edit.
pairs: multipliers on the constants of nccl_prior, by "algorithm:protocol".  classes: agreement with the logs, by "collective:algorithm".
logs: sha256 of each, first 16 digits.  unseen: sigma between machines of one kind, own: what is left over on the machine of each log,
both by size of the message."""


def export_profile(profile: Profile, path: Path) -> None:
    """Write a profile as a data file that `find_profile` reads."""
    write_text(path, spec_toml(profile, _HEADER))
