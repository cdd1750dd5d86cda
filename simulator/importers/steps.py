"""Measured steps: which of them are steady, and what they say together.

The first steps of a run compile, fill caches and tune; they are left out up to the first stretch that runs at the pace of the second
half.  Later steps that stand out (a checkpoint, an evaluation) are counted but do not move the median.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simulator.errors import SpecError
from simulator.report.table import Section, percent
from simulator.units import show

__all__ = ["Steps", "Unit", "steady"]

Unit = Literal["seconds", "tokens/s/GPU", "samples/s"]

_CLOSE = 0.05
"""A step within 5 % of the median runs at its pace, even where the others lie closer."""
_MAD = 4.0
"""So many median deviations from the median, a step stands out."""


def steady(values: Sequence[float]) -> int:
    """Return how many values at the beginning are warm-up.

    >>> steady([9.0, 2.0, 1.1, 1.0, 1.0, 1.02, 0.99, 1.0])
    3
    """
    tail = values[len(values) // 2 :]
    if len(values) < 3:
        return 0
    middle = statistics.median(tail)
    reach = max(_CLOSE * middle, _MAD * statistics.median(abs(v - middle) for v in tail))
    run = min(3, len(values))
    for i in range(len(values) - run + 1):
        if all(abs(v - middle) <= reach for v in values[i : i + run]):
            return i
    return len(values) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a log or a trace says of its steps.

    Args:
        place: the log.
        unit: "seconds" of a step, or a rate: "tokens/s/GPU" or "samples/s" of all GPUs.
        values: one per line of the log, in order.
        batch: sequences per step, if the log says them.
        memory: the largest peak of memory that it names [B]; 0 = none.
        tflops: TFLOP/s per GPU by the log's own count; 0 = none.
    """

    place: str
    unit: Unit
    values: tuple[float, ...]
    batch: int | None = None
    memory: float = 0.0
    tflops: float = 0.0

    @property
    def warm_up(self) -> int:
        """Lines at the beginning that are left out."""
        return steady(self.values)

    @property
    def kept(self) -> tuple[float, ...]:
        """Values after the warm-up."""
        return self.values[self.warm_up :]

    @property
    def median(self) -> float:
        """The median of the steady values."""
        return statistics.median(self.kept)

    @property
    def spread(self) -> tuple[float, float]:
        """10th and 90th percentile of the steady values."""
        if len(self.kept) < 2:
            return self.kept[0], self.kept[0]
        tenths = statistics.quantiles(self.kept, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    @property
    def apart(self) -> int:
        """Steady lines that stand out."""
        middle = self.median
        reach = max(_CLOSE * middle, _MAD * statistics.median(abs(v - middle) for v in self.kept))
        return sum(abs(v - middle) > reach for v in self.kept)

    def step_time(self, tokens: int, batch: int, gpus: int) -> float:
        """Return the measured step time [s] of a job.

        Args:
            tokens, batch: of a step.
            gpus: that the log's rate is per one of.

        Raises:
            SpecError: the log's batch is another.
        """
        if self.batch is not None and self.batch != batch:
            raise SpecError(
                f"{self.place}: its steps take {self.batch} sequences, but the job's take {batch}. Way out: "
                f"--set workload.global_batch_size={self.batch}"
            )
        if self.unit == "seconds":
            return self.median
        return tokens / (self.median * gpus) if self.unit == "tokens/s/GPU" else batch / self.median

    def to_dict(self) -> dict[str, Any]:
        """Return the steps as data."""
        low, high = self.spread
        return {
            "unit": self.unit,
            "lines": len(self.values),
            "warm_up_left_out": self.warm_up,
            "steady": len(self.kept),
            "standing_out": self.apart,
            "median": self.median,
            "p10": low,
            "p90": high,
            "global_batch_size": self.batch,
            "peak_memory_bytes": self.memory or None,
            "tflops_per_gpu": self.tflops or None,
        }

    def section(self) -> Section:
        """Return the steps to read."""
        low, high = self.spread

        def said(value: float) -> str:
            return show(value, "s") if self.unit == "seconds" else f"{value:,.4g} {self.unit}"

        lines = [
            f"median {said(self.median)}, 10 to 90 % of them {said(low)} to {said(high)} ({percent(high / low - 1.0)} apart)"
        ]
        if self.apart:
            lines.append(f"{self.apart} of them stand out (checkpoints, evaluations, stragglers)")
        if self.memory:
            lines.append(f"peak memory by the log: {show(self.memory, 'B')}")
        title = f"{self.place}: {len(self.kept)} steady lines, {self.warm_up} of warm-up left out"
        return Section(title=title, lines=tuple(lines))
