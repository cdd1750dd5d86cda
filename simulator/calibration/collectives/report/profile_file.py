"""Writes a fitted profile as a data file that a cluster can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulator.hardware.coefficients import Profile
from simulator.specs import write_text

__all__ = ["export_profile"]


def export_profile(profile: Profile, path: Path) -> None:
    """Write a profile as a data file that `find_profile` reads."""
    sizes = profile.size_range
    lines = [
        "# Written by simulator.calibration.collectives; do not edit.",
        f"name = {json.dumps(profile.name)}",
        f'size_range = {{ smallest = "{sizes.smallest:.0f} B", largest = "{sizes.largest:.0f} B" }}',
        *(["one_machine = true"] if profile.one_machine else []),
        *([f"borrowed = {json.dumps(profile.borrowed)}"] if profile.borrowed else []),
        f"everything = {_inline(profile.everything.model_dump())}",
        f"others = {_inline(profile.others.model_dump())}",
        f'single_process_launch = "{profile.single_process_launch:.3g} s"',
        "network_latency = {"
        + ", ".join(f' {name} = "{seconds:.4g} s"' for name, seconds in profile.network_latency.items())
        + " }",
    ]
    if profile.applies_to is not None:
        lines += ["", "[applies_to]", *(f"{k} = {json.dumps(v)}" for k, v in profile.applies_to.model_dump().items())]
    lines += ["", '# Multipliers on the constants of nccl_prior, by "algorithm:protocol".', "[pairs]"]
    lines += [f'"{name}" = {_inline(pair.model_dump())}' for name, pair in profile.pairs.items()]
    lines += ["", '# Agreement with the logs, by "collective:algorithm".', "[classes]"]
    lines += [f'"{name}" = {_inline(value.model_dump())}' for name, value in profile.classes.items()]
    lines += ["", "# sha256 of each log, first 16 digits.", "[logs]"]
    lines += [f"{json.dumps(name)} = {json.dumps(digest)}" for name, digest in profile.logs.items()]
    if profile.unseen:
        lines += ["", "# Sigma between machines of one kind, by size of the message."]
        lines += ["[unseen]", *(f"{name} = {ratio}" for name, ratio in profile.unseen.items())]
    if profile.own:
        lines += ["", "# What is left over on the machine of each log: sigma by size of the message.", "[own]"]
        lines += [f"{json.dumps(name)} = {_inline(own.model_dump())}" for name, own in profile.own.items()]
    lines += ["", "[sources]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in profile.sources.items()), ""]
    write_text(path, "\n".join(lines))


def _inline(values: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " }"
