"""Dynamic programming over uneven layer splits: every plan also with its layers dealt out so that its busiest
rank has least to do.

The split comes from `search/fitted.py`; all plans, those so split included, are then searched best first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from simulator.errors import SpecError
from simulator.search.space import Space
from simulator.search.split import BALANCED, FITTED, SPLIT
from simulator.search.strategies.exact import Exact

__all__ = ["DynamicProgram"]


class DynamicProgram(Exact):
    """Best first, over plans and the layer split that suits each."""

    name = "dp"
    aliases: ClassVar[tuple[str, ...]] = ("dynamic_programming",)
    source = "Bellman 1957; Fan et al., DAPPLE (PPoPP 2021), section 4"
    proves = (
        "of each plan no layer split for which all ranks have room has a less busy rank, and no plan of the space, these splits included, "
        "that fits is better"
    )

    def prepared(self, space: Space) -> Space:
        """See `Strategy.prepared`."""
        if space.job.plan.layer_split is not None:
            raise SpecError(
                "strategy dp chooses the layer split, but plan.layer_split is fixed. Way out: leave it out, or --strategy exact"
            )
        given = space.ranges.get(SPLIT, (BALANCED,))
        return replace(space, ranges={**space.ranges, SPLIT: tuple(dict.fromkeys((*given, FITTED)))})
