"""goodput(): a job's whole run, from its step to the bill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.errors import SpecError, check_seed
from simulator.goodput.answer import Goodput
from simulator.goodput.describe import Described, describe_run, whole_steps
from simulator.goodput.file_system import sharing_files
from simulator.goodput.interval import BestInterval, best_interval
from simulator.goodput.levers import Lever, pull_levers
from simulator.goodput.sampled import MOST_SAMPLES, sample_runs
from simulator.job import Job
from simulator.studies.neighbours import beside_neighbours
from simulator.units import parse

__all__ = ["DEFAULT_SAMPLES", "DEFAULT_SPAN", "goodput"]

DEFAULT_SAMPLES = 1000
DEFAULT_SPAN = parse("30 d", "s")
"""Wall time of a run for which neither tokens nor days are given [s]."""


def goodput(
    job: Job,
    tokens: float | None = None,
    span: float | None = None,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    levers: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Goodput:
    """Return what a run of a job costs.

    Args:
        job: with tables [reliability] and [checkpoint]; without them its steps follow one another undisturbed.
        tokens: to train on, or
        span: wall time [s]; neither: 30 days.
        samples: runs to simulate.
        seed: of the failures; the same seed, the same runs.
        levers: whether to try what single changes would buy.
        say: told the progress.

    Raises:
        SpecError: what is described cannot be, or the run would not end.
        PlanError: the plan cannot be.

    >>> from simulator.job import load_job
    >>> found = goodput(load_job("gpt2_124m_1gpu"), tokens=1e9, samples=1)
    >>> float(found.runs.goodput[0])
    1.0
    """
    if isinstance(samples, bool) or not 1 <= samples <= MOST_SAMPLES:
        raise SpecError(f"samples must be from 1 to {MOST_SAMPLES:,}, but is {samples}")
    check_seed(seed)
    if tokens is None and span is None:
        span = DEFAULT_SPAN
    job, beside = beside_neighbours(job)
    if beside is not None:
        job = sharing_files(job, beside)
    described = describe_run(job, tokens, span, say)
    best = _best(described, seed, say) if described.automatic else None
    if best is not None:
        interval = whole_steps(best.simulated, described.step)
        rare = job.checkpoint.to_files_every if job.checkpoint else None
        every = max(1, round(rare / interval)) if rare else 1
        described = replace(described, model=replace(described.model, interval=interval, far_every=every))
    runs, stopped = sample_runs(described.model, samples, seed, say=say, partial=True)
    pulled: tuple[Lever, ...] = ()
    if levers and not stopped and described.model.causes.name:
        try:
            best = best or _best(described, seed, say)
            pulled = pull_levers(described.model, samples, seed, say)
        except KeyboardInterrupt:
            stopped = True
    return Goodput(
        job=job,
        described=described,
        runs=runs,
        seed=seed,
        asked=samples,
        stopped=stopped,
        interval=best,
        levers=pulled,
        beside=beside,
    )


def _best(described: Described, seed: int, say: Callable[[str], None]) -> BestInterval | None:
    """The best interval between checkpoints, where there are checkpoints and failures that stop the job."""
    if described.cost is None or described.model.causes.rate == 0.0:
        return None
    say("looking for the best interval between checkpoints ...")
    return best_interval(described.model, described.cost, described.step, seed)
