"""How a job scales: the same plan on more and more GPUs, the additional ones as replicas.

    strong   the global batch stays: the ideal step is shorter in proportion
    weak     the global batch grows with the GPUs: the ideal step stays

Efficiency is tokens per second and GPU over those of the first number of GPUs that can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from simulator.errors import PlanError, SimulatorError, SpecError
from simulator.job import Job
from simulator.report.frames import Record, Records, Tabular
from simulator.report.prediction import Prediction
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, percent, refusals
from simulator.simulation import simulate_job
from simulator.studies.sizes import MOST_VARIANTS
from simulator.studies.variants import VariantLoader, named
from simulator.units import show

__all__ = ["Curve", "Point", "Scaling", "scaling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A job on a number of GPUs; without a step time, `reason` says why it cannot be.

    Args:
        gpus: GPUs of the job.
        global_batch_size: sequences per step.
        step_time, low, high: seconds, and the 80 % band.
        tokens_per_second: of all GPUs together.
        efficiency: tokens per second and GPU over those of the curve's first point.
        peak_memory: bytes on the fullest rank.
        fits: whether that fits.
        exposed: seconds of exposed communication.
    """

    gpus: int
    global_batch_size: int
    step_time: float | None = None
    low: float | None = None
    high: float | None = None
    tokens_per_second: float = 0.0
    efficiency: float | None = None
    mfu: float | None = None
    peak_memory: float = 0.0
    fits: bool = False
    exposed: float = 0.0
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """Return the point as a row of a table."""
        head: Record = {"gpus": self.gpus, "global_batch_size": self.global_batch_size, "reason": self.reason}
        if self.step_time is None:
            return dict(head)
        return {
            **head,
            "step_time_s": self.step_time,
            "low_s": self.low,
            "high_s": self.high,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_gpu": self.tokens_per_second / self.gpus,
            "efficiency": self.efficiency,
            "mfu": self.mfu,
            "exposed_communication_s": self.exposed,
            "peak_memory_bytes": self.peak_memory,
            "fits": self.fits,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON."""
        known = self.step_time is not None
        return {
            "gpus": self.gpus,
            "global_batch_size": self.global_batch_size,
            "step_time_s": {"value": self.step_time, "low": self.low, "high": self.high} if known else None,
            "tokens_per_second": self.tokens_per_second if known else None,
            "tokens_per_second_per_gpu": self.tokens_per_second / self.gpus if known else None,
            "efficiency": self.efficiency,
            "mfu": self.mfu,
            "exposed_communication_s": self.exposed if known else None,
            "peak_memory_fullest_bytes": self.peak_memory if known else None,
            "fits": self.fits if known else None,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One variant on every number of GPUs."""

    name: str
    settings: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def predicted(self) -> list[Point]:
        """The points that can be."""
        return [point for point in self.points if point.step_time is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Tabular):
    """Curves of a job, `mode` "strong" or "weak"; `unit`: what is counted as tokens."""

    name: str
    mode: str
    curves: tuple[Curve, ...]
    provenance: dict[str, Any]
    unit: str = "token"

    def tables(self) -> dict[str, Records]:
        """`points`: a row per variant and number of GPUs."""
        return {"points": lambda: [{"name": c.name} | p.record() for c in self.curves for p in c.points]}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim compare --gpus`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "job": self.name,
            "scaling": self.mode,
            "curves": [
                {"name": c.name, "settings": list(c.settings), "points": [p.to_dict() for p in c.points]}
                for c in self.curves
            ],
            "provenance": self.provenance,
        }

    def sections(self) -> list[Section]:
        """Return one table per curve, and what cannot be."""
        out = []
        for curve in self.curves:
            rows = tuple(
                (
                    f"{p.gpus:,}",
                    f"{p.global_batch_size:,}",
                    show(p.step_time, "s"),
                    f"{show(p.low, 's')} to {show(p.high, 's')}",
                    f"{p.tokens_per_second:,.0f}",
                    f"{p.tokens_per_second / p.gpus:,.0f}",
                    percent(p.efficiency),
                    percent(p.mfu),
                    show(p.exposed, "s"),
                    show(p.peak_memory, "B"),
                    "" if p.fits else "does not fit",
                )
                for p in curve.predicted
                if p.step_time is not None
                and p.low is not None
                and p.high is not None
                and p.efficiency is not None
                and p.mfu is not None
            )
            more = "" if curve.name == "as it is" else f": {curve.name}"
            headings = (
                "GPUs", "batch", "step", "80 % band", f"{self.unit}s/s", "per GPU", "efficiency", "MFU", "exposed comm",
                "fullest rank", "",
            )  # fmt: skip
            title = f"{self.name}, {self.mode} scaling{more}"
            out.append(Section(title=title, table=Table(headings=headings, rows=rows, left=(10,))))
        refused = [
            (f"{curve.name}, {p.gpus} GPUs".removeprefix("as it is, "), p.reason)
            for curve in self.curves
            for p in curve.points
            if p.reason
        ]
        return [*out, Section(title="cannot be", lines=refusals(refused))] if refused else out


def scaling(
    loader: VariantLoader,
    asked: Sequence[tuple[str, ...]],
    gpus: Sequence[int],
    mode: Literal["strong", "weak"],
    engine: str = "compiled",
) -> Scaling:
    """Return every variant on every number of GPUs.

    Args:
        loader: reads the job.
        asked: settings of each variant, from `variants`.
        gpus: numbers of GPUs; efficiency is against the smallest of them that can be.
        mode: what happens to the global batch.
        engine: "compiled" or "simpy".

    Raises:
        SpecError: too many points, or a setting that the numbers decide.
    """
    gpus = sorted(set(gpus))
    if not gpus or gpus[0] < 1:
        raise SpecError("--gpus: expected numbers of GPUs such as 64,128,256")
    if len(asked) * len(gpus) > MOST_VARIANTS:
        raise SpecError(
            f"a comparison has at most {MOST_VARIANTS} rows, but {len(asked)} variants on {len(gpus)} numbers of GPUs make "
            f"{len(asked) * len(gpus)}. Shorten one list"
        )
    decided = {"cluster.gpus", "plan.data_parallel"} | ({"workload.global_batch_size"} if mode == "weak" else set())
    for settings in asked:
        for setting in settings:
            if setting.partition("=")[0].strip() in decided:
                raise SpecError(f"{setting!r}: --gpus decides it in {mode} scaling. Leave it out")
    like = loader.like(asked)
    curves = []
    for name, settings in zip(named(asked), asked, strict=True):
        points = [_point(loader, settings, like, count, mode, engine) for count in gpus]
        curves.append(Curve(name=name, settings=settings, points=tuple(_with_efficiency(points))))
    from simulator import __version__

    return Scaling(
        name=loader.base.name,
        mode=mode,
        curves=tuple(curves),
        provenance={"version": __version__, "engine": engine},
        unit=loader.base.workload.unit,
    )


def _point(
    loader: VariantLoader, settings: Sequence[str], like: Job, gpus: int, mode: str, engine: str
) -> tuple[Point, Prediction | None]:
    before, batch = like.cluster.world_size, like.workload.global_batch_size
    if mode == "weak":
        if batch * gpus % before:
            reason = (
                f"weak scaling of {batch} sequences on {before} GPUs to {gpus} GPUs is no whole number of sequences"
            )
            return Point(gpus=gpus, global_batch_size=0, reason=reason), None
        batch = batch * gpus // before
        settings = [*settings, f"workload.global_batch_size={batch}"]
    try:
        job = loader.load([*settings, f"cluster.gpus={gpus}"], like)
        if job.plan.model_parallel_size > gpus:
            raise PlanError(
                f"a replica needs {job.plan.model_parallel_size} GPUs, but there are {gpus}. Way out: more GPUs, or smaller degrees."
            )
        p = simulate_job(job, engine)
    except SimulatorError as error:
        return Point(gpus=gpus, global_batch_size=batch, reason=str(error)), None
    found = Point(
        gpus=gpus,
        global_batch_size=job.workload.global_batch_size,
        step_time=p.step_time,
        low=p.low,
        high=p.high,
        tokens_per_second=p.tokens / p.step_time,
        mfu=p.mfu,
        peak_memory=p.peak_memory,
        fits=p.fits,
        exposed=sum(p.exposed_communication.values()),
    )
    return found, p


def _with_efficiency(points: Sequence[tuple[Point, Prediction | None]]) -> list[Point]:
    """Fill in the efficiencies: against the first point that can be."""
    first = next((point for point, p in points if p is not None), None)
    out = []
    for point, p in points:
        if p is None or first is None:
            out.append(point)
        else:
            rate = point.tokens_per_second / point.gpus
            out.append(replace(point, efficiency=rate * first.gpus / first.tokens_per_second))
    return out
