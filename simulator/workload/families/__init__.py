"""Model families, one file each: which blocks their layers are made of."""

from __future__ import annotations

from simulator.registry import Family

__all__ = ["FAMILIES"]

FAMILIES = Family("architecture", "simulator.workload.families", "ModelFamily")
