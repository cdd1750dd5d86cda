"""Entries of a graph in JSON: objects in lists, numbers that are checked, ends of edges by the ids of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simulator.errors import SpecError
from simulator.importers.document import Document
from simulator.units import parse, plain_number

__all__ = ["amount", "ends", "entries", "one_object", "seconds", "whole"]

_MOST = 100_000


def one_object(document: Document) -> Mapping[str, object]:
    """Return the object that a file is.

    Raises:
        SpecError: it is none, or too large or deep.
    """
    data: object = document.table
    if not data and document.tree is not None:
        data = document.tree.data
    if not isinstance(data, dict):
        raise SpecError(f"{document.place}: expected one JSON object")
    return data


def entries(data: Mapping[str, Any], key: str, place: str) -> list[Mapping[str, object]]:
    """Return a list of objects.

    Raises:
        SpecError: it is none, or too long.
    """
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found) or len(found) > _MOST:
        raise SpecError(f"{place}: {key} is a list of at most {_MOST:,} objects")
    return found


def ends(entry: Mapping[str, Any], numbers: Mapping[int, int], where: str) -> tuple[int, int]:
    """Return the numbers of the nodes that an edge joins.

    Args:
        numbers: id -> number.

    Raises:
        SpecError: no node has such an id.
    """
    ids = whole(entry, "sourceId", where), whole(entry, "destId", where)
    for one in ids:
        if one not in numbers:
            raise SpecError(f"{where}: no node has the id {one}")
    return numbers[ids[0]], numbers[ids[1]]


def whole(entry: Mapping[str, Any], key: str, where: str) -> int:
    """Return a whole number.

    Raises:
        SpecError: it is none.
    """
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or abs(value) > 2**53:
        raise SpecError(f"{where}: {key} is a whole number, got {str(value)[:40]!r}")
    return int(value)


def amount(entry: Mapping[str, object], key: str, where: str) -> float:
    """Return a number.

    Raises:
        SpecError: it is none.
    """
    value = entry.get(key)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a number, got {str(value)[:40]!r}")
        return plain_number(value)
    except ValueError as error:
        raise SpecError(f"{where}: {key}: {error}") from None


def seconds(entry: Mapping[str, Any], key: str, where: str, unit: str) -> float:
    """Return a time in s.

    Args:
        unit: that the file has it in.

    Raises:
        SpecError: it is none.
    """
    found = amount(entry, key, where)
    if found < 0 or math.isinf(found):
        raise SpecError(f"{where}: {key} is a time, 0 or more, got {found:g}")
    return parse(f"{found!r} {unit}", "s")
