"""How the actions on a chunk are cut, where links are anchored inside them: by FSDP unit, by bucket of gradients, layer by layer."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from simulator.lowering.steps.assign import Chunk
from simulator.workload.layer_kind import is_layer

__all__ = ["BUCKETS", "UNBROKEN", "UNITS", "Cut", "Groups", "cut_chunk", "offloaded", "unit_groups"]

UNBROKEN, UNITS, BUCKETS = 0, 1, 2
Groups = tuple[tuple[str, ...], ...]
Sizes = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """A pass over a chunk, cut.

    Args:
        groups: of each unit or bucket the kinds of its layers.
        pieces: the same of each segment: units and buckets, cut further where activations go to the host layer by layer.
        different: the pieces that differ; `which`: of each piece which of them it is.
        runs: of each that differs, its layers of one kind that follow each other, as (kind, how many).
        kinds: all of these.
        spans: of each unit or bucket its kinds of layers, its first segment and its last.
    """

    groups: Groups
    pieces: Groups
    different: Groups
    which: tuple[int, ...]
    runs: tuple[tuple[tuple[str, int], ...], ...]
    kinds: tuple[str, ...]
    spans: tuple[tuple[tuple[str, ...], int, int], ...]


@functools.lru_cache(maxsize=4096)
def cut_chunk(
    chunk: Chunk,
    direction: str,
    variant: int,
    unit: int,
    sizes: tuple[Sizes, ...],
    buckets: tuple[float, ...],
    offloads: int,
) -> Cut:
    """Return a pass over a chunk, cut.

    Args:
        variant: UNBROKEN, UNITS of so many layers (`unit`), or BUCKETS.
        sizes: of each different kind of layer of the chunk, forward and backward, its parts and the bytes of their gradients.
        buckets: bytes of gradients after which a bucket is full, of each in turn; the last also of all that follow.
        offloads: layers whose activations go to the host.
    """
    parts = dict(zip(chunk.different, sizes, strict=False))
    groups = _groups(chunk, direction, variant, unit, parts, buckets)
    apart = _apart(chunk, direction, groups, offloads)
    pieces = tuple([piece for group in apart for piece in group])
    number = {piece: n for n, piece in enumerate(dict.fromkeys(pieces))}
    ends = list(itertools.accumulate(len(group) for group in apart))
    runs = tuple([_runs(piece) for piece in number])
    return Cut(
        groups=groups,
        pieces=pieces,
        different=tuple(number),
        which=tuple([number[piece] for piece in pieces]),
        runs=runs,
        kinds=tuple(dict.fromkeys(kind for run in runs for kind, _ in run)),
        spans=tuple([(g, end - len(own), end - 1) for g, own, end in zip(groups, apart, ends, strict=True)]),
    )


def _groups(
    chunk: Chunk, direction: str, variant: int, unit: int, sizes: dict[str, Sizes], buckets: tuple[float, ...]
) -> tuple[tuple[str, ...], ...]:
    kinds = _layers_of(chunk, direction)
    if variant == UNBROKEN or not kinds or (variant == UNITS and len(kinds) == 1):
        return (kinds,)
    if variant == UNITS:
        units = unit_groups(chunk.kinds, unit)
        return units if direction == "forward" else tuple(unit[::-1] for unit in reversed(units))
    groups: list[tuple[str, ...]] = []
    current: list[str] = []
    held = 0.0
    for part, size in (one for kind in kinds for one in sizes[kind]):
        current.append(part)
        held += size
        if held >= buckets[min(len(groups), len(buckets) - 1)]:
            groups.append(tuple(current))
            current, held = [], 0.0
    return (*groups, tuple(current)) if current else tuple(groups)


def _apart(
    chunk: Chunk, direction: str, groups: tuple[tuple[str, ...], ...], offloads: int
) -> list[list[tuple[str, ...]]]:
    """Cut groups of layers further: a segment for each layer whose activations go to the host."""
    apart = offloaded(chunk, offloads)
    if not any(apart):
        return [[group] for group in groups]
    flags = iter(apart if direction == "forward" else apart[::-1])
    out: list[list[tuple[str, ...]]] = []
    for group in groups:
        pieces: list[tuple[str, ...]] = []
        joins = False
        for kind in group:
            alone = next(flags)
            if joins and not alone:
                pieces[-1] = (*pieces[-1], kind)
            else:
                pieces.append((kind,))
            joins = not alone
        out.append(pieces)
    return out


def offloaded(chunk: Chunk, layers: int) -> list[bool]:
    """Return of each layer, forward, whether its activations go to the host: so many from the chunk's first one.

    >>> offloaded(Chunk(layers=3, embedding=True), 2)
    [False, True, True, False]
    """
    if not layers:
        return [False] * len(chunk.kinds)
    out, left = [], layers
    for kind in chunk.kinds:
        takes = is_layer(kind) and left > 0
        left -= takes
        out.append(takes)
    return out


@functools.lru_cache(maxsize=1024)
def unit_groups(kinds: tuple[str, ...], layers: int) -> tuple[tuple[str, ...], ...]:
    """Return the FSDP units of a chunk, forward: so many layers each, embedding and head apart; 0 = all in one.

    >>> unit_groups(("embedding", "layer", "layer", "layer", "head"), 2)
    (('embedding',), ('layer', 'layer'), ('layer',), ('head',))
    >>> unit_groups(("layer", "layer", "head"), 0)
    (('layer', 'layer', 'head'),)
    """
    if not layers:
        return (kinds,)
    units: list[tuple[str, ...]] = []
    held = 0
    for kind in kinds:
        if not is_layer(kind):  # an end is a unit of its own
            units.append((kind,))
            held = 0
        elif held and held < layers:
            units[-1] = (*units[-1], kind)
            held += 1
        else:
            units.append((kind,))
            held = 1
    return tuple(units)


def _layers_of(chunk: Chunk, direction: str) -> tuple[str, ...]:
    """Kinds of layers of a chunk in the order they run."""
    return chunk.kinds if direction == "forward" else chunk.backward


def _runs(group: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Layers of one kind that follow each other, as (kind, how many).

    >>> _runs(("layer", "layer", "head"))
    (('layer', 2), ('head', 1))
    """
    return tuple((kind, len(list(same))) for kind, same in itertools.groupby(group))
