"""Pass 1: which layers each chunk holds (design 5b R).

An explicit split is taken as it is.  Else, when multi-token prediction follows, each module counts as two layers and the head as one;
else, when (layers + 2) divides over the chunks, the embedding and the head count as one layer each; else layers go round evenly and
the surplus goes to the middle chunks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from simulator.remembered import hashed_once, kept
from simulator.workload.layer_kind import DECODER_EMBEDDING, MTP_HEAD, MTP_LAYER, layer_kind

__all__ = ["Chunk", "Chunks", "assign_layers", "by_weights", "classes_of", "ends_as_layers"]


@hashed_once
@dataclass(frozen=True, order=True)
class Chunk:
    """What one chunk holds: its layers, and whether the embedding comes before or the head after them.

    Chunks that are equal share their blocks.  `names` says of each layer its kind; () = all are "layer".  `endings` says of each what
    is special about its recompute (`recompute.py`); () = nothing.  `turns`: what a backward runs of them, as (layer, ending), where that
    is more than each once; () = the reverse of the forward.  `decoder`: the layer before which a decoder begins, -1 = none.
    `mtp`: multi-token prediction modules behind the head.
    """

    layers: int
    embedding: bool = False
    head: bool = False
    names: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    turns: tuple[tuple[int, str], ...] = ()
    decoder: int = -1
    mtp: int = 0

    @kept
    def kinds(self) -> tuple[str, ...]:
        """Kinds of layers in the order they run forward.

        >>> Chunk(layers=2, head=True, names=("layer", "moe layer")).kinds
        ('layer', 'moe layer', 'head')
        """
        middle = list(self.names) or ["layer"] * self.layers
        if self.endings:
            middle = [kind + ending for kind, ending in zip(middle, self.endings, strict=True)]
        if self.decoder >= 0:
            middle.insert(self.decoder, DECODER_EMBEDDING)
        ends = ["embedding"] * self.embedding, ["head"] * self.head + [MTP_LAYER, MTP_HEAD] * self.mtp
        return tuple(ends[0] + middle + ends[1])

    @kept
    def backward(self) -> tuple[str, ...]:
        """Kinds of layers in the order they run backward, forwards on the way to others among them.

        >>> Chunk(layers=2, head=True, turns=((1, " kept"), (0, ""))).backward
        ('head', 'layer kept', 'layer')
        """
        if not self.turns:
            return self.kinds[::-1]
        names, before, behind = (
            self.names or ("layer",) * self.layers,
            int(self.embedding),
            self.embedding + self.layers,
        )
        middle = tuple([names[layer] + ending for layer, ending in self.turns])
        return self.kinds[behind:][::-1] + middle + self.kinds[:before]

    @kept
    def different(self) -> tuple[str, ...]:
        """Kinds of layers that run forward or backward, each once."""
        return tuple(dict.fromkeys((*self.kinds, *self.backward)))


@hashed_once
class Chunks(tuple[Chunk, ...]):
    """All chunks of a plan, or some of them: a key again and again, whose hash is that of as many."""


@functools.lru_cache(maxsize=256)
def classes_of(chunks: tuple[Chunk, ...]) -> tuple[tuple[Chunk, ...], tuple[int, ...]]:
    """Return the different chunks, and of each chunk which of them it is.

    >>> classes_of((Chunk(layers=2), Chunk(layers=2), Chunk(layers=1)))[1]
    (0, 0, 1)
    """
    numbers = {chunk: number for number, chunk in enumerate(dict.fromkeys(chunks))}
    return Chunks(numbers), tuple([numbers[chunk] for chunk in chunks])


def ends_as_layers(layers: int, chunks: int, first: int = 1, last: int = 1) -> list[int] | None:
    """Return the layers of each chunk when embedding and head count as so many layers and the first chunks take what does not divide;
    None when there are not enough for all.

    Source: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py.

    >>> ends_as_layers(32, 4), ends_as_layers(80, 8), ends_as_layers(32, 4_000_000_000)
    ([8, 9, 8, 7], [10, 11, 10, 10, 10, 10, 10, 9], None)
    """
    if chunks > layers + first + last:
        return None
    each, more = divmod(layers + first + last, chunks)
    found = [each + (i < more) for i in range(chunks)]
    found[0] -= first
    found[-1] -= last
    return found if min(found) >= 0 else None


def by_weights(layers: int, chunks: int, layer: float, head: float) -> list[int] | None:
    """Return the layers of each chunk when one after the other is filled until it holds more than its part of all weights up to it; None
    when a chunk before the last gets none.

    Args:
        layer, head: weights of one layer and of the head, which is behind the last.

    Source: huggingface/nanotron, src/nanotron/models/base.py, build_model.

    >>> by_weights(32, 4, 1.0, 0.0), by_weights(16, 2, 1.0, 4.0), by_weights(32, 4, 1.0, 2.6)
    ([9, 8, 8, 7], [11, 5], [9, 9, 8, 6])
    """
    found, whole, held = [0] * chunks, layers * layer + head, 0.0
    chunk = 0
    for _ in range(layers):
        found[chunk] += 1
        held += layer
        if held > whole * ((chunk + 1) / chunks) and chunk < chunks - 1:
            chunk += 1
    return found if all(found[:-1]) else None


def _before_prediction(layers: int, chunks: int, modules: int) -> list[int]:
    """Return the layers of each chunk when a multi-token prediction module counts as two layers, for it has a head of its own, and the
    head as one: chunks are filled in order, and what stands behind the last layer takes its place from the last ones.

    Source: NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/recipes/deepseek/deepseek_v3.py, layouts of DeepSeek-V3 for 4 to 16 chunks;
    Megatron-LM's README of its mixture of experts for 32.

    >>> _before_prediction(61, 4, 1), _before_prediction(61, 32, 1)[-3:], _before_prediction(10, 4, 1)
    ([16, 16, 16, 13], [2, 1, 0], [4, 3, 3, 0])
    """
    each, more = divmod(layers + 2 * modules + 1, chunks)
    ends = [min(layers, each * i + min(more, i)) for i in range(chunks)] + [layers]
    return [ends[i + 1] - ends[i] for i in range(chunks)]


def assign_layers(
    layers: int, chunks: int, split: tuple[int, ...] | None = None, names: tuple[str, ...] = (), mtp: int = 0
) -> tuple[Chunk, ...]:
    """Return what each chunk holds, in order of the global chunk number.

    Args:
        split: layers per chunk, in place of the rule.
        names: per layer, its kind; () = all are "layer".  A decoder's embedding comes before its first layer.
        mtp: multi-token prediction modules, on the last chunk (as Megatron-LM and DeepSeek-V3 place them).

    >>> [c.layers for c in assign_layers(8, 4)], [c.layers for c in assign_layers(10, 4)]
    ([2, 2, 2, 2], [2, 3, 3, 2])
    >>> [c.layers for c in assign_layers(9, 4)], [c.layers for c in assign_layers(9, 4, mtp=1)]
    ([2, 2, 3, 2], [3, 3, 3, 0])
    """
    if split is None:
        if mtp:
            counts = _before_prediction(layers, chunks, mtp)
        elif layers % chunks == 0:
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
    first = next((j for j, name in enumerate(names) if layer_kind(name).stack == "cross"), -1)
    plain = not any(name != "layer" for name in names)
    out = []
    for i, n in enumerate(counts):
        start = ends[i] - n
        mine = names[start : ends[i]]
        out.append(
            Chunk(
                layers=n,
                embedding=i == 0,
                head=i == last,
                names=() if plain or all(name == "layer" for name in mine) else mine,
                decoder=first - start if start <= first < ends[i] else -1,
                mtp=mtp if i == last else 0,
            )
        )
    return tuple(out)
