"""Kinds of attention, one file each: a model names its own (`attention = "name"`); and the core that they share."""

from __future__ import annotations

from typing import Any

from simulator.registry import Family

__all__ = ["ATTENTIONS"]

ATTENTIONS: Family[Any] = Family("attention", "simulator.workload.blocks.attention", "Attention", "attentions")
