"""Placements as others write them, and back.

    here                     OneFlow     PyTorch DTensor    JAX PartitionSpec     MindSpore tensor_map
    Shard("ffn") on cols     S(1)        Shard(1)           (None, "cols")        (-1, 0)
    REPLICATE                B           Replicate()        None                  -1
    PARTIAL                  P           Partial()          -                     -

OneFlow and DTensor have one word per mesh axis; JAX and MindSpore one entry per dimension of the tensor: mesh axes by name, or by number
counted from the last axis of the mesh, -1 for none, several as a tuple.
Sources: Yuan et al., arXiv 2110.15032, section 3.1; torch.distributed.tensor.placement_types; jax.sharding.PartitionSpec;
mindspore.Layout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from simulator.errors import LayoutError, SpecError
from simulator.partition.layout import PARTIAL, REPLICATE, Mesh, Placement, Shard
from simulator.workload.graph import Tensor

__all__ = [
    "from_dtensor",
    "from_partition_spec",
    "from_sbp",
    "from_tensor_map",
    "to_dtensor",
    "to_partition_spec",
    "to_sbp",
    "to_tensor_map",
]

Placements = Mapping[str, Placement]
Entry = str | tuple[str, ...] | None
_WORDS = {
    "sbp": (
        re.compile(r"[Ss]\(?(\d{1,3})\)?"),
        {"B": REPLICATE, "P": PARTIAL, "PARTIALSUM": PARTIAL, "P(SUM)": PARTIAL},
    ),
    "dtensor": (re.compile(r"(?i:shard)\((?:dim=)?(\d{1,3})\)"), {"REPLICATE()": REPLICATE, "PARTIAL()": PARTIAL}),
}


def to_sbp(tensor: Tensor, placements: Placements, mesh: Mesh) -> list[str]:
    """Return OneFlow's words, one per mesh axis.

    >>> from simulator.workload.graph import Dim
    >>> w = Tensor("w", (Dim("hidden", 8), Dim("ffn", 16)), 2.0, "weight")
    >>> to_sbp(w, {"cols": Shard("ffn")}, (("rows", 2), ("cols", 4)))
    ['B', 'S(1)']
    """
    return [_word(tensor, placements.get(axis, REPLICATE), "S({})", "B", "P") for axis, _ in mesh]


def from_sbp(tensor: Tensor, words: Sequence[str], mesh: Mesh) -> dict[str, Placement]:
    """Return placements of OneFlow's words.

    Raises:
        SpecError: a word is none, or their number is not that of the mesh axes.
    """
    return _read("sbp", tensor, words, mesh)


def to_dtensor(tensor: Tensor, placements: Placements, mesh: Mesh) -> list[str]:
    """Return PyTorch's words, one per mesh axis.

    Raises:
        LayoutError: a dimension is cut by mesh axes in another order than the mesh has them, which DTensor does not say.
    """
    _check_order(tensor, placements, mesh)
    return [_word(tensor, placements.get(axis, REPLICATE), "Shard({})", "Replicate()", "Partial()") for axis, _ in mesh]


def from_dtensor(tensor: Tensor, words: Sequence[str], mesh: Mesh) -> dict[str, Placement]:
    """Return placements of PyTorch's words; errors as of `from_sbp`."""
    return _read("dtensor", tensor, words, mesh)


def to_partition_spec(tensor: Tensor, placements: Placements) -> tuple[Entry, ...]:
    """Return the entries of JAX' PartitionSpec, one per dimension.

    Raises:
        LayoutError: the tensor is a sum in terms, which it does not say.
    """
    out: list[Entry] = []
    for axes in _by_dimension(tensor, placements, "JAX' PartitionSpec"):
        out.append(None if not axes else axes[0] if len(axes) == 1 else tuple(axes))
    return tuple(out)


def from_partition_spec(tensor: Tensor, spec: Sequence[Entry], mesh: Mesh) -> dict[str, Placement]:
    """Return placements of JAX' entries; dimensions behind the last one are whole.

    Raises:
        SpecError: an axis is not the mesh's, or there are more entries than dimensions.
    """
    if len(spec) > len(tensor.dims):
        raise SpecError(f"{tensor.name!r} has {len(tensor.dims)} dimensions, but its PartitionSpec {len(spec)} entries")
    out: dict[str, Placement] = {}
    for dim, entry in zip(tensor.dims, spec, strict=False):
        for axis in (entry,) if isinstance(entry, str) else entry or ():
            _known(axis, tensor, mesh, out)
            out[axis] = Shard(dim.name)
    return out


def to_tensor_map(tensor: Tensor, placements: Placements, mesh: Mesh) -> tuple[int | tuple[int, ...], ...]:
    """Return MindSpore's tensor_map over the mesh as device_matrix; errors as of `to_partition_spec`."""
    number = {axis: len(mesh) - 1 - i for i, (axis, _) in enumerate(mesh)}
    out: list[int | tuple[int, ...]] = []
    for axes in _by_dimension(tensor, placements, "MindSpore's tensor_map"):
        out.append(-1 if not axes else number[axes[0]] if len(axes) == 1 else tuple(number[axis] for axis in axes))
    return tuple(out)


def from_tensor_map(tensor: Tensor, entries: Sequence[int | Sequence[int]], mesh: Mesh) -> dict[str, Placement]:
    """Return placements of MindSpore's tensor_map; errors as of `from_partition_spec`."""
    names = [axis for axis, _ in reversed(mesh)]

    def named(entry: int | Sequence[int]) -> tuple[str, ...]:
        numbers = (entry,) if isinstance(entry, int) else tuple(entry)
        if any(not -1 <= n < len(names) for n in numbers):
            raise SpecError(f"{tensor.name!r}: tensor_map counts the {len(names)} mesh axes from 0, got {entry}")
        return tuple(names[n] for n in numbers if n >= 0)

    return from_partition_spec(tensor, [named(entry) or None for entry in entries], mesh)


def _word(tensor: Tensor, placement: Placement, shard: str, whole: str, term: str) -> str:
    if isinstance(placement, Shard):  # "?": of a dimension that an operation does not see
        names = [d.name for d in tensor.dims]
        return shard.format(names.index(placement.dim) if placement.dim in names else "?")
    return term if placement == PARTIAL else whole


def _read(whose: str, tensor: Tensor, words: Sequence[str], mesh: Mesh) -> dict[str, Placement]:
    pattern, others = _WORDS[whose]
    if len(words) != len(mesh):
        raise SpecError(f"{tensor.name!r}: one word per mesh axis, but there are {len(words)} for {len(mesh)} axes")
    out: dict[str, Placement] = {}
    for (axis, _), word in zip(mesh, words, strict=True):
        plain = word.strip()
        found = pattern.fullmatch(plain)
        if found and int(found.group(1)) < len(tensor.dims):
            out[axis] = Shard(tensor.dims[int(found.group(1))].name)
        elif plain.upper() in others:
            if others[plain.upper()] == PARTIAL:
                out[axis] = PARTIAL
        else:
            last = len(tensor.dims) - 1
            known = (
                f"S(0) to S({last}), B, P" if whose == "sbp" else f"Shard(0) to Shard({last}), Replicate(), Partial()"
            )
            raise SpecError(f"{tensor.name!r} on mesh axis {axis!r}: expected {known}, got {word[:40]!r}")
    return out


def _by_dimension(tensor: Tensor, placements: Placements, what: str) -> list[list[str]]:
    for axis, placement in placements.items():
        if placement == PARTIAL:
            raise LayoutError(
                f"{what} says of a tensor how it is divided, but {tensor.name!r} is a sum in terms on mesh axis {axis!r}. "
                "Nearest: add it up first"
            )
    return [[a for a, p in placements.items() if p == Shard(d.name)] for d in tensor.dims]


def _check_order(tensor: Tensor, placements: Placements, mesh: Mesh) -> None:
    order = [axis for axis, _ in mesh]
    for dim, axes in zip(
        tensor.dims, _by_dimension(tensor, {a: p for a, p in placements.items() if p != PARTIAL}, ""), strict=True
    ):
        if axes != sorted(axes, key=order.index):
            raise LayoutError(
                f"DTensor cuts a dimension by mesh axes in the order of the mesh, but {dim.name} of {tensor.name!r} lies on "
                f"{', then '.join(axes)}. Nearest: a mesh with these axes in this order"
            )


def _known(axis: str, tensor: Tensor, mesh: Mesh, taken: Placements) -> None:
    if axis not in dict(mesh):
        raise SpecError(f"{tensor.name!r}: the mesh has axes {', '.join(a for a, _ in mesh)}, got {axis!r}")
    if axis in taken:
        raise LayoutError(
            f"mesh axis {axis!r} divides one dimension of {tensor.name!r}, got two. Nearest: one of them whole"
        )
