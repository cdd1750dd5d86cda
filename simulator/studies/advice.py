"""Out of memory: by how much, on which rank, and the smallest change that makes it fit, each alternative simulated.

First every single change; when none is enough, another plan altogether, by a quick search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.job import Job
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, set_options
from simulator.studies.changes import MOST_ROWS, Trial, neighbours, that_matter, trials
from simulator.studies.other_plan import other_plan
from simulator.units import show

__all__ = ["Advice", "make_it_fit"]

_MOST_SHORT = 3
"""Changes that do not fit either which are told; all of them stand in the dictionary."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advice:
    """How a plan that does not fit can be made to.

    Args:
        excess: bytes missing on the fullest rank.
        rank: the fullest pipeline rank.
        tried: all changes that can be, those that fit first, the quickest first; then by memory.
        searched: plans of the space that was searched, where no single change is enough.
    """

    excess: float
    rank: int
    tried: tuple[Trial, ...]
    searched: int = 0

    @property
    def best(self) -> Trial | None:
        """The change that fits and that the framework runs, with the shortest step; None when there is none."""
        return next((t for t in self.tried if t.outcome is not None and t.outcome.helps), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `advice` of `dtsim run --json`."""
        return {
            "excess_bytes": self.excess,
            "pipeline_rank": self.rank,
            "best": None if self.best is None else self.best.to_dict(),
            "tried": [trial.to_dict() for trial in self.tried],
            "searched": self.searched,
        }

    def section(self) -> Section:
        """Return the advice to read."""
        rows: list[tuple[str, ...]] = []
        short = 0
        for trial in self.tried:
            p = trial.outcome
            if p is not None:
                short += not p.fits
                if short > _MOST_SHORT:
                    continue
                verdict = p.verdict(f"{show(p.peak_memory - p.capacity, 'B')} too much")
                rows.append((trial.change.name, show(p.step_time, "s"), show(p.peak_memory, "B"), verdict))
        best = self.best
        if best is not None:
            way = f"way out: {best.change.name} ({set_options(best.change.settings)})"
        else:
            way = (
                f"no plan was found that fits, of {self.searched:,} (dtsim search looks at all): dtsim fit MODEL --cluster C --fewest gpus "
                "says how many GPUs it takes; or a smaller model, or a shorter sequence"
            )
        return Section(
            title=f"does not fit: rank {self.rank} lacks {show(self.excess, 'B')}",
            lines=(way,),
            table=Table(headings=("change", "step", "fullest rank", ""), rows=tuple(rows), left=(0, 3)),
            below=(f"{short - _MOST_SHORT} other changes fall short by more",) if short > _MOST_SHORT else (),
        )


def make_it_fit(job: Job, prediction: Prediction, engine: str = "compiled") -> Advice:
    """Return what makes a job fit its GPUs.

    Args:
        job: the job as predicted.
        prediction: its prediction, out of memory.
        engine: the engine for the alternatives.

    >>> from simulator.job import job_from_names
    >>> from simulator.simulation import simulate_job
    >>> job = job_from_names("llama2_70b", "dgx_h100", ["cluster.gpus=64", "plan.tensor_parallel=8"])
    >>> prediction = simulate_job(job)
    >>> prediction.fits, make_it_fit(job, prediction).best.outcome.fits
    (False, True)
    """
    fullest = prediction.fullest
    tried = (
        that_matter(prediction, trials(job, neighbours(job), engine)) if prediction.program.size <= MOST_ROWS else []
    )
    searched = 0
    if not any(t.outcome is not None and t.outcome.helps for t in tried):
        searched, found = other_plan(job)
        tried += [found] if found else []
    return Advice(
        excess=prediction.peak_memory - prediction.capacity,
        rank=prediction.ranks[fullest].pipeline_rank if prediction.ranks else fullest,
        tried=tuple(sorted(tried, key=_order)),
        searched=searched,
    )


def _order(trial: Trial) -> tuple[bool, float]:
    p = trial.outcome
    if p is None:
        return True, float("inf")
    return not p.fits, p.step_time if p.fits else p.peak_memory
