"""Columns of numbers as short text: what lets a page hold 50,000 operations in a few hundred kilobytes.

Byte k of all entries of a column stands together (times of neighbours differ in their low bytes only), the whole is deflated
and written in base64.  A browser undoes it with `DecompressionStream("deflate")`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TICKS", "gaps", "lane_starts", "numbers", "pack", "ticks"]

TICKS = 2**32 - 2
"""Parts into which a page cuts the time it shows: an hour to the microsecond, in 32 bits."""
_NAMES = {"u1": "u8", "u2": "u16", "u4": "u32", "f4": "f32", "i4": "i32"}


def ticks(seconds: NDArray[np.float64], whole: float) -> NDArray[np.uint32]:
    """Return times within 0 to `whole` [s] in ticks."""
    part = np.clip(seconds / (whole or 1.0), 0.0, 1.0)
    return np.rint(part * TICKS).astype(np.uint32)


def lane_starts(rank: NDArray[Any], lane: NDArray[Any]) -> NDArray[np.int64]:
    """Return at which of the entries, which are in order of rank and lane, another rank or lane begins."""
    return np.flatnonzero((np.diff(rank, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0))


def gaps(begin: NDArray[np.uint32], starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the ticks from each begin to the next in its lane, modulo 2^32; of the first in a lane from 0.

    Args:
        starts: see `lane_starts`.
    """
    gap = np.diff(begin.astype(np.int64), prepend=0)
    gap[starts] = begin[starts]
    return gap.view(np.uint64).astype(np.uint32)


def numbers(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return whole numbers as a page has them: those below zero, which mean nothing, as the largest there is.

    >>> numbers(np.array([-1, 7], np.int32)).tolist()
    [4294967295, 7]
    """
    return np.where(values < 0, 2**32 - 1, values.astype(np.int64)).astype(np.uint32)


def pack(columns: Mapping[str, NDArray[Any]], level: int = 6) -> dict[str, object]:
    """Return columns as {"columns": [[name, type, length], ...], "data": base64 of the deflated bytes}.

    Args:
        columns: one-dimensional, of 1, 2 or 4 bytes an entry.
        level: of the compression, 1 (quick) to 9 (small).

    >>> packed = pack({"chunk": np.arange(3, dtype=np.uint16)})
    >>> packed["columns"], zlib.decompress(base64.b64decode(packed["data"])).hex()
    ([['chunk', 'u16', 3]], '000102000000')
    """
    heads, parts = [], []
    for name, column in columns.items():
        plain = np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<"), copy=False)
        heads.append([name, _NAMES[plain.dtype.str[1:]], len(plain)])
        parts.append(plain.view(np.uint8).reshape(len(plain), plain.dtype.itemsize).T.tobytes())
    return {"columns": heads, "data": base64.b64encode(zlib.compress(b"".join(parts), level)).decode("ascii")}
