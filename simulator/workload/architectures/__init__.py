"""Model families, one file each."""

from __future__ import annotations

from simulator.registry import Family

__all__ = ["ARCHITECTURES"]

ARCHITECTURES = Family("architecture", "simulator.workload.architectures", "Architecture")
