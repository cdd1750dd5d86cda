"""How far whole predictions were from measured runs, by kind of run: the part of the band that no single price explains."""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import Field

from simulator.specs import NamedSpec, Spec, load_named

__all__ = ["KindResidual", "RunResiduals", "load_run_residuals", "run_kind"]


class KindResidual(Spec):
    """Residuals of one kind of run.

    Args:
        sigma_slower: spread of log(measured / predicted) above 0 (runs slower than predicted) that the spread of prices
            does not explain.
        sigma_faster: the same below 0.
        median: median absolute error.
        runs, sources: how many runs of how many sources stand behind it.
    """

    sigma_slower: Annotated[float, Field(gt=0, le=3)]
    sigma_faster: Annotated[float, Field(gt=0, le=3)]
    median: Annotated[float, Field(ge=0, le=3)]
    runs: Annotated[int, Field(ge=0)]
    sources: Annotated[int, Field(ge=0)]


class RunResiduals(NamedSpec):
    """The file calibrations/run_residuals.toml, written by `simulator.calibration.runs.step_time`."""

    kind: dict[str, KindResidual]

    def of(self, kind: str) -> KindResidual:
        """Return the residual of a kind; "any" for one without runs of its own."""
        return self.kind.get(kind, self.kind["any"])


@functools.lru_cache(maxsize=4)
def load_run_residuals() -> RunResiduals:
    """Return the residuals shipped with the simulator."""
    return load_named("calibrations", "run_residuals", RunResiduals)


def run_kind(axes: dict[str, int], sharded: bool, sparse: bool = False) -> str:
    """Return the kind of a run: what its time mostly depends on.

    Args:
        axes: mesh axes and sizes.
        sharded: whether weights are gathered layer by layer (FSDP, ZeRO-3).
        sparse: whether the model has experts, whose small products, exchanges and host work err most.

    >>> run_kind({"tp": 8, "dp": 1, "pp": 8}, False)
    'pipeline'
    """
    if sparse:
        return "experts"
    if axes.get("pp", 1) > 1:
        return "pipeline"
    if sharded:
        return "sharded"
    return "tensor" if axes.get("tp", 1) > 1 else "replicas"
