"""Framework profiles for tests: one of the package's with some keys changed."""

from __future__ import annotations

import re
from pathlib import Path

from simulator.specs import data_roots

__all__ = ["profile"]


def profile(folder: Path, name: str, base: str = "pytorch_ddp", **changes: object) -> str:
    """Write a framework profile like `base` with some keys changed or added, in TOML words; returns its name."""
    text = (data_roots()[-1] / "hardware_specs" / "frameworks" / f"{base}.toml").read_text(encoding="utf-8")
    changes = {"name": f'"{name}"', "aliases": "[]", **changes}
    for key, value in changes.items():
        text, found = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        if not found:  # a field left at its default
            text = text.replace("\n[sources]", f"{key} = {value}\n\n[sources]", 1)
    path = folder / "hardware_specs" / "frameworks" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name
