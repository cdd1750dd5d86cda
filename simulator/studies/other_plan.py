"""Another plan altogether: what a quick search finds for a job's model and GPUs, as a change of its plan, or where it names none."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import SpecError
from simulator.importers.imported import Findings
from simulator.importers.jobs import job_data
from simulator.job import Job, job_from_data
from simulator.report.prediction import Prediction
from simulator.report.table import Section, percent, set_options
from simulator.search.quick import changed_fields, proposed, quick_search
from simulator.search.space import that_keep_batch
from simulator.studies.changes import Change, Outcome, Trial
from simulator.units import WRITTEN, show

__all__ = ["PlanInstead", "imported_plan", "names_a_plan", "other_plan", "plan_instead", "with_a_plan"]

_FEW_TRIES = 24
_MOST_ROWS = 100_000
"""Rows of the largest step beside which another plan is looked for unasked: of larger ones it would take seconds."""
_NOTICEABLE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInstead:
    """What a quick search says about a plan that came with a file.

    Args:
        plans: of the space that was searched.
        step_time: of the plan that came [s].
        trial: a plan that fits and is quicker; None = the search found none.
        settings: that make it of the files.
    """

    plans: int
    step_time: float
    trial: Trial | None
    settings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `plan_instead` of `dtsim run --json`."""
        found = None if self.trial is None else self.trial.to_dict() | {"settings": self.settings}
        return {"plans": self.plans, "found": found}

    def section(self) -> Section:
        """Return it to read."""
        if self.trial is None or self.trial.outcome is None:
            line = f"a quick search of {self.plans:,} plans found none that fits and is quicker; dtsim search proves the best"
            return Section(title="this plan instead: none", lines=(line,))
        found = self.trial.outcome
        gain = percent(self.step_time / found.step_time - 1.0, signed=True)
        settings = set_options(self.settings)
        return Section(
            title=f"this plan instead: {show(found.step_time, 's')} per step ({gain} speed), {show(found.peak_memory, 'B')}, fits",
            lines=(settings, f"by a quick search of {self.plans:,} plans; dtsim search proves the best"),
        )


def plan_instead(job: Job, prediction: Prediction) -> PlanInstead | None:
    """Return a quicker plan that fits, where the job's own fits; None where the step is too large to look for one unasked, or its stages
    have ranks of their own, which no search varies."""
    if not prediction.fits or prediction.program.size > _MOST_ROWS or job.plan.stages:
        return None
    plans, trial = other_plan(job, _FEW_TRIES)
    quicker = prediction.step_time * (1.0 - _NOTICEABLE)
    if trial is not None and (trial.outcome is None or trial.outcome.step_time > quicker):
        trial = None
    settings = that_keep_batch(job, trial.change.settings) if trial is not None else []
    return PlanInstead(plans=plans, step_time=prediction.step_time, trial=trial, settings=settings)


def other_plan(job: Job, tries: int | None = None) -> tuple[int, Trial | None]:
    """Return how many plans the search was about, and the one it found that fits; of those within its band the smallest change.

    The job's framework, kernels and work stay what they are.

    Args:
        tries: how many plans are simulated at most; None = as many as a quick search does.
    """
    if job.plan.stages:
        return 0, None  # no search varies them
    answer = quick_search(job, near=True, **({} if tries is None else {"tries": tries}))
    found = answer.chosen
    if found is None:
        return answer.space.size, None
    change = Change(name="another plan", plan=changed_fields(job, answer, found))
    outcome = Outcome(
        step_time=found.step_time,
        peak_memory=found.peak_memory,
        capacity=found.capacity,
        fits=found.fits,
        fit_probability=found.fit_probability,
    )
    return answer.space.size, Trial(change=change, outcome=outcome)


def names_a_plan(job: Job) -> bool:
    """Return whether a job's plan says more than which framework runs it."""
    return bool(job.plan.model_fields_set - {"framework"})


def with_a_plan(job: Job) -> Job:
    """Return a job whose plan names nothing but a framework with a good plan that fits, and the assumption that it is one.

    Where none fits it is the plan that lacks least; where one is named, or nothing can be, the job stays as it is.
    """
    if names_a_plan(job) or job.neighbours:
        return job
    answer, found = proposed(job)
    if found is None:
        return job
    what = (
        f"quickest that fits with a probability of {percent(answer.probability)} of {len(answer.candidates):,} plans simulated out of "
        f"{answer.space.size:,}, by a quick search (dtsim search proves the best)"
        if answer.best
        else "plan that lacks least memory"
    )
    chosen = set_options(found.settings)
    said = f"plan = the {what}; the job names none, this one is {chosen or 'one rank'}"
    return replace(job, plan=answer.space.job_of(found.point).plan, assumptions=(*job.assumptions, said))


def imported_plan(imported: Findings, name: str) -> Findings:
    """Return what was imported with the plan and batch that `dtsim run` takes where files name a model and a cluster, and no plan.

    Args:
        name: of the job that is made of it.
    """
    cluster, model = imported.tables.get("cluster", {}), imported.tables.get("model")
    if "name" not in cluster or not (model or "model" in imported.tables.get("workload", {})):
        return imported
    try:
        job = job_from_data(job_data(imported, name), imported.source_format, ())
    except SpecError:
        return imported  # what is missing stands in the file that is written
    planned = with_a_plan(job)
    if planned is job:
        return imported
    found = copy.deepcopy(imported)
    for key, value in planned.plan.model_dump(exclude_defaults=True, context=WRITTEN).items():
        if found.get(f"plan.{key}") is None:
            found.assume(f"plan.{key}", value, "a quick search found it; the files name no plan")
    if found.get("workload.global_batch_size") is None:
        found.assume("workload.global_batch_size", job.workload.global_batch_size, "as dtsim run takes it")
    return found
