"""Model families, one file each: which blocks their layers are made of."""

from __future__ import annotations

from typing import Any

from simulator.registry import Family

__all__ = ["FAMILIES"]

FAMILIES: Family[Any] = Family("architecture", "simulator.workload.families", "ModelFamily", "architectures")
