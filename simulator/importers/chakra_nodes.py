"""Bytes of Chakra execution traces as nodes: the schema of today (proto3) and the one before October 2023 (proto2).

A file is messages behind their lengths, as `chakra_wire` writes them.  Source of both: mlcommons/chakra, et_def.proto, at 1.0.0 and
at its version 0.0.3, which had `parent` for dependencies, another numbering of collectives, and attributes with a field per type.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import SpecError
from simulator.importers.chakra_wire import COLLECTIVE, COLLECTIVES

__all__ = ["MOST_NODES", "Node", "WireError", "messages", "nodes_of"]

MOST_NODES = 700_000
"""More of a usual size do not fit into the bytes of a file that is read."""
_KINDS = {number: name for name, number in COLLECTIVES.items()} | {8: "reduce_scatter", 9: "barrier"}
_OLD_KINDS = {0: "all_reduce", 1: "all_to_all", 2: "all_gather", 3: "reduce_scatter", 4: "broadcast"}
_SIGNED, _FLOATING, _TEXTS = {7, 9}, {3: "<d", 5: "<f"}, {29}
_ZIGZAG = {15, 17}
_OLD_ATTRIBUTES = 11
"""Field of a node that only the old schema has."""


class WireError(ValueError):
    """Bytes that are no message; its text says why."""


@dataclass(slots=True)
class Node:
    """A node of a trace.

    Args:
        kind: number of its type (`chakra_wire.COMPUTE`, ...).
        start, microseconds: 0 = not said.
        waits: for how many nodes.
        attributes: name -> number, truth value or text; lists stay bytes.
        collective: of a collective, ours; "" = of another number.
    """

    name: str = ""
    kind: int = 0
    start: int = 0
    microseconds: float = 0.0
    waits: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    collective: str = ""

    def complete(self, old: bool = False) -> None:
        """Set what stands in attributes: which collective, and a duration of the old schema."""
        if self.kind == COLLECTIVE:
            number = self.attributes.get("comm_type", -1)
            number = 0 if number is None else number  # a number that is 0 may be left out
            self.collective = (_OLD_KINDS if old else _KINDS).get(number, "") if isinstance(number, int) else ""
        runtime = self.attributes.get("runtime")
        if old and isinstance(runtime, int | float):
            self.microseconds = max(0.0, float(runtime))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise WireError("a number without an end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a file, each with the place of its length.

    Raises:
        WireError: a length reaches beyond the end.
    """
    at = 0
    while at < len(data):
        size, start = _varint(data, at)
        if start + size > len(data):
            raise WireError(f"byte {at}: a message of {size:,} bytes, but {len(data) - start:,} are left")
        yield at, data[start : start + size]
        at = start + size


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: number, and an int or bytes."""
    at, end = 0, len(message)
    while at < end:
        key = message[at]
        at += 1
        if key > 127:
            key, at = _varint(message, at - 1)
        wire = key & 7
        if wire == 0:
            value: Any = message[at] if at < end else 128
            at += 1
            if value > 127:
                value, at = _varint(message, at - 1)
        elif wire == 2:
            size, at = _varint(message, at)
            value = message[at : at + size]
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value = message[at : at + size]
            at += size
        else:
            raise WireError(f"a field of wire type {wire}, which nobody writes")
        if at > end:
            raise WireError("a field that reaches beyond its message")
        yield key >> 3, value


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise WireError("a number where a text belongs")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireError("a text that is not UTF-8") from None


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise WireError("a text where a number belongs")
    return value


def _attribute(message: bytes, old: bool) -> tuple[str, Any]:
    name = ""
    value: object = None
    for number, found in _fields(message):
        if number == 1:
            name = _text(found)
        elif old and number in (4, 6):
            value = bool(_number(found)) if number == 4 else _number(found)
        elif old and number in (5, 7, 8):
            value = struct.unpack("<f", found)[0] if number == 5 else _signed(found) if number == 7 else _text(found)
        elif old or number == 2:
            continue  # its type, a list, or a doc string
        elif number in _FLOATING and isinstance(found, bytes) and len(found) == struct.calcsize(_FLOATING[number]):
            value = struct.unpack(_FLOATING[number], found)[0]
        elif number in _SIGNED:
            value = _signed(found)
        elif number in _ZIGZAG:
            value = (_number(found) >> 1) ^ -(_number(found) & 1)
        elif number == 27:
            value = bool(_number(found))
        else:
            value = _text(found) if number in _TEXTS else found
    return name, value


def _signed(value: object) -> int:
    number = _number(value)
    return number - 2**64 if number >= 2**63 else number


def nodes_of(data: bytes, place: str) -> Iterator[tuple[int, Node]]:
    """Yield the nodes of a trace, numbered from 1, the first message aside, which is about the file.

    Raises:
        SpecError: the bytes are no such file, or of too many nodes.
    """
    known: dict[tuple[bytes, bool], tuple[str, object]] = {}
    at = count = -1
    try:
        for place_of_length, message in messages(data):
            at, count = place_of_length, count + 1
            if count:
                yield count, _node(message, known)
            else:
                for _ in _fields(message):
                    pass
            if count > MOST_NODES:
                raise SpecError(f"{place}: has more than {MOST_NODES:,} nodes. Way out: a trace of one step")
    except (WireError, struct.error) as error:
        raise SpecError(
            f"{place}, message {max(count, 0)} at byte {max(at, 0)}: is no Chakra trace ({error})"
        ) from None


def _node(message: bytes, known: dict[tuple[bytes, bool], tuple[str, Any]]) -> Node:
    node, attributes, old, data_waits = Node(), [], False, 0
    for number, value in _fields(message):
        if number == 2:
            node.name = _text(value)
        elif number == 3:
            node.kind = _number(value)
        elif number == 7 and isinstance(value, int):
            node.microseconds = value
        elif number == 6 and isinstance(value, int):
            node.start = value
        elif number in (4, 5):
            waits = 1 if isinstance(value, int) else sum(byte < 128 for byte in value)
            node.waits, data_waits = node.waits + (number == 4) * waits, data_waits + (number == 5) * waits
        elif number in (10, _OLD_ATTRIBUTES):
            old = old or number == _OLD_ATTRIBUTES
            attributes.append((number, value))
    if not node.name:
        raise WireError("a node without a name")
    node.waits += 0 if old else data_waits  # inputs of the old schema
    for number, value in attributes:
        if number == 10 and old:
            continue  # output_types of the old schema
        key = (value, old)
        if key not in known:
            if not isinstance(value, bytes):
                raise WireError("an attribute that is a number")
            pair = _attribute(value, old)
            if len(known) < 10_000:
                known[key] = pair
        else:
            pair = known[key]
        node.attributes[pair[0]] = pair[1]
    node.complete(old)
    return node
