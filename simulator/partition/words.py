"""A layout in a user's words: the mesh, and which dimension lies on which of its axes.

rows=8,cols=8                       a mesh; ranks of its last axis are neighbours
batch=rows, ffn=cols, heads=cols    what lies on it; a dimension on two axes is named twice
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from simulator.errors import SpecError, UnknownNameError
from simulator.partition.layout import Layout, Mesh, Rule, rule
from simulator.partition.placements import HEADS, tensors_of
from simulator.workload.graph import LayerGraph

__all__ = [
    "DIMENSIONS",
    "MOST_RANKS",
    "batch_ranks",
    "check_words",
    "dimension",
    "layout_of",
    "read_map",
    "read_mesh",
    "rules_of",
]


MOST_RANKS = 10**7
"""Ranks of the largest mesh."""

_TOKENS = ("copies", "expert_rows")
"""Rows of all sequences one behind the other: they lie where sequences and tokens do."""

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "batch": ("batch", "chunks", *_TOKENS),
    "sequence": ("sequence", "source_sequence", "distances", *_TOKENS),
    "heads": HEADS,
    "ffn": ("ffn", "expert_ffn"),
    "vocabulary": ("vocabulary",),
    "hidden": ("hidden",),
    "experts": ("experts",),
}
"""A user's dimension -> dimensions of the graphs of layers; any other is known by its own name."""

_WORDS = {
    "batch": "batch_size",
    "sequence": "seq length sequence_length seq_len",
    "heads": "head num_heads attention_heads",
    "ffn": "d_ff ffn_hidden intermediate mlp",
    "vocabulary": "vocab vocab_size",
    "hidden": "d_model embed hidden_size model",
    "experts": "expert",
}
_MEANT = {word: name for name, words in _WORDS.items() for word in words.split()}


def read_mesh(text: str) -> Mesh:
    """Return a mesh written NAME=N,NAME=N.

    Raises:
        SpecError: it is not written so, an axis is named twice, or it has too many ranks.

    >>> read_mesh("rows=2,cols=4")
    (('rows', 2), ('cols', 4))
    """
    found: dict[str, int] = {}
    for word in text.split(","):
        name, equals, size = (part.strip() for part in word.partition("="))
        if not (equals and name.isidentifier()):
            raise SpecError(f"--mesh: expected NAME=N,NAME=N such as rows=8,cols=8, got {text[:80]!r}")
        if not (size.isascii() and size.isdigit() and size.strip("0")):
            raise SpecError(f"--mesh: axis {name!r} has a whole number of ranks, 1 or more, got {size[:40]!r}")
        if name in found:
            raise SpecError(f"--mesh: axis {name!r} is there twice")
        found[name] = int(size[:40])
    if math.prod(found.values()) > MOST_RANKS:
        raise SpecError(f"--mesh: a mesh has at most {MOST_RANKS:,} ranks, got {text[:80]}")
    return tuple(found.items())


def read_map(texts: Iterable[str], mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """Return dimension -> axes of what is written DIM=NAME.

    Raises:
        SpecError: it is not written so, or a dimension lies on an axis twice.
        UnknownNameError: the mesh has no such axis.

    >>> read_map(["batch=rows", "d_ff=cols"], (("rows", 2), ("cols", 4)))
    {'batch': ('rows',), 'ffn': ('cols',)}
    """
    out: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, axis = (part.strip() for part in text.partition("="))
        if not (name and equals and axis):
            raise SpecError(f"--map: expected DIM=NAME such as ffn=cols, got {text[:80]!r}")
        known = dimension(name)
        out[known] = (*out.get(known, ()), axis)
    check_words(out, mesh, "--map")
    return out


def check_words(maps: Mapping[str, Sequence[str]], mesh: Mesh, place: str) -> None:
    """Refuse axes that the mesh lacks, and a dimension that lies on one twice; errors as of `read_map`."""
    axes = [axis for axis, _ in mesh]
    for name, on in maps.items():
        for axis in on:
            if axis not in axes:
                raise UnknownNameError("mesh axis", axis, axes)
            if list(on).count(axis) > 1:
                raise SpecError(f"{place}: {name} lies on mesh axis {axis!r} twice. Nearest: {name}={axis} once")


def dimension(name: str) -> str:
    """Return the name by which a dimension is known here.

    >>> dimension("d_model"), dimension("vocab"), dimension("ffn")
    ('hidden', 'vocabulary', 'ffn')
    """
    return _MEANT.get(name, name)


def rules_of(maps: Mapping[str, Sequence[str]]) -> tuple[Rule, ...]:
    """Return the rules of a layout: experts and their rows first, then one rule per axis, so that none is used twice."""
    experts = maps.get("experts", ())
    first = [rule(axis, name) for axis in experts for name in ("experts", "expert_rows")]
    on: dict[str, list[str]] = {}
    for name, axes in maps.items():
        for axis in axes if name != "experts" else ():
            on.setdefault(axis, []).extend(DIMENSIONS.get(name, (name,)))
    return (*first, *(rule(axis, *dims) for axis, dims in on.items()))


def layout_of(maps: Mapping[str, Sequence[str]], mesh: Mesh, graphs: Iterable[LayerGraph]) -> Layout:
    """Return the layout that lays dimensions on axes.

    Raises:
        UnknownNameError: no tensor of the graphs has such a dimension.
    """
    there = {one for graph in graphs for t in tensors_of(graph) for d in t.dims for one in (d.name, d.serves) if one}
    for dim in maps:
        if not there & set(DIMENSIONS.get(dim, (dim,))):
            known = {user for user, names in DIMENSIONS.items() if there & set(names)}
            raise UnknownNameError("dimension of this model", dim, known | there)
    return Layout("map", mesh, rules_of(maps))


def batch_ranks(maps: Mapping[str, Sequence[str]], mesh: Mesh) -> int:
    """Return how many parts the sequences of a batch are cut into."""
    sizes = dict(mesh)
    return math.prod(sizes[axis] for axis in maps.get("batch", ()))
