"""Framework profiles for tests: one of the package's with some keys changed."""

from __future__ import annotations

from pathlib import Path

__all__ = ["profile"]


def profile(folder: Path, name: str, base: str = "pytorch_ddp", **changes: object) -> str:
    """Write a framework profile that extends `base` and changes or adds some keys, in TOML words; returns its name."""
    said = {"name": f'"{name}"', "extends": f'"{base}"', **changes}
    path = folder / "hardware_specs" / "frameworks" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key} = {value}\n" for key, value in said.items()), encoding="utf-8")
    return name
