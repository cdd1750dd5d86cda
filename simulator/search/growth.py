"""What may grow until no plan fits: the batch, the sequence, the layers, the whole model; each a job that is larger by steps."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, replace
from typing import ClassVar

from simulator.job import Job
from simulator.plan.plan import Plan
from simulator.search.space import Point, Space
from simulator.specs import validate_spec
from simulator.units import WRITTEN
from simulator.workload.model import Model

__all__ = ["GROWTHS", "Grown", "Growth"]


class Growth(abc.ABC):
    """One quantity that may grow.

    Class attributes:
        name: as users write it.
        words: what is counted.
        unranged: fields that it sets itself, so that no space may range them.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    unranged: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def step(self, job: Job) -> int:
        """Return of which number the quantity is a multiple under the plan of a job."""

    def able(self, job: Job, amount: int) -> bool:
        """Return whether the degrees of a job's plan can deal so much of it out, a multiple of its step; of some multiple more they can."""
        del job, amount
        return True

    @abc.abstractmethod
    def grown(self, job: Job, amount: int) -> Job:
        """Return the job with so much of it.

        Raises:
            SimulatorError: it cannot be.
        """


class Batch(Growth):
    """Sequences that all replicas take at once, without accumulation: a step of one microbatch per replica."""

    name = "batch"
    words = "sequences at once, one microbatch per replica"
    unranged = ("plan.microbatch_size", "workload.global_batch_size")

    def step(self, job: Job) -> int:
        """One sequence per replica."""
        return job.plan.data_parallel or max(1, job.cluster.world_size // job.plan.model_parallel_size)

    def grown(self, job: Job, amount: int) -> Job:
        """Larger microbatches."""
        plan = _planned(job.plan, microbatch_size=amount // self.step(job))
        return replace(job, plan=plan, workload=replace(job.workload, global_batch_size=amount))


class Sequence(Growth):
    """Tokens of a sequence; learned positions grow with it."""

    name = "sequence"
    words = "tokens per sequence"
    unranged = ("workload.sequence_length",)

    def step(self, job: Job) -> int:
        """128 tokens, whole on every rank that shares them."""
        return math.lcm(_TOKENS, 2 * job.plan.context_parallel * job.plan.tensor_parallel)

    def grown(self, job: Job, amount: int) -> Job:
        """Longer sequences."""
        model = job.workload.model
        longer = _modelled(model, sequence_length=max(amount, model.sequence_length))
        return replace(job, workload=replace(job.workload, model=longer, sequence_length=amount))


class Layers(Growth):
    """Layers of the same width."""

    name = "layers"
    words = "layers"

    def step(self, job: Job) -> int:
        """One per chunk."""
        return job.plan.pipeline_parallel * job.plan.chunks_per_rank

    def grown(self, job: Job, amount: int) -> Job:
        """A deeper model."""
        return replace(job, workload=replace(job.workload, model=_modelled(job.workload.model, layers=amount)))


class Heads(Growth):
    """A model of the same proportions: heads, and with them width and depth."""

    name = "model"
    words = "heads of a model of the same proportions"

    def step(self, job: Job) -> int:
        """One per tensor-parallel rank, in whole groups of those that share keys."""
        model = job.workload.model
        return math.lcm(job.plan.tensor_parallel * job.plan.context_parallel, model.heads // _shared(model))

    def able(self, job: Job, amount: int) -> bool:
        """Whether all ranks have as many of the heads of keys and values, or as many ranks share each of them."""
        tensor, keys = job.plan.tensor_parallel, _keys(job.workload.model, amount)
        return not keys % tensor or not tensor % keys

    def grown(self, job: Job, amount: int) -> Job:
        """A wider and deeper model."""
        model = job.workload.model
        times = amount / model.heads
        sizes: dict[str, object] = {"heads": amount, "hidden": round(model.hidden / model.heads * amount)}
        sizes |= {"layers": max(1, round(model.layers * times)), "ffn": _round(model.ffn * times)}
        sizes["kv_heads"] = _keys(model, amount)
        for field in ("expert_ffn", "shared_expert_ffn"):
            if getattr(model, field):
                sizes[field] = _round(getattr(model, field) * times)
        return replace(job, workload=replace(job.workload, model=_modelled(model, **sizes)))


_TOKENS = 128


def _shared(model: Model) -> int:
    """Into how many equal parts a model can be cut by its heads."""
    return math.gcd(model.heads, model.kv_heads or model.heads)


def _keys(model: Model, heads: int) -> int:
    """Heads of keys and values of a model with so many heads, whole groups of which share one."""
    return (model.kv_heads or model.heads) * heads // model.heads


def _round(size: float) -> int:
    return max(128, round(size / 128) * 128)


def _planned(plan: Plan, **fields: object) -> Plan:
    return validate_spec(plan.model_dump(exclude_unset=True, context=WRITTEN) | fields, Plan, "this plan")


def _modelled(model: Model, **sizes: object) -> Model:
    """Return a model with other sizes."""
    said = model.model_dump(exclude_unset=True) | sizes | {"parameters_published": None}
    return validate_spec(said, Model, f"model {model.name!r} grown")


GROWTHS: dict[str, Growth] = {growth.name: growth for growth in (Batch(), Sequence(), Layers(), Heads())}
"""By name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grown(Space):
    """A space whose every plan has so much of a quantity."""

    growth: Growth
    amount: int

    def job_of(self, point: Point) -> Job:
        """See `Space.job_of`."""
        return self.growth.grown(Space.job_of(self, point), self.amount)
