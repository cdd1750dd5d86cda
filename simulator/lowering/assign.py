"""Pass 1: which layers each chunk holds (design 5b R).

An explicit split is taken as it is.  Else, when (layers + 2) divides over the chunks, the embedding and the head count as one
layer each; else layers go round evenly and the surplus goes to the middle chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Chunk", "assign_layers"]


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """What one chunk holds: its layers, and whether the embedding comes before or the head after them.

    Chunks that are equal share their blocks.  `sparse` says of each layer whether it has experts; () = none does.  `endings` says of
    each what is special about its recompute (`recompute.py`); () = nothing.
    """

    layers: int
    embedding: bool = False
    head: bool = False
    sparse: tuple[bool, ...] = ()
    endings: tuple[str, ...] = ()

    @property
    def kinds(self) -> list[str]:
        """Kinds of layers in the order they run forward.

        >>> Chunk(layers=2, head=True, sparse=(False, True)).kinds
        ['layer', 'moe layer', 'head']
        """
        middle = ["moe layer" if s else "layer" for s in self.sparse] if self.sparse else ["layer"] * self.layers
        if self.endings:
            middle = [kind + ending for kind, ending in zip(middle, self.endings, strict=True)]
        return ["embedding"] * self.embedding + middle + ["head"] * self.head


def assign_layers(
    layers: int, chunks: int, split: tuple[int, ...] | None = None, sparse: tuple[bool, ...] = ()
) -> tuple[Chunk, ...]:
    """Return what each chunk holds, in order of the global chunk number.

    Args:
        split: layers per chunk, in place of the rule.
        sparse: per layer, whether it has experts; () = none does.

    >>> [c.layers for c in assign_layers(8, 4)], [c.layers for c in assign_layers(10, 4)]
    ([2, 2, 2, 2], [2, 3, 3, 2])
    >>> [c.layers for c in assign_layers(9, 4)]
    [2, 2, 3, 2]
    """
    if split is None:
        if layers % chunks == 0:
            counts = [layers // chunks] * chunks
        elif (layers + 2) % chunks == 0 and chunks > 2:
            even = (layers + 2) // chunks
            counts = [even - 1, *[even] * (chunks - 2), even - 1]
        else:
            base, surplus = divmod(layers, chunks)
            first = (chunks - surplus + 1) // 2
            counts = [base + (first <= i < first + surplus) for i in range(chunks)]
    else:
        counts = list(split)
    last = chunks - 1
    ends = [sum(counts[: i + 1]) for i in range(chunks)]
    held = [sparse[end - n : end] if any(sparse[end - n : end]) else () for n, end in zip(counts, ends, strict=True)]
    return tuple(Chunk(layers=n, embedding=i == 0, head=i == last, sparse=held[i]) for i, n in enumerate(counts))
