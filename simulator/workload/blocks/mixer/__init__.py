"""What mixes the tokens of a layer, one file each: a model names it in its pattern (`mixers = ["name", ...]`)."""

from __future__ import annotations

from typing import Any

from simulator.registry import Family

__all__ = ["MIXERS"]

MIXERS: Family[Any] = Family("mixer", "simulator.workload.blocks.mixer", "Mixer", "mixers")
