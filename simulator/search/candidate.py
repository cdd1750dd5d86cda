"""One plan looked at: refused, bounded from below in memory and in time, or simulated; and how surely it fits."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.energy.step_power import least_energy, step_power
from simulator.errors import PlanError, SimulatorError
from simulator.hardware.conditions import plain_if_slower
from simulator.hardware.memory_residuals import load_memory_residuals
from simulator.hardware.run_residuals import load_run_residuals
from simulator.job import Job
from simulator.lowering.resolve.framework_rules import beyond_framework
from simulator.lowering.steps.state import State
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.report.prediction import QUANTILE, Prediction
from simulator.report.table import percent
from simulator.schedules.base import Schedule
from simulator.search.begun import begun
from simulator.search.bounds import ROUNDING, least_products, least_seconds
from simulator.search.defaults import repeated
from simulator.search.held import grows_with_tokens, lasting, least_bytes
from simulator.search.space import Point, Space
from simulator.simulation import simulate_job
from simulator.units import show

__all__ = [
    "OBJECTIVES",
    "OBJECTIVE_WORDS",
    "Candidate",
    "Looked",
    "check_runs",
    "fit_probability",
    "fit_words",
    "fullest_that_fits",
    "least_objective",
    "look",
    "shown",
]

OBJECTIVE_WORDS = {
    "step_time": "step time",
    "cost": "cost of a step",
    "memory": "memory of the fullest rank",
    "energy": "energy of a step",
}
OBJECTIVES = tuple(OBJECTIVE_WORDS)
"""What is made least: seconds of a step, its price (GPU-seconds where the cluster names none), bytes on the fullest rank, the facility's
energy for a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that was simulated.

    Args:
        point: which.
        settings: as `--set` arguments.
        step_time, low, high: of the step, with its 80 % band [s].
        alike: up to which a slower plan cannot be told from it (`Prediction.alike`) [s].
        peak_memory, capacity: of the fullest rank, and what its GPU has [B].
        fit_probability: that it fits, by the band of memory; 0 or 1 where the host's memory decides.
        fits: whether it fits by the point estimate.
        gpus: of the job.
        price: of a step [$]; None = the cluster names no price.
        energy: of the facility for a step [J]; None where it is not what is made least.
        tokens_per_second: of the whole job.
        breakdown: seconds by account.
        kind: of run; `runs`, `sources`, `median_error` say on what such runs were validated.
        notes: what its prediction says of the plan, such as that its framework does not run it.
    """

    point: Point
    settings: tuple[str, ...]
    step_time: float
    low: float
    high: float
    alike: float
    peak_memory: float
    capacity: float
    fit_probability: float
    fits: bool
    gpus: int
    price: float | None
    energy: float | None
    tokens_per_second: float
    breakdown: Mapping[str, float]
    kind: str
    runs: int
    sources: int
    median_error: float
    notes: tuple[str, ...] = ()

    def value(self, objective: str) -> float:
        """Return what is made least."""
        if objective == "memory":
            return self.peak_memory
        if objective == "energy" and self.energy is not None:
            return self.energy
        if objective == "cost":
            return self.step_time * self.gpus if self.price is None else self.price
        return self.step_time

    def feasible(self, probability: float) -> bool:
        """Return whether it fits with this probability; 0 asks the point estimate."""
        return self.fits if probability == 0 else self.fit_probability >= probability

    @property
    def room(self) -> str:
        """What its fullest rank needs of its GPU, and how surely that is there, in words."""
        needed = f"{show(self.peak_memory, 'B')} of {show(self.capacity, 'B')}"
        return f"{needed}, which fits with {percent(self.fit_probability)}" if self.fits else needed

    def record(self) -> dict[str, Any]:
        """Return it as the row of a table."""
        plan = {
            field: value if isinstance(value, str | int | float | None) else str(value)
            for field, value in self.point.values.items()
        }
        return {
            **plan,
            "step_time_s": self.step_time,
            "low_s": self.low,
            "high_s": self.high,
            "gpus": self.gpus,
            "tokens_per_second": self.tokens_per_second,
            "peak_memory_bytes": self.peak_memory,
            "memory_capacity_bytes": self.capacity,
            "fits": self.fits,
            "fit_probability": self.fit_probability,
            "price_usd_per_step": self.price,
            "energy_j_per_step": self.energy,
            "kind": self.kind,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "number": self.point.number,
            "plan": {field: value for field, value in self.point.values.items()},
            "settings": list(self.settings),
            "step_time_s": self.step_time,
            "low_s": self.low,
            "high_s": self.high,
            "peak_memory_bytes": self.peak_memory,
            "memory_capacity_bytes": self.capacity,
            "fit_probability": self.fit_probability,
            "gpus": self.gpus,
            "price_usd_per_step": self.price,
            "energy_j_per_step": self.energy,
            "tokens_per_second": self.tokens_per_second,
            "breakdown_s": dict(self.breakdown),
            "notes": list(self.notes),
            "validated_on": {
                "kind": self.kind,
                "runs": self.runs,
                "sources": self.sources,
                "median_error": self.median_error,
            },
        }


def shown(one: Candidate, objective: str) -> str:
    """Return what is made least, with its unit."""
    value = one.value(objective)
    if objective == "cost":
        return f"{value:.4g} {'GPU-s' if one.price is None else '$'}"
    return show(value, {"memory": "B", "energy": "J"}.get(objective, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A plan before it is simulated.

    Args:
        point: which.
        job: as one; None if it is refused.
        refusal: why it cannot be.
        bound: of its objective, never above what `simulate()` says.
        full: bytes of its fullest rank over those of the GPU, never above what `simulate()` says.
        too_large: whether it cannot fit as surely as asked for; `by_states`: nor any that differs in `ACTIVATION_FIELDS` alone;
            `by_tokens`: nor any with larger microbatches; `surely`: nor any that shards fewer of the states.
        objective: what is made least.
    """

    point: Point
    job: Job | None
    refusal: str = ""
    bound: float = 0.0
    full: float = 0.0
    too_large: bool = False
    by_states: bool = False
    by_tokens: bool = False
    surely: bool = False
    objective: str = "step_time"

    def order(self) -> tuple[float, int]:
        """Return by what plans are sorted of which the most promising is tried first."""
        return self.bound, self.point.number

    def simulated(self) -> Candidate | str:
        """Return what `simulate()` says of it, or why it refuses it after all."""
        if self.job is None:
            return self.refusal
        try:
            prediction = simulate_job(self.job)
        except SimulatorError as refusal:
            return str(refusal)
        return _candidate(self.point, self.job, prediction, self.objective)


def look(
    space: Space,
    point: Point,
    objective: str,
    probability: float | None = None,
    cut: float = math.inf,
) -> Looked:
    """Return a plan with its bounds, or its refusal.

    Args:
        probability: with which it must fit, 0 = by the point estimate; of one that is too large for that nothing else is asked.
            None = whether it fits does not matter.
        cut: of the objective: a bound that is above need not be closer.
    """
    if space.offered and (reason := repeated(point.values)):
        return Looked(point=point, job=None, refusal=reason)
    try:
        one = begun(space, point)
        job, resolved, cluster = one.job, one.resolved, one.job.cluster
        if space.by_framework:
            check_runs(resolved.framework, resolved.schedule, job.plan)
        room, unseen = cluster.gpu.usable_memory, "code" in unseen_of(job, resolved.framework.name)
        most = math.inf if probability is None else fullest_that_fits(probability, unseen)
        stands = (
            lasting(job.workload, resolved, lambda: one.state)
            if probability is not None and plain_if_slower(cluster) is not None
            else None
        )
        held = float(stands.bytes.max()) * (1.0 - ROUNDING) if stands else 0.0
        large = by_states = surely = held > most * room
        by_tokens = False
        seconds, enough = 0.0, math.inf
        if objective != "memory":
            at_once = least_objective(job, 0.0, objective, one.state)
            enough = (cut - at_once) / (least_objective(job, 1.0, objective, one.state) - at_once)
        if not large and enough < math.inf:
            seconds = least_seconds(job, one.state, 0.0)
        if not large and seconds <= enough:
            state = one.state
            held = least_bytes(job, state, most * room, stands)
            surely = held > most * room
            if probability and stands and most * room >= held > 0:
                most = min(most, fullest_that_fits(probability, unseen, stands.spread(held)))
            large = held > most * room
            by_tokens = large and grows_with_tokens(state)
            if not large and objective != "memory":
                seconds = least_seconds(job, state)
    except SimulatorError as refusal:
        return Looked(point=point, job=None, refusal=str(refusal))
    return Looked(
        point=point,
        job=job,
        bound=held if objective == "memory" else least_objective(job, seconds, objective, one.state),
        full=held / room,
        too_large=large,
        by_states=bool(by_states and stands and stands.shared),
        by_tokens=by_tokens,
        surely=surely,
        objective=objective,
    )


def check_runs(framework: Framework, schedule: Schedule, plan: Plan) -> None:
    """Refuse a plan that its framework does not run.

    Raises:
        PlanError: with what it lacks.
    """
    if beyond := beyond_framework(framework, schedule, plan):
        raise PlanError(f"{beyond}. Way out: --any-framework")


def unseen_of(job: Job, framework: str) -> frozenset[str]:
    """What had to be assumed of a job, as `Prediction.unseen`."""
    return frozenset(job.unknown) | load_run_residuals().unseen(framework, job.cluster.machine)


def least_objective(job: Job, seconds: float, objective: str, state: State | None = None) -> float:
    """The least that the objective can be of a step that takes these seconds.

    Args:
        state: of the job, as `lowering.begin` returns it; for energy, what its products draw counts then, too.
    """
    hourly = job.cluster.price_per_gpu_hour
    if objective == "cost":
        return seconds * job.cluster.world_size * (1.0 if hourly is None else _per_second(hourly))
    if objective == "energy":
        known = state is not None and not job.cluster.parts
        return least_energy(seconds, least_products(state) if state and known else {}, job.cluster, job.power)
    return seconds


def fullest_that_fits(probability: float, unseen: bool = False, spread: float = 0.0) -> float:
    """Return the part of a GPU above which a peak cannot fit with a probability; 0 = by the point estimate.

    The band of a peak is narrowest where its parts are mixed so that their errors even out, widest where it is all of the least sure and no
    measured run stands behind the code's profile.

    Args:
        unseen: whether no measured run stands behind the code's profile.
        spread: log spread at least of a peak as large as the answer.  Of a larger one it may be less, but that counts for less than its
            size, as long as as many sigmas as the probability asks for are not above 1.
    """
    if probability == 0:
        return 1.0 + 2.0**-40
    z, narrow, wide, more = _spreads(probability)
    if z <= 0:
        return math.exp(-z * wide)
    return math.exp(-z * math.hypot(max(narrow, spread if z * spread <= 1.0 else 0.0), more * unseen))


@functools.lru_cache(maxsize=64)
def _spreads(probability: float) -> tuple[float, float, float, float]:
    """Sigmas of a probability; the narrowest and the widest log spread of a peak; and what a code that nobody looked up adds."""
    residuals = load_memory_residuals()
    sigmas = [part.sigma for part in residuals.part.values()]
    z = statistics.NormalDist().inv_cdf(probability) if probability < 1 else _SURE
    return z, 1.0 / math.hypot(*(1.0 / s for s in sigmas)), math.hypot(max(sigmas), residuals.unseen), residuals.unseen


_SURE = 8.0
"""Sigmas within which a double still tells a probability from 1."""


def _per_second(hourly: float) -> float:
    from simulator.units import parse

    return hourly / parse("1 h", "s")


def fit_probability(prediction: Prediction) -> float:
    """Return how likely the fullest rank fits, if the logarithm of its peak is normal with the spread of the band of memory."""
    if any(tier.over for tier in prediction.tiers):
        return 0.0
    rank = prediction.fullest
    total, (_, high) = float(prediction.memory.total[rank]), prediction.memory_band(rank)
    room = math.log(float(prediction.capacities[rank]) / total)
    sigma = math.log(high / total) / QUANTILE
    if sigma <= 0:
        return float(room >= 0)
    return 0.5 * (1.0 + math.erf(room / sigma / math.sqrt(2.0)))


_SURE = 0.99
"""With this probability it simply fits."""


def fit_words(probability: float) -> str:
    """Return in words that a step fits, and how surely.

    >>> fit_words(0.999), fit_words(0.83)
    ('fits', 'fits (83 %)')
    """
    return "fits" if probability > _SURE else f"fits ({percent(probability, 0)})"


def _candidate(point: Point, job: Job, p: Prediction, objective: str) -> Candidate:
    alike, hourly = p.whole_runs, job.cluster.price_per_gpu_hour
    return Candidate(
        point=point,
        settings=tuple(point.settings_of(job)),
        step_time=p.step_time,
        low=p.low,
        high=p.high,
        alike=p.alike,
        peak_memory=p.peak_memory,
        capacity=p.capacity,
        fit_probability=fit_probability(p),
        fits=p.fits,
        gpus=p.world_size,
        price=None if hourly is None else p.step_time * p.world_size * _per_second(hourly),
        energy=step_power(p, job.cluster, job.power).facility * p.step_time if objective == "energy" else None,
        tokens_per_second=p.tokens / p.step_time,
        breakdown=p.breakdown,
        kind=p.kind_of_run,
        runs=alike.runs,
        sources=alike.sources,
        median_error=alike.median,
        notes=tuple(text for text in p.made["assumptions"] if text not in job.assumptions),
    )
