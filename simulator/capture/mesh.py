"""Process groups as mesh axes: each group of a rank is a part of one grid of all ranks.

groups [0, 1], [0, 2, 4, 6] of 8 ranks  -->  axes (tp, 2), (dp, 4)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from simulator.capture.record import Capture, Event, Group
from simulator.errors import SpecError

__all__ = ["Axes", "mesh_of"]

Axes = tuple[tuple[str, int], ...]
"""Names and sizes of mesh axes."""

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


def mesh_of(captures: Sequence[Capture]) -> tuple[Axes, tuple[tuple[tuple[str, ...], ...], ...]]:
    """Return the axes of the world, from innermost to outermost, and per capture the axes that each of its groups spans.

    Several captures are the ranks of a pipeline, which is an axis of its own.

    Raises:
        SpecError: a group is no part of a grid of the world's ranks, or those that were recorded are no pipeline in it.
    """
    script, world = captures[0].script, captures[0].world
    ranks = tuple(capture.rank for capture in captures)
    line = _lattice(Group(name="", ranks=ranks), world) if len(ranks) > 1 else []
    grids = [
        [line if line and set(group.ranks) <= set(ranks) else _lattice(group, world) for group in capture.groups]
        for capture in captures
    ]
    lattices = [lattice for grid in grids for lattice in grid]
    edges = sorted({1, world, *(edge for lattice in (*lattices, line) for pair in lattice for edge in pair)})
    for low, high in pairwise(edges):
        if high % low:
            raise SpecError(f"groups of {script} are no grid of {world} ranks: one is cut at {low}, another at {high}")
    spans = list(pairwise(edges))
    known: dict[int, str] = {}
    within = [[[_inside(span, lattice) for span in spans] for lattice in grid] for grid in grids]
    for capture, inner in zip(captures, within, strict=True):
        known = _sole(capture, inner) | known
    if line:
        places = [number for number, span in enumerate(spans) if _inside(span, line)]
        if len(places) > 1:
            raise SpecError(f"ranks {', '.join(map(str, ranks))} of {script} are no one axis of its {world} ranks")
        known = {place: name for place, name in known.items() if name != "pp"} | {places[0]: "pp"}
    names = _names(known, len(spans))
    axes = tuple((name, high // low) for name, (low, high) in zip(names, spans, strict=True))
    told = tuple(
        tuple(tuple(name for name, inside in zip(names, row, strict=True) if inside) for row in inner)
        for inner in within
    )
    return axes, told


def _inside(span: tuple[int, int], lattice: Sequence[tuple[int, int]]) -> bool:
    return any(low <= span[0] and span[1] <= high for low, high in lattice)


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


def _sole(capture: Capture, within: Sequence[Sequence[bool]]) -> dict[int, str]:
    """Place of an axis -> its name: what the script calls a group of just that axis, else what runs over it."""
    out: dict[int, str] = {}
    for number, (group, inner) in enumerate(zip(capture.groups, within, strict=True)):
        if sum(inner) == 1:
            place = list(inner).index(True)
            out[place] = _known(group.name) or out.get(place) or _by_work(capture.events, number)
    return out


def _names(known: Mapping[int, str], count: int) -> list[str]:
    """A name for each axis, none twice: the known one, else the next of those that remain."""
    taken: set[str] = {"pp"} & set(known.values())
    out = []
    for place in range(count):
        name = known.get(place, "")
        free = [n for n in (name, "dp", "replica", "tp", "cp", "ep", "pp", "ring") if n and n not in taken]
        out.append(name if name == "pp" and name not in out else free[0])
        taken.add(out[-1])
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
