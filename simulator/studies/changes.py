"""Neighbours of a job: one change of its plan at a time, each a job that can be simulated.

    job --neighbours--> changes --trial--> predictions, or the reason why a change cannot be

The world size and the work of a step (model, global batch, sequence length) stay what they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from simulator.costs.tables import machine_of
from simulator.errors import PlanError, SimulatorError
from simulator.hardware.cluster import Cluster
from simulator.job import Job
from simulator.lowering import ResolvedPlan, resolve
from simulator.lowering.resolve.framework_rules import beyond_framework
from simulator.plan.plan import Plan
from simulator.remembered import undisturbed
from simulator.report.prediction import Prediction
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Schedule, Shape
from simulator.search.candidate import fit_probability, fit_words
from simulator.search.space import setting_value
from simulator.simulation import simulate_job
from simulator.specs import validate_spec

__all__ = ["MOST_ROWS", "Change", "Outcome", "Trial", "changed", "chunks_for", "neighbours", "that_matter", "trials"]

MOST_ROWS = 1_000_000
"""Rows of the largest step whose neighbours are tried: a dozen larger ones would take minutes."""
_BETTER_ATTENTION = {
    "unfused": ("flash2", "flash3"),
    "chunked": ("flash2", "flash3"),
    "flash1": ("flash2", "flash3"),
    "flash2": ("flash3",),
    "sdpa": ("flash3",),
    "sdpa_2025": ("sdpa", "flash3"),
}
_OF_FSDP: dict[str, Any] = {
    "fsdp_prefetch": None,
    "reshard_after_forward": None,
    "fsdp_unit": None,
    "fsdp_gather": None,
    "fsdp_reduce": None,
    "secondary_shard_size": None,
    "quantized_weights": None,
    "quantized_gradients": None,
    "parameter_offload": None,
}
"""Settings that only ZeRO-3 has."""
_UNSHARDED: dict[str, Any] = {"shard_size": None, "shard_across_experts": None}
"""Settings that only sharded states have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a plan.

    Args:
        name: in words.
        plan: field -> value; None = back to the framework's habit.
    """

    name: str
    plan: dict[str, Any]

    @property
    def settings(self) -> list[str]:
        """The change as `--set` arguments."""
        return [f"plan.{key}={setting_value(value)}" for key, value in self.plan.items() if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is kept of a prediction: step time [s], bytes on the fullest rank and of its GPU, whether it fits and how likely, and what
    of its plan the framework does not run, in words; "" = it runs it, or not the job's own plan either."""

    step_time: float
    peak_memory: float
    capacity: float
    fits: bool
    fit_probability: float
    beyond: str = ""

    @property
    def helps(self) -> bool:
        """Whether it fits, and the job's framework runs it."""
        return self.fits and not self.beyond

    def verdict(self, short: str) -> str:
        """Return in words whether it fits and how surely, `short` where the GPU is too small, and that the framework does not run it."""
        room = short if self.peak_memory > self.capacity else "the host's memory, or its drives, are too small"
        fits = fit_words(self.fit_probability) if self.fits else room
        return fits + (", the framework does not run it" if self.beyond else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A change and what it leads to; without an outcome, `reason` says why it cannot be."""

    change: Change
    outcome: Outcome | None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the trial as JSON."""
        p = self.outcome
        return {
            "change": self.change.name,
            "settings": self.change.settings,
            "step_time_s": None if p is None else p.step_time,
            "peak_memory_bytes": None if p is None else p.peak_memory,
            "fits": None if p is None else p.fits,
            "fit_probability": None if p is None else p.fit_probability,
            "beyond_framework": None if p is None else p.beyond or None,
            "reason": self.reason or None,
        }


def changed(job: Job, change: Change) -> Job:
    """Return the job with its plan changed.

    Raises:
        SpecError: a value no plan can have.
    """
    data = job.plan.model_dump(exclude_none=True) | change.plan
    data = {key: value for key, value in data.items() if value is not None}
    return dataclasses.replace(job, plan=validate_spec(data, Plan, change.name, from_file=False))


def trials(job: Job, changes: Iterable[Change], engine: str = "compiled") -> list[Trial]:
    """Return every change simulated, in the order given; a change that cannot be carries its reason.

    Args:
        job: what is changed.
        changes: one per trial.
        engine: "compiled" or "simpy".
    """
    found = []
    own = _beyond(job)
    with undisturbed():
        for change in changes:
            try:
                after = changed(job, change)
                p = simulate_job(after, engine)
                beyond = "" if own else _beyond(after)
                outcome = Outcome(
                    step_time=p.step_time,
                    peak_memory=p.peak_memory,
                    capacity=p.capacity,
                    fits=p.fits,
                    fit_probability=fit_probability(p),
                    beyond=beyond,
                )
                found.append(Trial(change=change, outcome=outcome))
            except SimulatorError as error:
                found.append(Trial(change=change, outcome=None, reason=str(error)))
    return found


def _beyond(job: Job) -> str:
    """What of a job's plan its framework does not run; "" = nothing, or the plan cannot be."""
    try:
        now = resolve(job.workload, job.plan, job.cluster.world_size)
    except SimulatorError:
        return ""
    return beyond_framework(now.framework, now.schedule, job.plan)


def that_matter(before: Prediction, tried: Iterable[Trial]) -> list[Trial]:
    """Return the trials that have an outcome, and another one than the job itself."""

    def differs(p: Outcome) -> bool:
        return (p.step_time, p.peak_memory) != (before.step_time, before.peak_memory)

    return [trial for trial in tried if trial.outcome is not None and differs(trial.outcome)]


def neighbours(job: Job) -> list[Change]:
    """Return the changes of one thing at a time that the plan's rules allow.

    Raises:
        PlanError: the job's own plan cannot be.
    """
    now = resolve(job.workload, job.plan, job.cluster.world_size)
    if now.stages:
        now = replace(now, microbatch_size=job.plan.microbatch_size)  # of all ranks of a stage
    offered = (
        *_memory_changes(now),
        *(() if now.stages else _degree_changes(job, now)),
        *_pipeline_changes(now),
        *_kernel_changes(now, job.cluster),
    )
    return [change for change in offered if _can_be(job, change)]


def _can_be(job: Job, change: Change) -> bool:
    try:
        after = changed(job, change)
        resolve(after.workload, after.plan, after.cluster.world_size)
    except SimulatorError:
        return False
    return True


def _memory_changes(now: ResolvedPlan) -> Iterator[Change]:
    for kind in ("none", "selective", "operators", "full"):
        if kind != now.recompute:
            rest = (
                "recompute_modules",
                "recompute_policy",
                "recompute_method",
                "recompute_layers",
                "recompute_checkpoints",
                *(() if kind == "full" else ("partition_activations",)),
            )
            none: dict[str, object] = dict.fromkeys(rest)
            yield Change(name=f"recompute {kind}", plan={"recompute": kind} | none)
    if now.tensor_parallel > 1:
        word = "without" if now.sequence_parallel else "with"
        yield Change(name=f"{word} sequence parallelism", plan={"sequence_parallel": not now.sequence_parallel})
    if not now.optimizer_offload:
        yield Change(name="optimizer states on the host", plan={"optimizer_offload": 1.0})
    if now.zero_stage == 3 and not now.parameter_offload and not now.activation_offload:
        yield Change(name="weights on the host", plan={"parameter_offload": 1.0})
    for size in (now.microbatch_size // 2, 2 * now.microbatch_size):
        if size >= 1:
            yield Change(name=f"microbatches of {size}", plan={"microbatch_size": size})
    for stage in range(4):
        if stage != now.zero_stage:
            extra = {key: None for key in ("overlap_gradients", "bucket_size")} if stage == 3 else {}
            extra |= {"overlap_parameters": None} if stage not in (1, 2) else {}
            extra |= dict(_OF_FSDP) if stage != 3 else {}
            extra |= _UNSHARDED if stage == 0 else {}
            yield Change(name=f"ZeRO stage {stage}", plan={"zero_stage": stage} | extra)


def _degree_changes(job: Job, now: ResolvedPlan) -> Iterator[Change]:
    """Move a factor of two between two of tensor, pipeline and data."""
    t, p, d = now.tensor_parallel, now.pipeline_parallel, now.data_parallel
    for tensor, pipeline, data in (
        (2 * t, p, d / 2),
        (t / 2, p, 2 * d),
        (t, 2 * p, d / 2),
        (t, p / 2, 2 * d),
        (2 * t, p / 2, d),
        (t / 2, 2 * p, d),
    ):
        if min(tensor, pipeline, data) < 1 or max(tensor, pipeline, data) % 1 or tensor % 1 or pipeline % 1 or data % 1:
            continue
        if tensor > job.cluster.node.gpus:
            continue
        plan: dict[str, object] = {
            "tensor_parallel": int(tensor),
            "pipeline_parallel": int(pipeline),
            "layer_split": None,
        }
        plan["data_parallel"] = int(data) if job.plan.data_parallel is not None else None
        if tensor == 1:
            alone = ("overlap_tensor_parallel", "tensor_parallel_splits", "vocabulary_parallel_loss")
            plan |= {"sequence_parallel": False} | dict.fromkeys(alone)
        if pipeline == 1:
            plan |= {"chunks_per_rank": 1, "schedule": None, "p2p": None}
        if data == 1:
            plan |= {"zero_stage": 0, "overlap_gradients": None, "overlap_parameters": None, "bucket_size": None}
            plan |= {**_UNSHARDED, **_OF_FSDP}
        yield Change(name=f"tensor {int(tensor)} x data {int(data)} x pipeline {int(pipeline)}", plan=plan)


def _pipeline_changes(now: ResolvedPlan) -> Iterator[Change]:
    if now.pipeline_parallel == 1:
        return
    v = now.chunks_per_rank
    for chunks in sorted({v // 2, v - 1, v + 1, 2 * v} - {0, v}):
        yield Change(name=f"{chunks} chunks per rank", plan={"chunks_per_rank": chunks, "layer_split": None})
    for schedule in SCHEDULES:
        if schedule.name != now.schedule.name and schedule.flush:
            fitting = chunks_for(schedule, now.shape)
            extra = {} if fitting == v else {"chunks_per_rank": fitting, "layer_split": None}
            if fitting is not None:
                yield Change(name=f"schedule {schedule.name}", plan={"schedule": schedule.name} | extra)
    if now.p2p == "blocking":
        yield Change(name="receives posted ahead (p2p latency)", plan={"p2p": "latency"})


def chunks_for(schedule: Schedule, shape: Shape) -> int | None:
    """Return the chunks per rank with which a schedule has an order: those of the shape, else 1, else 2; None without any.

    >>> chunks_for(SCHEDULES.get("gpipe"), Shape(4, 8, 3))
    1
    """
    for chunks in (shape.chunks_per_rank, 1, 2):
        try:
            schedule.check(Shape(shape.ranks, shape.microbatches, chunks))
        except PlanError:
            continue
        return chunks
    return None


def _kernel_changes(now: ResolvedPlan, cluster: Cluster) -> Iterator[Change]:
    if now.data_parallel > 1 and now.zero_stage < 3 and not now.overlap_gradients:
        yield Change(name="gradient reduction beside the backward pass", plan={"overlap_gradients": True})
    if now.zero_stage in (1, 2) and not now.overlap_parameters:
        yield Change(name="weight gathering beside the next forward", plan={"overlap_parameters": True})
    if now.tensor_parallel > 1 and now.framework.tensor_parallel_overlap and not now.overlap_tensor_parallel:
        yield Change(name="tensor-parallel collectives beside GEMMs", plan={"overlap_tensor_parallel": True})
    for kind in _BETTER_ATTENTION.get(now.style.attention, ()):
        if machine_of(cluster).attention.runs(kind):
            yield Change(name=f"attention kernel {kind}", plan={"attention": kind})
