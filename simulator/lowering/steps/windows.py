"""When FSDP gathers the weights of a chunk and for how long it keeps them, when it adds gradients and since when they stand.

Every action of a pipeline order either gathers its weights or finds them there.  A *visit* is a run of actions of one chunk in one
direction on one rank, with nothing of another chunk between them:

    gather "microbatch"    F0 F1 F2 F3            each action gathers, and drops at its end
    gather "visit"         F0 F1 F2 F3            F0 gathers, F3 drops (breadth-first pipelines, arXiv 2211.05953)
    not dropped forward    F0 F1 ... B0 B1 B2     F0 gathers, the chunk's last backward drops

Gradients are added after every backward ("microbatch"), after the last one of a visit, or after a chunk's last one ("step").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.structure import Structure

__all__ = ["Windowing", "Windows", "find_windows", "windowing"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Windowing(NamedTuple):
    """What a plan says of it: whether weights are dropped after the forward, when they are gathered and gradients added."""

    reshards: bool
    gather: str
    reduce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Arrays over actions.

    Args:
        gathers: whether weights are gathered before it.
        until: where they are: the action at whose end they are dropped.
        reduces: whether gradients are added after it.
        since: where they are: the action at whose start the unsharded gradients begin to stand.
    """

    gathers: Mask
    until: Ints
    reduces: Mask
    since: Ints

    @property
    def cut(self) -> Mask:
        """Actions that are cut in units."""
        out: Mask = self.gathers | self.reduces
        out[self.until[self.gathers]] = True
        out[self.since[self.reduces]] = True
        return out


def windowing(resolved: ResolvedPlan) -> Windowing | None:
    """Return how a plan gathers and reduces; None where it shards no weights."""
    if resolved.zero_stage != 3:
        return None
    return Windowing(resolved.reshard_after_forward, resolved.fsdp_gather, resolved.fsdp_reduce)


def find_windows(rows: Structure, plan: Windowing) -> Windows:
    """Return the windows of every action of the order."""
    kind = rows.order.kind
    n = len(kind)
    own = np.arange(n)
    uses, completes = kind <= 2, rows.order.completes
    visit = _visits(rows) if "visit" in (plan.gather, plan.reduce) else own
    if not plan.reshards:
        gathers = rows.pattern.first_forward.copy()
        until = _last_of(_homes(rows), rows.pattern.last_backward)
    elif plan.gather == "visit":
        gathers, until = _first_of(visit, uses) == own, _last_of(visit, uses)
    else:
        gathers, until = uses, own
    if plan.reduce == "step":
        return Windows(
            gathers=gathers,
            until=until,
            reduces=rows.pattern.last_backward.copy(),
            since=_first_of(_homes(rows), completes),
        )
    if plan.reduce == "visit":
        reduces, since = (_last_of(visit, completes) == own) & completes, _first_of(visit, completes)
        return Windows(gathers=gathers, until=until, reduces=reduces, since=since)
    return Windows(gathers=gathers, until=until, reduces=completes, since=own)


def _homes(rows: Structure) -> Ints:
    """A number per (lane, chunk) of each action."""
    out: Ints = rows.pattern.lane * rows.placement.chunks + rows.order.chunk.astype(np.int64)
    return out


def _visits(rows: Structure) -> Ints:
    """A number per visit of each action; weight gradients belong to the backward direction."""
    home, rank = _homes(rows), rows.pattern.rank
    backward = rows.order.kind > 0
    fresh = np.ones(len(home), bool)
    fresh[1:] = (home[1:] != home[:-1]) | (rank[1:] != rank[:-1]) | (backward[1:] != backward[:-1])
    return np.cumsum(fresh) - 1


def _last_of(group: Ints, wanted: Mask) -> Ints:
    """Per action: the last one of its group that is wanted; itself where none is."""
    return _extreme(group, np.flatnonzero(wanted))


def _first_of(group: Ints, wanted: Mask) -> Ints:
    """Per action: the first one of its group that is wanted; itself where none is."""
    return _extreme(group, np.flatnonzero(wanted)[::-1])


def _extreme(group: Ints, where: Ints) -> Ints:
    found = np.full(int(group.max(initial=-1)) + 1, -1, np.int64)
    found[group[where]] = where
    out = found[group]
    return np.where(out < 0, np.arange(len(group)), out)
