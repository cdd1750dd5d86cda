"""Array forms of the two ways in which papers write orders down: by slots of a time grid, and by repeated phrases."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.schedules.action import KINDS
from simulator.schedules.order import PipelineOrder

__all__ = ["by_phrases", "by_slots"]

_FUSED_FIRST, _FUSED_SECOND = 16, 32
_WORD = re.compile(r"([FBIW])([01])|(W)")


def by_slots(slots: ArrayLike, kind: ArrayLike, chunk: ArrayLike, microbatch: ArrayLike) -> PipelineOrder:
    """Return the order in which every rank runs its actions by slot; arrays are [ranks, actions] or broadcast to it.

    >>> by_slots([[2, 1, 3]], [[1, 0, 1]], 0, [[0, 0, 1]]).to_text()
    '0F0,0B0,0B1\\n'
    """
    grids = np.broadcast_arrays(slots, kind, chunk, microbatch)
    turn = np.argsort(grids[0], axis=1, kind="stable")
    return PipelineOrder.from_grid(*(np.take_along_axis(grid, turn, axis=1) for grid in grids[1:]))


def by_phrases(
    phrases: Sequence[tuple[ArrayLike, str]],
    chunk_of: ArrayLike,
    microbatches: int,
    first: ArrayLike = 0,
) -> PipelineOrder:
    """Return the order of ranks that say phrases a number of times, such as `F1 I1 W1`.

    A word is kind and phase, 0 or 1; forwards of a phase take its microbatches in turn, and so do backwards (B or I).
    `W0` takes the next of its phase; `W` alone takes the oldest I that has no W yet.  `F0&B1` is a fused pair.

    Args:
        phrases: (times per rank [ranks] or one number for all, words).
        chunk_of: [2, ranks] the chunk of each phase.
        microbatches: actions of microbatches from here on (before `first` is added) are left out.
        first: [2, ranks] the number of the first microbatch of each phase.

    Raises:
        ValueError: a word is none.

    >>> by_phrases([(1, "F0 F1"), (1, "I1 I0 W"), (1, "W")], [[0], [1]], 1).to_text()
    '0F0,1F0,1I0,0I0,1W0,0W0\\n'
    """
    chunks = np.asarray(chunk_of)
    ranks = chunks.shape[1]
    code, offsets = _said(phrases, ranks)
    rank = np.repeat(np.arange(ranks), np.diff(offsets))
    kind, phase = code % 16 // 4, code % 4
    number = np.full(len(code), -1, np.int64)
    for turn in (0, 1):
        for kinds in ((0,), (1, 2), (3,)):
            chosen = (phase == turn) & np.isin(kind, kinds)
            running = np.cumsum(chosen)
            number[chosen] = (running - 1 - np.concatenate([[0], running])[offsets[rank]])[chosen]
    late = np.flatnonzero(phase == 2)
    if len(late):
        oldest = np.flatnonzero(kind == 2)
        number[late], phase[late] = number[oldest], phase[oldest]
    starts = np.broadcast_to(np.asarray(first), chunks.shape)
    keep = number < microbatches
    pair = np.where(code & _FUSED_FIRST, 1, np.where(code & _FUSED_SECOND, -1, 0))
    column = np.concatenate([[0], np.cumsum(keep)])
    place = column[:-1][keep]
    return PipelineOrder(
        column[offsets],
        kind[keep].astype(np.int8),
        chunks[phase, rank][keep].astype(np.int32),
        (number + starts[phase, rank])[keep].astype(np.int32),
        pair=np.where(pair[keep] == 0, -1, place + pair[keep]).astype(np.int32),
    )


def _said(phrases: Sequence[tuple[ArrayLike, str]], ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the words of all ranks as codes, and where each rank begins: kind * 4 + phase (2: none), and the pairs."""
    times = [np.broadcast_to(np.asarray(count), (ranks,)) for count, _ in phrases]
    codes = [np.array(_codes(words), np.int64) for _, words in phrases]
    said = [
        np.tile(code, max(0, int(count[rank])))
        for rank in range(ranks)
        for count, code in zip(times, codes, strict=True)
    ]
    lengths = np.array([len(words) for words in said]).reshape(ranks, -1).sum(axis=1)
    return np.concatenate(said), np.concatenate([[0], np.cumsum(lengths)])


def _codes(words: str) -> list[int]:
    out = []
    for word in words.split():
        members = word.split("&")
        marks = (_FUSED_FIRST, _FUSED_SECOND) if len(members) == 2 else (0,)
        for member, mark in zip(members, marks, strict=True):
            found = _WORD.fullmatch(member)
            if found is None:
                raise ValueError(f"a word is kind and phase, such as F0, or W: got {word!r}")
            out.append(KINDS.index(found[1] or found[3]) * 4 + int(found[2] or 2) + mark)
    return out
