"""Another plan altogether: what a quick search finds for a job's model and GPUs, as a change of its plan."""

from __future__ import annotations

from simulator.job import Job
from simulator.search.quick import changed_fields, quick_search
from simulator.studies.changes import Change, Outcome, Trial

__all__ = ["other_plan"]


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
