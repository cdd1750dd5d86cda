"""Process groups as mesh axes: each group of a rank is a part of one grid of all ranks.

groups [0, 1], [0, 2, 4, 6] of 8 ranks  -->  axes (tp, 2), (dp, 4)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from simulator.capture.record import Capture, Event, Group
from simulator.errors import SpecError

__all__ = ["Mesh", "mesh_of"]

Mesh = tuple[tuple[tuple[str, int], ...], tuple[tuple[str, ...], ...]]
"""Axes from innermost to outermost, and per group the axes that it spans."""

_WORDS = {
    "tp": ("tp", "tensor", "model"),
    "cp": ("cp", "context", "sp", "seq"),
    "ep": ("ep", "expert", "efsdp"),
    "pp": ("pp", "pipe", "stage"),
    "replica": ("replicate", "replica"),
    "dp": ("dp", "data", "fsdp", "shard", "ddp"),
}
"""Axis -> what codes call its groups."""
_BY_WORK = {"all_to_all": "ep", "send": "pp", "recv": "pp"}


def mesh_of(capture: Capture) -> Mesh:
    """Return the axes of the world, and which of them each group spans.

    Raises:
        SpecError: a group is no part of a grid of the world's ranks.
    """
    lattices = [_lattice(group, capture.world) for group in capture.groups]
    edges = sorted({1, capture.world, *(edge for lattice in lattices for pair in lattice for edge in pair)})
    for low, high in pairwise(edges):
        if high % low:
            raise SpecError(
                f"groups of {capture.script} are no grid of {capture.world} ranks: one is cut at {low}, another at {high}"
            )
    spans = list(pairwise(edges))
    within = [[any(a <= low and high <= b for a, b in lattice) for low, high in spans] for lattice in lattices]
    names = _names(capture, spans, within)
    axes = tuple((name, high // low) for name, (low, high) in zip(names, spans, strict=True))
    return axes, tuple(tuple(name for name, inside in zip(names, inner, strict=True) if inside) for inner in within)


def _lattice(group: Group, world: int) -> list[tuple[int, int]]:
    """A group as the ranges of strides that it covers: (1, 8) is eight neighbours, (8, 64) every eighth rank of 64.

    >>> _lattice(Group(name="", ranks=(0, 1, 4, 5)), 8)
    [(1, 2), (4, 8)]
    """
    ranks = sorted(group.ranks)
    out: list[tuple[int, int]] = []
    offsets = [rank - ranks[0] for rank in ranks]
    reach = 1
    while reach < len(offsets):
        stride = offsets[reach]
        count = next(
            (n for n in range(1, len(offsets) // reach + 1) if offsets[reach * n : reach * n + 1] != [stride * n]), 0
        )
        count = count or len(offsets) // reach
        out.append((stride, stride * count))
        reach *= count
        if count < 2:
            break
    rebuilt = [0]
    for stride, end in out:
        rebuilt = [step + base for step in range(0, end, stride) for base in rebuilt]
    if sorted(rebuilt) != offsets:
        raise SpecError(f"a process group is no part of a grid: ranks {ranks[:8]} of {world}")
    return out


def _names(capture: Capture, spans: Sequence[tuple[int, int]], within: Sequence[Sequence[bool]]) -> list[str]:
    """A name for each axis: what the script calls a group of just that axis, else what runs over it."""
    sole: list[str] = [""] * len(spans)
    for number, (group, inner) in enumerate(zip(capture.groups, within, strict=True)):
        if sum(inner) == 1:
            place = list(inner).index(True)
            sole[place] = _known(group.name) or sole[place] or _by_work(capture.events, number)
    taken: set[str] = set()
    out = []
    for name in sole:
        free = [n for n in (name, "dp", "replica", "tp", "cp", "ep", "pp", "ring") if n and n not in taken]
        out.append(free[0])
        taken.add(free[0])
    return out


def _known(name: str) -> str:
    """The axis that a group's name speaks of first; copies of shards in any place.

    >>> _known("mesh_dp_shard"), _known("TENSOR_MODEL_PARALLEL_GROUP"), _known("DATA_PARALLEL_GROUP_WITH_CP"), _known("default_pg")
    ('dp', 'tp', 'dp', '')
    """
    words = re.split(r"[^a-z]+", name.lower())
    found = [axis for word in words for axis, known in _WORDS.items() if word in known]
    return "replica" if "replica" in found else next(iter(found), "")


def _by_work(events: Sequence[Event], group: int) -> str:
    """What moves over a group: experts' rows, messages of a pipeline, activations within modules, or states of the model."""
    mine = [event for event in events if event.group == group]
    for event in mine:
        if event.work in _BY_WORK:
            return _BY_WORK[event.work]
    if any(
        event.phase == "forward" and event.work in ("all_reduce", "reduce_scatter") and event.path for event in mine
    ):
        return "tp"
    return "dp"
