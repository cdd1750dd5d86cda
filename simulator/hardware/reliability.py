"""What fails, how often, and what is done about it, as a job, a cluster's file or the record of a fleet describes it.

    [reliability]
    fleet = "meta_llama3_2024"                 # rates of a published fleet (hardware_specs/reliability); own ones replace them
    detection = "1 min"                        # until a dead job is noticed
    restart = "10 min"                         # or by phase: {drain = "30 s", schedule = "2 min", load = "auto", ...}
    spares = 16                                # machines that stand by; without the key a new one is always at hand
    repair = "24 h"                            # mean time until a machine is back
    failures = [
      {component = "gpu", mtbf = "50000 h"},                                      # of one such component
      {component = "gpu", effect = "slow", mtbf = "2000000 h", clock = 0.8, detection = "2 h"},
      {component = "switch", mtbf = "1000000 h", nodes = 32, shape = 0.7},        # takes 32 machines with it
    ]

Nothing fails unless it is described: how often depends on the site.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.hardware.parts import FACTORS
from simulator.specs import Listed, Name, NamedSpec, Spec, load_named
from simulator.units import Seconds

__all__ = ["COMPONENTS", "Failure", "Fleet", "Maintenance", "Reliability", "Restart", "load_fleet"]

COMPONENTS = {
    "gpu": "gpu",
    "memory": "gpu",
    "nvlink": "gpu",
    "nic": "nic",
    "host": "node",
    "storage": "node",
    "power": "node",
    "rack": "domain",
    "switch": "domain",
    "software": "job",
}
"""Component -> what there is one of it for; any other name needs `per` or `count`."""


Pace = Annotated[float, Field(gt=0, lt=1)]


class Failure(Spec):
    """One way in which components of one kind fail.

    Args:
        component: its name, for the answer; several entries may bear one name (a bathtub is two: shape below and above 1).
        mtbf: mean time between failures of ONE such component [s].
        shape: of a Weibull distribution of its life: 1 = constant rate, below 1 early failures, above 1 wear.
        age: of the components when the run begins [s]; a new one starts at 0.
        per: what there is one of it for: a gpu, a nic, a node, a domain of `nodes` machines, or the job.
        count: how many there are, in place of `per`.
        nodes: machines that a failure takes away until they are repaired; of a domain also how many belong to one.
        effect: "stop" (the job dies), "slow" (it goes on slower until found), "corrupt" (wrong numbers until found).
        detection: until it is found [s]; by default of `Reliability`.
        lasts: a slow one is well again by itself after this time [s].
        clock, memory_bandwidth, host, link, network: speed that is left of a slow one.
    """

    component: Name
    mtbf: Seconds
    shape: Annotated[float, Field(ge=0.2, le=10)] = 1.0
    age: Seconds = 0.0
    per: Literal["gpu", "nic", "node", "domain", "job"] | None = None
    count: Annotated[int, Field(ge=1, le=10**8)] | None = None
    nodes: Annotated[int, Field(ge=0, le=10**6)] | None = None
    effect: Literal["stop", "slow", "corrupt"] = "stop"
    detection: Seconds | None = None
    lasts: Seconds | None = None
    clock: Pace | None = None
    memory_bandwidth: Pace | None = None
    host: Pace | None = None
    link: Pace | None = None
    network: Pace | None = None

    @model_validator(mode="after")
    def _check(self) -> Failure:
        slow = [name for name in FACTORS if getattr(self, name) is not None]
        if self.mtbf <= 0:
            raise ValueError("mtbf must be above zero")
        if self.count is None and self.each is None:
            raise ValueError(
                f"how many {self.component!r} there are is not known: give per (gpu, nic, node, domain, job) or count. "
                f"Known by themselves: {', '.join(COMPONENTS)}"
            )
        if self.count is not None and self.per is not None:
            raise ValueError("per and count both say how many there are: give one of them")
        if self.each == "domain" and self.count is None and not self.nodes:
            raise ValueError(f"a {self.component} joins several machines: give nodes = how many, or count")
        if (self.effect == "slow") != bool(slow):
            raise ValueError(
                f'effect = "slow" and what is slower ({", ".join(FACTORS)}) belong together: give both or neither'
            )
        if self.lasts is not None and self.effect != "slow":
            raise ValueError('lasts is for effect = "slow": a job that died does not come back by itself')
        if self.age and self.shape == 1.0:
            raise ValueError("age changes nothing at a constant rate (shape = 1): leave it out, or give a shape")
        return self

    @property
    def each(self) -> str | None:
        """What there is one of it for, None where only `count` says."""
        return self.per or (None if self.count is not None else COMPONENTS.get(self.component))

    @property
    def takes(self) -> int:
        """Machines that one such failure takes away."""
        if self.nodes is not None:
            return self.nodes
        return 0 if self.component == "software" or self.each == "job" else 1

    @property
    def slower(self) -> dict[str, float]:
        """Factor by name of what is slower."""
        return {name: getattr(self, name) for name in FACTORS if getattr(self, name) is not None}


class Restart(Spec):
    """A restart by phase [s]: each follows the one before; `load` "auto" reads the checkpoint from the file system."""

    drain: Seconds = 0.0
    schedule: Seconds = 0.0
    start: Seconds = 0.0
    load: Seconds | Literal["auto"] = 0.0
    first_step: Seconds = 0.0

    @property
    def fixed(self) -> float:
        """All phases but an automatic load [s]."""
        load = 0.0 if self.load == "auto" else float(self.load)
        return self.drain + self.schedule + self.start + load + self.first_step


class Maintenance(Spec):
    """Windows in which the job stands still, after a checkpoint: `length` [s], one `every` [s] of wall time."""

    every: Seconds
    length: Seconds

    @model_validator(mode="after")
    def _check(self) -> Maintenance:
        if self.every <= 0:
            raise ValueError("every must be above zero")
        if self.length >= self.every:
            raise ValueError("length must be less than every: windows that meet leave no time to train")
        return self


class Reliability(Spec):
    """The table [reliability]; see the head of this file.

    Args:
        fleet: name of a published fleet whose failures hold where this table has none of that component.
        detection: until a dead job is noticed [s].
        restart: until it computes again [s], as one time or by phase.
        spares: machines that stand by ready; None = a replacement is always at hand.
        cold_spares: further ones that need `cold_start` [s] first.
        repair: mean time until a machine that was taken away is back [s], exponentially distributed.
        crews: how many are repaired at a time; None = all at once.
        elastic: how many machines may be missing before the job waits: it goes on with fewer replicas.
        evict: whether slow components that were found are replaced, after a checkpoint; False = at the next restart.
        maintenance: windows.
    """

    fleet: Name | None = None
    failures: Annotated[tuple[Failure, ...], Listed] = ()
    detection: Seconds | None = None
    restart: Seconds | Restart | None = None
    spares: Annotated[int, Field(ge=0, le=10**6)] | None = None
    cold_spares: Annotated[int, Field(ge=0, le=10**6)] = 0
    cold_start: Seconds = 0.0
    repair: Seconds | None = None
    crews: Annotated[int, Field(ge=1, le=10**6)] | None = None
    elastic: Annotated[int, Field(ge=0, le=10**4)] = 0
    evict: bool = True
    maintenance: Maintenance | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Reliability:
        limited = self.spares is not None
        if limited and not self.repair:
            raise ValueError("spares run out unless machines come back: give repair, the mean time that takes")
        if not limited:
            for name in ("cold_spares", "cold_start", "repair", "crews", "elastic"):
                if getattr(self, name):
                    raise ValueError(f"{name} matters only where replacements are limited: give spares too (0 = none)")
        if bool(self.cold_spares) != bool(self.cold_start):
            raise ValueError("cold spares need cold_start (how long one takes): give both or neither")
        return self

    def resolved(self) -> Reliability:
        """Return the table with what its fleet's record adds.

        Raises:
            SpecError: no such fleet.
        """
        if self.fleet is None:
            return self
        fleet = load_fleet(self.fleet)
        own = {failure.component for failure in self.failures}
        added = tuple(failure for failure in fleet.failures if failure.component not in own)
        changes = {"failures": self.failures + added}
        for name in ("detection", "restart"):
            if getattr(self, name) is None:
                changes[name] = getattr(fleet, name)
        return self.model_copy(update=changes)


class Fleet(NamedSpec):
    """A published record of failures: the data files of kind `reliability`.

    Args:
        failures: per way of failing, the mean time between failures of one component, from counts over GPUs and days.
        detection, restart: as in `Reliability`, where published.
        gpus, gpus_per_node, days: of the record.
    """

    failures: Annotated[tuple[Failure, ...], Listed]
    detection: Seconds | None = None
    restart: Seconds | Restart | None = None
    gpus: Annotated[int, Field(ge=1)]
    gpus_per_node: Annotated[int, Field(ge=1)]
    days: Annotated[float, Field(gt=0)] | None = None


def load_fleet(name: str) -> Fleet:
    """Return a fleet's record by name or file.

    Raises:
        SpecError: no such file, or it is wrong.
    """
    return load_named("reliability", name, Fleet)
