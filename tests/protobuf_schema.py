"""Messages of Google's protobuf that tests read and write, made from a list of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["messages"]

Field = tuple[str, int, int, int]
"""Name, number, type and label; messages are those called Attribute."""


def messages(syntax: str, fields: Mapping[str, Sequence[Field]], *wanted: str) -> tuple[Any, ...]:
    """Return the classes of some messages of a schema."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{syntax}.proto", package="c", syntax=syntax)
    for name, found in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in found:
            one = message.field.add(name=field, number=number, type=kind, label=label)
            if kind == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
                one.type_name = ".c.Attribute"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return tuple(message_factory.GetMessageClass(pool.FindMessageTypeByName(f"c.{name}")) for name in wanted)
