"""A pipeline stage with ranks of its own: how many, how they split it, and how many layers they have."""

from __future__ import annotations

from pydantic import ConfigDict

from simulator.plan.values import Degree, Layers, RecomputeKind
from simulator.specs import Spec

__all__ = ["Stage"]


class Stage(Spec):
    """What one stage of a pipeline has to itself; the rest is the plan's."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    ranks: Degree
    """GPUs of the stage: tensor-parallel times data-parallel ones, which split every microbatch."""
    tensor_parallel: Degree | None = None
    """Ranks that split its layers' matrix products; left out: the plan's."""
    layers: Layers | None = None
    """Layers of the stage; left out of all stages: as layer_split says, else in proportion to their GPUs."""
    recompute: RecomputeKind | None = None
    """What it computes again; left out: the plan's."""
