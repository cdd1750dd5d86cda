"""Several settings of one job side by side: schedules, ZeRO stages, or any key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulator.energy.step_power import StepPower, step_power
from simulator.errors import SimulatorError
from simulator.job import Job
from simulator.lowering import resolve
from simulator.program.program import CATEGORIES, TRANSFER, Link
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, percent
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.simulation import simulate_job
from simulator.studies.changes import Change, changed, chunks_for
from simulator.studies.variants import VariantLoader, named
from simulator.units import show

__all__ = ["Comparison", "PipelineFacts", "Row", "compare", "job_shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """What a schedule costs besides time.

    Args:
        ranks: pipeline ranks.
        activations: bytes on the rank that holds most of them at its peak.
        weight_copies: copies of its share of the weights on the fullest rank, lanes and versions multiplied.
        messages: transfers between pipeline ranks in one step of one replica.
        message_bytes: their bytes, one tensor-parallel rank's share.
    """

    ranks: int
    activations: float
    weight_copies: int
    messages: int
    message_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One variant: its settings, and its prediction or the reason why there is none."""

    name: str
    settings: tuple[str, ...]
    prediction: Prediction | None
    reason: str = ""
    pipeline: PipelineFacts | None = None
    power: StepPower | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON: the keys of `dtsim run`, or `reason`."""
        head: dict[str, Any] = {"name": self.name, "settings": list(self.settings), "reason": self.reason or None}
        if self.prediction is None:
            return head
        answer = self.prediction.to_dict()
        answer.pop("schema_version")
        facts: dict[str, Any] = {} if self.pipeline is None else {"pipeline": asdict(self.pipeline)}
        facts |= {} if self.power is None else {"power": self.power.to_dict()}
        return head | {"peak_memory_fullest_bytes": self.prediction.peak_memory} | facts | answer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """All variants, in the order asked for."""

    name: str
    rows: tuple[Row, ...]

    @property
    def predicted(self) -> list[tuple[str, Prediction]]:
        """(name, prediction) of the variants that can be."""
        return [(row.name, row.prediction) for row in self.rows if row.prediction is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim compare`."""
        from simulator import __version__

        facts = self.predicted[0][1].provenance if self.predicted else {}
        return {
            "schema_version": 1,
            "job": self.name,
            "rows": [row.to_dict() for row in self.rows],
            "provenance": {"version": __version__}
            | {k: facts[k] for k in ("cluster", "gpu", "engine", "calibration") if k in facts},
        }

    def sections(self) -> list[Section]:
        """Return table and refusals to read."""
        lines = []
        best = min((p.step_time for _, p in self.predicted if p.fits), default=None)
        for row in self.rows:
            p = row.prediction
            if p is None:
                continue
            mark = "fits" if p.fits else _too_much(p)
            mark += ", quickest" if p.fits and p.step_time == best else ""
            lines.append(
                (
                    row.name,
                    show(p.step_time, "s"),
                    f"{show(p.low, 's')} to {show(p.high, 's')}",
                    percent(p.mfu),
                    percent(p.bubble_fraction),
                    show(sum(p.exposed_communication.values()), "s"),
                    show(p.peak_memory, "B"),
                    "" if row.power is None else show(row.power.energy_per_token, "J"),
                    mark,
                )
            )
        headings = ("", "step", "80 % band", "MFU", "bubble", "exposed comm", "fullest rank", "per token", "")
        table = Table(headings=headings, rows=tuple(lines), left=(0, 8))
        out = [Section(title=f"{self.name}, side by side", table=table), *self._pipelines()]
        refused = [f"{row.name}: {row.reason}" for row in self.rows if row.prediction is None]
        return [*out, Section(title="cannot be", lines=tuple(refused))] if refused else out

    def _pipelines(self) -> list[Section]:
        """Return the table of schedules, where there are pipelines."""
        lines = [
            (
                row.name,
                percent(row.prediction.bubble_fraction),
                percent(row.prediction.bubble_overhead),
                show(row.pipeline.activations, "B"),
                str(row.pipeline.weight_copies),
                f"{row.pipeline.messages} of {show(row.pipeline.message_bytes / row.pipeline.messages, 'B')}"
                if row.pipeline.messages
                else "0",
                show(row.prediction.peak_memory, "B"),
            )
            for row in self.rows
            if row.prediction is not None and row.pipeline is not None
        ]
        headings = ("", "bubble / step", "bubble / rest", "activations", "weight copies", "messages", "fullest rank")
        return [Section(title="pipelines", table=Table(headings=headings, rows=tuple(lines)))] if lines else []


def _too_much(p: Prediction) -> str:
    """What is missing, on the GPU or on its host."""
    over = p.peak_memory - p.capacity
    return (
        f"{show(over, 'B')} too much"
        if over > 0
        else f"{show(p.host_memory - p.host_capacity, 'B')} too much on the host"
    )


def compare(
    job: str | None,
    asked: Sequence[tuple[str, ...]],
    *,
    model: str | None = None,
    cluster: str | None = None,
    engine: str = "compiled",
) -> Comparison:
    """Return every variant simulated; one that cannot be becomes a row with its reason.

    Args:
        job: a job's name or file; or None with a model and a cluster.
        asked: settings of each variant, from `variants`.
        model, cluster: names, without a job.
        engine: "compiled" or "simpy".

    Raises:
        SpecError: the job itself cannot be read.
    """

    loader = VariantLoader(job, model, cluster)
    like = loader.like(asked)
    rows = []
    for name, settings in zip(named(asked), asked, strict=True):
        try:
            variant, note = _with_fitting_chunks(loader.load(settings, like), settings)
            prediction = simulate_job(variant, engine)
            facts = _pipeline_facts(variant, prediction)
            power = step_power(prediction, variant.cluster, variant.power)
            rows.append(Row(name=name + note, settings=settings, prediction=prediction, pipeline=facts, power=power))
        except SimulatorError as error:
            rows.append(Row(name=name, settings=settings, prediction=None, reason=str(error)))
    return Comparison(name=loader.base.name, rows=tuple(rows))


def _with_fitting_chunks(job: Job, settings: Sequence[str]) -> tuple[Job, str]:
    """Return a variant and a note: a schedule that cannot take the job's chunks per rank gets those it can, unless
    they were asked for."""
    keys = [setting.partition("=")[0].strip() for setting in settings]
    if "plan.schedule" not in keys or "plan.chunks_per_rank" in keys:
        return job, ""
    plan = job.plan
    replicas = plan.data_parallel or max(1, job.cluster.world_size // plan.model_parallel_size)
    microbatches = max(1, job.workload.global_batch_size // (replicas * plan.microbatch_size))
    shape = Shape(plan.pipeline_parallel, microbatches, plan.chunks_per_rank)
    chunks = chunks_for(SCHEDULES.get(str(plan.schedule)), shape)
    if chunks is None or chunks == plan.chunks_per_rank:
        return job, ""
    change = Change(name="--schedule", plan={"chunks_per_rank": chunks, "layer_split": None})
    return changed(job, change), f" (chunks_per_rank {chunks})"


def job_shape(job: Job) -> Shape:
    """Return the pipeline ranks, microbatches and chunks per rank of a job.

    Raises:
        PlanError: the plan cannot be.
    """
    resolved = resolve(job.workload, job.plan, job.cluster.world_size, f"cluster {job.cluster.name!r}")
    return Shape(resolved.pipeline_parallel, resolved.microbatches, resolved.chunks_per_rank)


def _pipeline_facts(job: Job, prediction: Prediction) -> PipelineFacts | None:
    """Return what the schedule of a job costs; None without pipeline ranks."""
    if job.plan.pipeline_parallel < 2:
        return None
    schedule, shape = SCHEDULES.get(prediction.provenance["schedule"]), job_shape(job)
    copies = schedule.placement(shape).weight_copies() * schedule.weight_versions(shape)
    program = prediction.program
    one = program.rank < dict(program.axes).get("pp", program.ranks)  # the first class of replicas, where they differ
    sent = program.item[(program.kind == TRANSFER) & one & (program.step == 0)]
    sizes = np.array([item.message if isinstance(item, Link) else 0.0 for item in program.items])
    return PipelineFacts(
        ranks=shape.ranks,
        activations=float(prediction.memory.by_category[:, CATEGORIES.index("activations")].max()),
        weight_copies=int(copies.max()),
        messages=len(sent),
        message_bytes=float(sizes[sent].sum()),
    )
