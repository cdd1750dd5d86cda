"""Digests of what a prediction is made of, column by column, so that a difference has a name.

A column is a field of the program, the prices, the trace or the figures; of the program's operator tables each column over all tables of
all segments together, e.g. `program.items.pieces.read`.  A digest is over exact bytes (arrays with their types, floats with all bits): two
predictions are the same if and only if all digests are.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import marshal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simulator.program.prices import PriceClass

__all__ = ["digests", "rows"]

_LENGTH = 12
"""Characters kept of each digest."""


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """Fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(getattr(kind, "_fields", ()))


def _plain(thing: Any) -> Any:
    """Return nested tuples of what `marshal` can write, without losing a bit."""
    kind = type(thing)
    if kind in (str, float, int, bool, type(None), bytes):
        return thing
    if kind is PriceClass:
        return str(thing)
    if kind is tuple or kind is list:
        return tuple(map(_plain, thing))
    if kind is np.ndarray:
        return str(thing.dtype), thing.shape, thing.tobytes()
    if isinstance(thing, Mapping):
        return tuple((_plain(key), _plain(value)) for key, value in thing.items())
    if _fields(kind):
        return (kind.__name__, *((name, _plain(getattr(thing, name))) for name in _fields(kind)))
    return repr(thing)


def _leaves(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield (field, value) of a dataclass or mapping; of what a field makes when it is called, its fields."""
    if isinstance(thing, Mapping):
        yield from thing.items()
        return
    for name in _fields(type(thing)):
        value = getattr(thing, name)
        if callable(value):
            yield from _leaves(value())
        else:
            yield name, value


def _columns(parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (column, value) in order; a column of items comes once for each of them."""
    for name, thing in parts.items():
        for field, value in _leaves(thing):
            if field == "blocks":  # made of the same segments as the items
                continue
            if field != "items":
                yield f"{name}.{field}", value
                continue
            for item in value:
                for part, held in _leaves(item):
                    if part in ("first", "second"):
                        continue
                    yield f"{name}.items.{part}", tuple(count for _, count in held) if part == "pieces" else held
                yield from ((f"{name}.items.pieces", table) for table, _ in getattr(item, "pieces", ()))


class _Known:
    """Digests of operator tables met before: many segments and programs share one.  Tables are kept, so that their ids stay theirs."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Any, list[tuple[str, bytes]]]] = {}

    def of(self, table: Any) -> list[tuple[str, bytes]]:
        if id(table) not in self.found:
            self.found[id(table)] = (table, [(field, _digest(value)) for field, value in _leaves(table)])
        return self.found[id(table)][1]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(marshal.dumps(_plain(value), 2), digest_size=16).digest()


_KNOWN = _Known()


def digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """Return column -> digest.

    Args:
        parts: name -> dataclass or mapping, such as {"program": program, "prices": prices}.
    """
    sums: dict[str, Any] = defaultdict(lambda: hashlib.blake2b(digest_size=16))
    for column, value in _columns(parts):
        if column.endswith("items.pieces") and _fields(type(value)):
            for field, data in _KNOWN.of(value):
                sums[f"{column}.{field}"].update(data)
        else:
            sums[column].update(_digest(value))
    return {column: total.hexdigest()[:_LENGTH] for column, total in sums.items()}


def rows(parts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return column -> all that its digest is made of, row by row in words, for a person to compare."""
    out: dict[str, list[str]] = defaultdict(list)
    for column, value in _columns(parts):
        if column.endswith("items.pieces") and _fields(type(value)):
            for field, held in _leaves(value):
                out[f"{column}.{field}"] += [f"{value.name}[{i}] {one!r}" for i, one in enumerate(_listed(held))]
        else:
            out[column] += [repr(one) for one in _listed(value)]
    return out


def _listed(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value.tolist()) if value.ndim else [value.item()]
    return list(value) if isinstance(value, tuple | list) else [value]
