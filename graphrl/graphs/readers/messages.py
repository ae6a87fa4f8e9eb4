"""Protobuf message classes from tables, for formats whose own classes no package ships.

Protobuf's C parser is about fifty times as fast as a parser in Python. Fields that are not in a table stay in a message
as unknown fields, which parsing keeps and serialising writes back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

Table = Mapping[str, Mapping[str, str]]

_SCALARS = ("bool", "bytes", "float", "int32", "int64", "string")


def message_classes(
    package: str, table: Table, *, enums: Mapping[str, Sequence[str]] | None = None, syntax: str = "proto3"
) -> dict[str, Any]:
    """Creates protobuf message classes by name, in a separate pool, as the default one may contain the real messages.

    Args:
      package: protobuf package of the messages.
      table: {message: {field: "number type"}}, with * after the type of a repeated field; types are protobuf's scalars,
        or messages and enums here.
      enums: names of the values, from 0.
      syntax: "proto2" for fields that distinguish absence from the default value.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for enum, values in (enums or {}).items():
        descriptor = file.enum_type.add(name=enum)
        for number, value in enumerate(values):
            descriptor.value.add(name=value, number=number)
    for message, fields in table.items():
        descriptor = file.message_type.add(name=message)
        for name, text in fields.items():
            tag, kind = text.split()
            base = kind.removesuffix("*")
            field = descriptor.field.add(name=name, number=int(tag))
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            if base in _SCALARS:
                field.type = getattr(field, f"TYPE_{base.upper()}")
            else:
                field.type = field.TYPE_MESSAGE if base in table else field.TYPE_ENUM
                field.type_name = f".{package}.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}
