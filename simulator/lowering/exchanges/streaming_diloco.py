"""Streaming DiLoCo: DiLoCo part by part, each beside the step that follows, so that nobody waits and no wire has a peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from simulator.lowering.exchanges.base import Part, StepKind, Terms
from simulator.lowering.exchanges.diloco import DiLoCo
from simulator.lowering.layers.rows import Rows

__all__ = ["StreamingDiLoCo"]


class StreamingDiLoCo(DiLoCo):
    """An exchange of every part in k steps, in 4 bits; a part is on its way for one step, whose update waits for it."""

    name = "streaming_diloco"
    source = "Douillard et al., Streaming DiLoCo, arXiv 2501.18512: parts in turn, overlap, 4 bits"
    options: ClassVar[Mapping[str, float | None]] = {"exchange_every": 100, "exchange_bits": 4, "exchange_parts": 1}
    overlaps = True

    def step_kinds(self, terms: Terms) -> tuple[StepKind, ...]:
        """Return steps without and with a part on its way."""
        share = terms.parts / terms.every
        streams = StepKind("with a part on its way", share, adds=False, exchanges=True)
        return (StepKind("local", 1.0 - share, adds=False), streams) if share < 1.0 else (streams,)

    def behind(self, rows: Rows, kind: StepKind, part: Part, terms: Terms) -> None:
        """See `GradientExchange.behind`; of one part."""
        super().behind(rows, kind, replace(part, weights=part.weights / terms.parts), terms)
