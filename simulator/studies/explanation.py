"""Why a step takes as long as it does: from the peak to the step, what binds, what fills memory, which change helps most."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from simulator.errors import PlanError
from simulator.job import Job
from simulator.lowering import longest_reversal, resolve_on
from simulator.program.prices import PriceClass
from simulator.program.program import CATEGORIES, Link
from simulator.report.prediction import Prediction
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, bar, percent, set_options
from simulator.report.tiers import Traffic, traffic_of, traffic_section
from simulator.report.turns import turns_dict, turns_section
from simulator.schedules.reversal import Reversal
from simulator.studies.changes import MOST_ROWS, Trial, neighbours, that_matter, trials
from simulator.studies.live_tensors import live_at_peak
from simulator.studies.measured import class_seconds
from simulator.studies.other_plan import other_plan
from simulator.units import show

__all__ = ["ACCOUNT_WORDS", "Explanation", "explain", "from_peak_to_step", "leaving_nodes"]

_MOST_GAINS = 12
_NOTICEABLE = 0.001
ACCOUNT_WORDS = {
    "recompute": "forwards run again to save memory",
    "optimizer": "the optimizer's update",
    "host": "the host at the end of the step",
    "tp": "tensor-parallel collectives that nothing hides",
    "cp": "context-parallel communication that nothing hides",
    "ep": "expert-parallel communication that nothing hides",
    "dp": "data-parallel collectives that nothing hides",
    "pp": "messages between pipeline ranks that nothing hides",
    "bubble": "waiting for other ranks",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """What binds a step.

    Args:
        prediction: the step.
        name: of the job.
        ladder: (words, seconds) from the time at the dense peak to the step time; the seconds sum to the step time.
        classes: seconds of the critical path by price class, largest first.
        gains: single changes that can be, the quickest that fits first.
        other: another plan altogether, by a quick search; None = none was found that fits and is quicker.
        turns: what is recomputed, in words, and the turns in which the longest chunk runs backward; None = all layers do the same.
    """

    prediction: Prediction
    name: str
    ladder: tuple[tuple[str, float], ...]
    classes: dict[PriceClass, float]
    gains: tuple[Trial, ...]
    other: Trial | None = None
    turns: tuple[str, Reversal] | None = None

    @property
    def best(self) -> Trial | None:
        """The change that fits, that the framework runs, and that shortens the step most (of a step that does not fit: the quickest)."""
        for trial in self.gains:
            p = trial.outcome
            if p is not None and p.helps:
                quicker = p.step_time < self.prediction.step_time * (1.0 - _NOTICEABLE)
                return trial if quicker or not self.prediction.fits else None
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim explain`."""
        p = self.prediction
        return {
            "schema_version": SCHEMA_VERSION,
            "job": self.name,
            "step_time_s": {"value": p.step_time, "low": p.low, "high": p.high},
            "from_peak_to_step_s": [{"part": words, "seconds": s} for words, s in self.ladder],
            "breakdown_s": p.breakdown,
            "critical_path_s": {str(which): s for which, s in self.classes.items()},
            "host_bound": p.provenance["host_bound"],
            "placement": p.provenance["placement"],
            "bubble_fraction": p.bubble_fraction,
            "largest_at_peak": live_at_peak(p),
            "fits": p.fits,
            "best": None if self.best is None else self._gain(self.best),
            "another_plan": None if self.other is None else self._gain(self.other),
            "changes": [self._gain(trial) for trial in self.gains],
            "tier_traffic": [asdict(one) for one in self.traffic],
            "recompute_turns": None if self.turns is None else turns_dict(self.turns[1]),
            "provenance": p.provenance,
        }

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What a GPU moves between tiers of memory; () where steps run into each other."""
        p = self.prediction
        if not p.window.whole:
            return ()
        kernels = sum(p.breakdown[name] for name in ("forward", "backward", "recompute"))
        return traffic_of(p.program, p.prices, p.hardware_flops / p.world_size, kernels)

    def _gain(self, trial: Trial) -> dict[str, object]:
        p = trial.outcome
        gain = None if p is None else self.prediction.step_time / p.step_time - 1.0
        return trial.to_dict() | {"speedup": gain}

    def sections(self) -> list[Section]:
        """Return the explanation to read."""
        turns = [] if self.turns is None else [turns_section(self.turns[1], self.turns[0])]
        below = [traffic_section(self.traffic)] if self.traffic else []
        assumed = tuple(self.prediction.provenance["assumptions"])
        granted = [Section(title="taken for granted", lines=assumed)] if assumed else []
        return [self._ladder(), self._binding(), self._memory(), *below, *turns, *granted, self._gains()]

    def _ladder(self) -> Section:
        p = self.prediction
        longest = max(s for _, s in self.ladder)
        rows = tuple((words, show(s, "s"), percent(s / p.step_time), bar(s / longest)) for words, s in self.ladder)
        return Section(
            title=f"{self.name}: {show(p.step_time, 's')} per step, MFU {percent(p.mfu)}; from the peak to the step",
            table=Table(headings=("", "", "", ""), rows=rows, left=(0, 3)),
        )

    def _binding(self) -> Section:
        p = self.prediction
        rows = tuple(
            (str(which), show(s, "s"), percent(s / p.step_time)) for which, s in list(self.classes.items())[:8]
        )
        blocks = p.provenance["host_bound"]
        leaving = leaving_nodes(p)
        return Section(
            title="what binds: the longest chain of work and messages, by what sets its speed",
            table=Table(headings=("", "", ""), rows=rows),
            below=(
                f"host-bound blocks (the CPU launches too slowly): {', '.join(blocks[:5]) or 'none'}",
                f"what leaves the node: {', '.join(leaving[:6]) or 'nothing'}",
            ),
        )

    def _memory(self) -> Section:
        p = self.prediction
        rank = p.fullest
        total = float(p.memory.total[rank])
        parts = sorted(zip(p.memory.by_category[rank].tolist(), CATEGORIES, strict=True), reverse=True)
        rows = tuple((name, show(b, "B"), percent(b / total), bar(b / parts[0][0])) for b, name in parts if b > 0)
        verdict = "fits" if p.fits else "does NOT fit"
        return Section(
            title=f"what fills memory: rank {rank}, {show(total, 'B')} of {show(p.capacity, 'B')}, {verdict}",
            table=Table(headings=("", "", "", ""), rows=rows, left=(0, 3)),
        )

    def _gains(self) -> Section:
        now, best, rows = self.prediction.step_time, self.best, []
        for trial in self.gains[:_MOST_GAINS]:
            p = trial.outcome
            if p is not None:
                verdict = p.verdict("does not fit")
                gain = percent(now / p.step_time - 1.0, signed=True)
                rows.append((trial.change.name, show(p.step_time, "s"), gain, show(p.peak_memory, "B"), verdict))
        line = (
            f"{best.change.name}: {set_options(best.change.settings)}"
            if best is not None
            else "none of the neighbouring plans is quicker, fits and is run by the framework"
        )
        lines: tuple[str, ...] = (line,)
        if self.other is not None and self.other.outcome is not None:
            p = self.other.outcome
            settings = set_options(self.other.change.settings)
            lines += (
                f"another plan altogether: {show(p.step_time, 's')} ({percent(now / p.step_time - 1.0, signed=True)}): {settings}",
            )
        more = len(self.gains) - _MOST_GAINS
        return Section(
            title="the one change that helps most",
            lines=lines,
            table=Table(headings=("change", "step", "speed", "fullest rank", ""), rows=tuple(rows), left=(0, 4)),
            below=(f"... and {more} more that are slower or do not fit",) if more > 0 else (),
        )


def from_peak_to_step(prediction: Prediction) -> tuple[tuple[str, float], ...]:
    """Return (words, seconds) from the time at the dense peak to the step time.

    The first part is model FLOP / (GPUs x peak); the second what forward and backward kernels take beyond it (below zero
    when padding or causal attention save more than kernels lose); then every other account.  They sum to the step time.
    """
    p = prediction
    ideal = p.model_flops / (p.world_size * p.peak_flops)
    kernels = p.breakdown["forward"] + p.breakdown["backward"]
    rest = sorted(((s, name) for name, s in p.breakdown.items() if name in ACCOUNT_WORDS and s > 0), reverse=True)
    return (
        ("the model's FLOP at the GPU's peak", ideal),
        ("kernels slower than the peak" if kernels >= ideal else _SPARED, kernels - ideal),
        *((f"{name}: {ACCOUNT_WORDS[name]}", s) for s, name in rest),
    )


_SPARED = "less than that: scores that masks and windows spare"


def explain(job: Job, prediction: Prediction, engine: str = "compiled", search: bool = False) -> Explanation:
    """Return why a step takes as long as it does, with every neighbouring plan simulated.

    Args:
        job: the job as predicted.
        prediction: its prediction.
        engine: the engine for the neighbours.
        search: whether to look for another plan altogether, too.

    Raises:
        PlanError: the step is so large that its neighbours would take minutes.
    """
    if prediction.program.size > MOST_ROWS:
        raise PlanError(
            f"neighbouring plans are tried for steps of at most {MOST_ROWS} rows, but {job.name!r} has "
            f"{prediction.program.size}. Way out: a smaller global_batch_size; dtsim run has no such limit"
        )
    found = that_matter(prediction, trials(job, neighbours(job), engine))

    def order(trial: Trial) -> tuple[bool, float]:
        p = trial.outcome
        return (True, float("inf")) if p is None else (not p.fits, p.step_time)

    other = other_plan(job)[1] if search else None
    quickest = min(
        prediction.step_time, *(t.outcome.step_time for t in found if t.outcome and t.outcome.helps), math.inf
    )
    if (
        other is not None
        and other.outcome is not None
        and prediction.fits
        and other.outcome.step_time >= quickest * (1.0 - _NOTICEABLE)
    ):
        other = None
    return Explanation(
        prediction=prediction,
        other=other,
        name=job.name,
        ladder=from_peak_to_step(prediction),
        classes=class_seconds(prediction),
        gains=tuple(sorted(found, key=order)),
        turns=_turns(job),
    )


_PIPE = "messages between pipeline ranks"


def leaving_nodes(prediction: Prediction) -> list[str]:
    """Return the names of what leaves the node, each once: collectives of layers by their group, others by what they carry."""
    named = set()
    for item, where in zip(prediction.program.items, prediction.prices.placement, strict=True):
        if isinstance(item, Link) and "leave" in where:
            named.add(re.sub(r" (of|\d).*", "", item.name) if item.collective else _PIPE)
        else:
            named |= set(re.findall(r"(\w+ over [\w-]+): [^;]*\bleaves? the", where))
    return sorted(named)


def _turns(job: Job) -> tuple[str, Reversal] | None:
    """What the longest chunk of a job runs backward, where layers do not all do the same."""
    resolved = resolve_on(job.workload, job.plan, job.cluster)
    if not resolved.recomputes.method:
        return None
    return resolved.recomputes.text, longest_reversal(job.workload, resolved)
