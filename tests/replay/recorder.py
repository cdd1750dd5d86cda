"""What a tree computes for a case: every prediction that is made while it runs is written down, digest by digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from simulator.errors import SimulatorError
from simulator.simulation import one_kind, whole_way
from tests.replay.digest import digests

__all__ = ["FIGURES", "Recorder"]

FIGURES = ("step_time", "low", "high", "peak_memory", "bubble_fraction", "hfu")
"""Figures kept beside the digests, rounded, for machines whose last bit differs."""


class Recorder:
    """Stands in for `measure()` at the end of `simulate()` and keeps the parts of each prediction."""

    def __init__(self) -> None:
        self._measure: Callable[..., Any] = one_kind.measure
        self.made: list[dict[str, Any]] = []
        one_kind.measure = whole_way.measure = self._kept  # type: ignore[assignment]

    def _kept(self, trace: Any, program: Any, prices: Any, *rest: Any) -> Any:
        prediction = self._measure(trace, program, prices, *rest)
        names = ("step_time", "low", "high", "sigma_classes", "breakdown", "capacity", "host_memory")
        figures = {name: getattr(prediction, name) for name in names}
        figures |= {"peak_time": prediction.memory.time, "peak_bytes": prediction.memory.by_category}
        self.made.append({"program": program, "prices": prices, "trace": trace, "figures": figures, "_": prediction})
        return prediction

    def close(self) -> None:
        """Put `measure()` back."""
        one_kind.measure = whole_way.measure = self._measure  # type: ignore[assignment]

    def parts(self, work: Callable[[], Any]) -> tuple[list[dict[str, Any]], str]:
        """Return the parts of the predictions that `work` made, and how it ended if by a refusal.

        A tree that does not know a field of a plan refuses it.
        """
        self.made = []
        try:
            work()
        except SimulatorError as refusal:
            return self.made, f"{type(refusal).__name__}: {refusal}"
        except ValidationError as refusal:
            return self.made, f"PlanError: {refusal.errors()[0]['loc']}: {refusal.errors()[0]['msg']}"
        return self.made, ""

    def digest(self, work: Callable[[], Any]) -> dict[str, str]:
        """Return path -> digest of all predictions that `work` makes, `refused` and the rounded figures of the last."""
        made, refused = self.parts(work)
        out: dict[str, str] = {}
        for number, parts in enumerate(made):
            prefix = f"{number}:" if len(made) > 1 else ""
            found = digests({k: v for k, v in parts.items() if k != "_"})
            out.update({prefix + path: value for path, value in found.items()})
        if made:
            out["figures"] = " ".join(f"{getattr(made[-1]['_'], name):.7g}" for name in FIGURES)
        if refused:
            out["refused"] = hashlib.blake2b(refused.encode(), digest_size=16).hexdigest()[:12] + " " + refused
        return out
