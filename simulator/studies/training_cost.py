"""A whole training run from one step: days, GPU-hours and price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simulator.errors import SpecError
from simulator.report.prediction import Prediction
from simulator.report.table import Section, amount
from simulator.units import in_unit, parse, show

__all__ = ["TrainingCost", "training_cost"]

_MOST_TOKENS = parse("1 E tokens", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """What training on so many tokens takes, without failures, checkpoints or evaluation.

    Args:
        tokens: to train on.
        steps: of the job's global batch.
        seconds, low, high: wall time [s], with the band of the step time.
        gpus: how many run.
        price_per_gpu_hour: [$/h]; None = the cluster's file names none.
    """

    tokens: float
    steps: int
    seconds: float
    low: float
    high: float
    gpus: int
    price_per_gpu_hour: float | None

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return in_unit(self.seconds, "h", "s") * self.gpus

    @property
    def price(self) -> float | None:
        """Dollars; None without a price."""
        return None if self.price_per_gpu_hour is None else self.gpu_hours * self.price_per_gpu_hour

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `training` of `dtsim run --json`."""
        days = {k: in_unit(v, "d", "s") for k, v in (("value", self.seconds), ("low", self.low), ("high", self.high))}
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "time_s": {"value": self.seconds, "low": self.low, "high": self.high},
            "days": days,
            "gpu_hours": self.gpu_hours,
            "price_usd": self.price,
            "price_per_gpu_hour_usd": self.price_per_gpu_hour,
        }

    def section(self) -> Section:
        """Return the cost to read."""
        days, low, high = (amount(in_unit(s, "d", "s")) for s in (self.seconds, self.low, self.high))
        cost = (
            f"{amount(self.price)} $ at {self.price_per_gpu_hour:g} $ per GPU-hour"
            if self.price is not None
            else "no price known: the cluster's file has no price_per_gpu_hour"
        )
        return Section(
            title=f"training on {show(self.tokens, '').strip()} tokens: {days} days ({low} to {high})",
            lines=(
                f"{self.steps:,} steps, {amount(self.gpu_hours)} GPU-hours on {self.gpus:,} GPUs; {cost}",
                "without failures, checkpoints or evaluation",
            ),
        )


def training_cost(prediction: Prediction, tokens: float, price_per_gpu_hour: float | None = None) -> TrainingCost:
    """Return what training on `tokens` takes; the last step is counted whole.

    Raises:
        SpecError: the number of tokens is not above zero, or beyond 10^18.
    """
    if not 0 < tokens <= _MOST_TOKENS:
        raise SpecError(
            f"a run trains on more than 0 and at most {_MOST_TOKENS:g} tokens, but {tokens:g} were asked for"
        )
    steps = math.ceil(tokens / prediction.tokens)
    return TrainingCost(
        tokens=tokens,
        steps=steps,
        seconds=steps * prediction.step_time,
        low=steps * prediction.low,
        high=steps * prediction.high,
        gpus=prediction.world_size,
        price_per_gpu_hour=price_per_gpu_hour,
    )
