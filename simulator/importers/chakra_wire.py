"""Chakra execution traces as bytes: a message per node behind its length, in Protocol Buffers' encoding.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (fields and enumerations) and src/third_party/utils/protolib.py (a length as a
varint before each message).  The few messages that are needed are written by hand: four field numbers of a node and three kinds
of attribute do not call for a compiler of schemas.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "COLLECTIVE", "COLLECTIVES", "COMPUTE", "LOAD", "RECEIVE", "SEND", "STORE", "attribute", "collective_type", "framed", "metadata",
    "node", "rank_number",
]  # fmt: skip

LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = 2, 3, 4, 5, 6, 7
"""Types of nodes."""
COLLECTIVES = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7,
}  # fmt: skip
"""Our collectives -> Chakra's."""
_VERSION = b"0.0.4"
_INT64, _UINT64, _BOOL, _STRING, _INT32 = 9, 13, 27, 29, 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def attribute(name: str, value: int | bool | str, field: int = 0) -> bytes:
    """Return an attribute of a node: a truth value, a text, or a number (unsigned unless the field says otherwise)."""
    if isinstance(value, bool):
        body = _number(_BOOL, int(value))
    elif isinstance(value, str):
        body = _bytes(_STRING, value.encode())
    else:
        body = _number(field or _UINT64, value)
    return _bytes(10, _bytes(1, name.encode()) + body)


def node(number: int, name: str, kind: int, after: Iterable[int], microseconds: int, attributes: bytes) -> bytes:
    """Return a node.

    Args:
        after: numbers of the nodes whose data it waits for.
        microseconds: its duration; 0 = to be found by the simulator.
        attributes: as `attribute` makes them, joined.
    """
    waits = b"".join(_varint(n) for n in after)
    return b"".join(
        (
            _number(1, number),
            _bytes(2, name.encode()),
            _number(3, kind),
            _bytes(5, waits) if waits else b"",
            _number(7, microseconds) if microseconds else b"",
            attributes,
        )
    )


def framed(message: bytes) -> bytes:
    """Return a message behind its length."""
    return _varint(len(message)) + message


def metadata() -> bytes:
    """Return the message that opens a file."""
    return framed(_bytes(1, _VERSION))


def collective_type(name: str) -> bytes:
    """Return the attribute that says which collective a node is; the feeder reads it as a signed number."""
    return attribute("comm_type", COLLECTIVES[name], _INT64)


def rank_number(name: str, value: int) -> bytes:
    """Return an attribute that the feeder reads as a 32-bit number: comm_src, comm_dst, comm_tag."""
    return attribute(name, value, _INT32)
