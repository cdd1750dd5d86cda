"""Ways to lay a layer out over the ranks of tensor parallelism, one file each: a plan names its own (`layout = "name"`).

What the other degrees of a plan do to a layout is the same under each of them: `sequence.py`, `experts.py`, `context.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.partition.strategies.base import Strategy

__all__ = ["STRATEGIES"]

STRATEGIES: Family[Strategy] = Family("layout", "simulator.partition.strategies", "Strategy", "layouts")
