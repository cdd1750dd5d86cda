"""How far whole predictions were from measured runs, by kind of run: the part of the band that no single price explains."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field

from simulator.specs import Listed, NamedSpec, Spec, load_named

__all__ = ["UNKNOWNS", "KindResidual", "RunResiduals", "Unknown", "load_run_residuals", "run_kind", "unseen_of"]

Unknown = Literal["code", "plan", "machine"]
"""What somebody had to assume: the code's own profile (another stands for it); a part of the plan; the GPU, or its network."""
UNKNOWNS: tuple[Unknown, ...] = get_args(Unknown)


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
    """The file calibrations/run_residuals.toml, written by `simulator.calibration.runs.step_time`.

    Args:
        kind: residuals of runs of which nothing had to be assumed, by kind.
        unknown: what each assumption adds.
        measured: framework profile -> machines (`Cluster.machine`) on which runs of that code were measured; {} = not told.
    """

    kind: dict[str, KindResidual]
    unknown: dict[Unknown, KindResidual] = Field(default_factory=dict)
    measured: dict[str, Annotated[tuple[str, ...], Listed]] = Field(default_factory=dict)

    def unseen(self, code: str, machine: str) -> frozenset[Unknown]:
        """Return what of a profile and a machine no measured run stands behind: the code, or the machine under this code."""
        return _unseen(self, code, machine)

    def of(self, kind: str, unknown: Iterable[Unknown] = ()) -> KindResidual:
        """Return the residual of a kind ("any" for one without runs of its own), wider by what each assumption was found to be worth."""
        own = self.kind.get(kind, self.kind["any"])
        more = [self.unknown[name] for name in sorted(set(unknown)) if name in self.unknown]
        if not more:
            return own
        return own.model_copy(
            update={
                "sigma_slower": math.hypot(own.sigma_slower, *(m.sigma_slower for m in more)),
                "sigma_faster": math.hypot(own.sigma_faster, *(m.sigma_faster for m in more)),
            }
        )


@functools.lru_cache(maxsize=1024)
def _unseen(residuals: RunResiduals, code: str, machine: str) -> frozenset[Unknown]:
    return unseen_of(residuals.measured, code, machine)


def unseen_of(measured: Mapping[str, Collection[str]], code: str, machine: str) -> frozenset[Unknown]:
    """Return what of a code and a machine is in none of the runs that were measured.

    Of a code that nobody measured, any run of the machine counts.  A GPU that was measured over a network is known inside a node, too.

    >>> sorted(unseen_of({"a": ["h100 efa"], "b": ["h200"]}, "a", "h200")), sorted(unseen_of({"a": ["h100 efa"]}, "c", "h100"))
    (['machine'], ['code'])
    """
    if not measured:
        return frozenset()
    own = measured.get(code)
    machines = own if own is not None else {name for listed in measured.values() for name in listed}
    found: set[Unknown] = {"code"} if own is None else set()
    known = any(name == machine or name.startswith(machine + " ") for name in machines)
    return frozenset(found if known else found | {"machine"})


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
