"""Runs to simulate in tests: a few numbers in, a `RunModel` out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simulator.goodput.run_model import CORRUPT, SLOW, STOP, Causes, RunModel

HOUR = 3600.0
_EFFECTS = {"stop": STOP, "slow": SLOW, "corrupt": CORRUPT}


def cause(mtbf: float, **more: Any) -> dict[str, Any]:
    """One way of failing: 1,000 components, each with this mean time between failures [s]."""
    plain = {"name": "gpu", "effect": "stop", "count": 1000, "shape": 1.0, "age": 0.0, "detection": 0.0}
    return plain | {"lasts": math.inf, "pace": 1.0, "nodes": 0, "mtbf": mtbf} | more


def model(*causes: dict[str, Any], paces: tuple[float, ...] = (1.0,), **numbers: Any) -> RunModel:
    """A run with these failures."""

    def column(key: str) -> list[Any]:
        return [one[key] for one in causes]

    scales = [one["mtbf"] / math.gamma(1.0 + 1.0 / one["shape"]) for one in causes]
    return RunModel(
        causes=Causes(
            name=tuple(column("name")),
            effect=np.array([_EFFECTS[name] for name in column("effect")], np.int64),
            count=np.array(column("count"), np.int64),
            scale=np.array(scales, np.float64),
            shape=np.array(column("shape"), np.float64),
            age=np.array(column("age"), np.float64),
            detection=np.array(column("detection"), np.float64),
            lasts=np.array(column("lasts"), np.float64),
            pace=np.array(column("pace"), np.float64),
            nodes=np.array(column("nodes"), np.int64),
        ),
        paces=np.array(paces, np.float64),
        **numbers,
    )
