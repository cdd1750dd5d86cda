"""Another plan altogether: what a quick search finds for a job's model and GPUs, as a change of its plan, or where it names none."""

from __future__ import annotations

from dataclasses import replace

from simulator.job import Job
from simulator.search.quick import changed_fields, proposed, quick_search
from simulator.studies.changes import Change, Outcome, Trial

__all__ = ["other_plan", "with_a_plan"]


def other_plan(job: Job) -> tuple[int, Trial | None]:
    """Return how many plans the search was about, and the one it found that fits; of those within its band the smallest change.

    The job's framework, kernels and work stay what they are.
    """
    answer = quick_search(job, near=True)
    found = answer.chosen
    if found is None:
        return answer.space.size, None
    change = Change(name="another plan", plan=changed_fields(job, answer, found))
    outcome = Outcome(step_time=found.step_time, peak_memory=found.peak_memory, capacity=found.capacity)
    return answer.space.size, Trial(change=change, outcome=outcome)


def with_a_plan(job: Job) -> Job:
    """Return a job whose plan names nothing but a framework with a good plan that fits, and the assumption that it is one.

    Where none fits it is the plan that lacks least; where one is named, or nothing can be, the job stays as it is.
    """
    if job.plan.model_fields_set - {"framework"} or job.neighbours:
        return job
    answer, found = proposed(job)
    if found is None:
        return job
    what = (
        f"quickest that fits of {answer.space.size:,} plans, by a quick search"
        if answer.best
        else "plan that lacks least memory"
    )
    chosen = " ".join(f"--set {setting}" for setting in found.settings)
    said = f"plan = the {what}; the job names none, this one is {chosen or 'one rank'}"
    return replace(job, plan=answer.space.job_of(found.point).plan, assumptions=(*job.assumptions, said))
