"""The part of XLA's `HloModuleProto` that graphrl reads, as protobuf message classes built from a table.

No package ships Python classes of XLA's protos, and protobuf's own C parser is some fifty times as quick as a walk in
Python. Field numbers are XLA's (xla/service/hlo.proto, xla/xla_data.proto). What is not in the table stays in a message
as unknown fields, which parsing keeps and serialising writes again. Fields of type `bytes` that are messages in XLA are
those nobody looks into (metadata, literals), or that are the same thousands of times (shapes).
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphrl.errors import GraphError

# message: {field: "number type"}, with * after the type of a repeated field; types are protobuf's or messages here
_TABLE: dict[str, dict[str, str]] = {
    "Tile": {"dimensions": "1 int64*"},
    "Layout": {
        "minor_to_major": "1 int64*",
        "tiles": "6 Tile*",
        "element_size_in_bits": "7 int64",
        "memory_space": "8 int64",
        "dynamic_shape_metadata_prefix_bytes": "15 int64",
        "tail_padding_alignment_in_elements": "16 int64",
    },
    "Shape": {
        "element_type": "2 int32",
        "dimensions": "3 int64*",
        "is_dynamic_dimension": "6 bool*",
        "tuple_shapes": "4 Shape*",
        "layout": "5 Layout",
    },
    "WindowDimension": {
        "size": "1 int64",
        "stride": "2 int64",
        "padding_low": "3 int64",
        "window_dilation": "5 int64",
        "base_dilation": "6 int64",
    },
    "Literal": {"f32s": "8 float*"},
    "Window": {"dimensions": "1 WindowDimension*"},
    "ConvolutionDimensionNumbers": {
        "kernel_spatial_dimensions": "6 int64*",
        "input_batch_dimension": "7 int64",
        "input_feature_dimension": "8 int64",
        "output_feature_dimension": "10 int64",
        "input_spatial_dimensions": "11 int64*",
        "output_spatial_dimensions": "12 int64*",
    },
    "DotDimensionNumbers": {"lhs_contracting_dimensions": "1 int64*"},
    "OutputOperandAliasing": {
        "output_shape_index": "1 int64*",
        "operand_index": "2 int64",
        "operand_shape_index": "3 int64*",
    },
    "Instruction": {
        "name": "1 string",
        "opcode": "2 string",
        "shape": "3 bytes",
        "metadata": "7 bytes",
        "literal": "8 bytes",
        "parameter_number": "9 int64",
        "fusion_kind": "11 string",
        "tuple_index": "13 int64",
        "dimensions": "14 int64*",
        "window": "15 Window",
        "dynamic_slice_sizes": "20 int64*",
        "convolution_dimension_numbers": "16 ConvolutionDimensionNumbers",
        "custom_call_target": "28 string",
        "dot_dimension_numbers": "30 DotDimensionNumbers",
        "fft_length": "32 int64*",
        "id": "35 int64",
        "operand_ids": "36 int64*",
        "control_predecessor_ids": "37 int64*",
        "called_computation_ids": "38 int64*",
        "backend_config": "43 bytes",
        "feature_group_count": "50 int64",
        "batch_group_count": "58 int64",
        "custom_call_has_side_effect": "65 bool",
        "frontend_attributes": "68 bytes",
        "output_operand_aliasing": "74 OutputOperandAliasing*",
        "statistics_viz": "82 bytes",
        "original_value": "88 bytes",
    },
    "Computation": {
        "name": "1 string",
        "instructions": "2 Instruction*",
        "id": "5 int64",
        "root_id": "6 int64",
        "is_fusion_computation": "7 bool",
        "execution_thread": "8 string",
    },
    "Sequence": {"instruction_ids": "1 int64*"},
    "ScheduleEntry": {"key": "1 int64", "value": "2 Sequence"},  # what a map is on the wire
    "Schedule": {"sequences": "1 ScheduleEntry*"},
    "AliasEntry": {
        "output_shape_index": "1 int64*",
        "parameter_number": "2 int64",
        "parameter_shape_index": "3 int64*",
        "kind": "4 int32",
    },
    "InputOutputAlias": {"entries": "1 AliasEntry*"},
    "Module": {
        "name": "1 string",
        "entry_computation_name": "2 string",
        "computations": "3 Computation*",
        "entry_computation_id": "6 int64",
        "schedule": "7 Schedule",
        "input_output_alias": "8 InputOutputAlias",
    },
    "HloProto": {"hlo_module": "1 Module"},
    "BufferAllocation": {
        "is_entry_computation_parameter": "5 bool",
        "parameter_number": "6 int64",
        "parameter_shape_index": "10 int64*",
        "is_parameter_aliased_with_output": "13 bool",
    },
    "BufferAssignment": {"buffer_allocations": "3 BufferAllocation*"},
    "ModuleWithConfig": {"hlo_module": "1 Module"},
    "CpuExecutable": {"hlo_module": "1 ModuleWithConfig", "buffer_assignment": "2 BufferAssignment"},
    "ExecutableAndOptions": {"serialized_executable": "1 CpuExecutable"},
}
_PACKAGE = "graphrl.hlo"
_SCALARS = {
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}


def _classes() -> dict[str, Any]:
    """The message classes by name, in a pool of their own: the default one may hold XLA's real messages."""
    file = descriptor_pb2.FileDescriptorProto(name="graphrl/hlo.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _TABLE.items():
        descriptor = file.message_type.add(name=message)
        for name, text in fields.items():
            number, kind = text.split()
            base = kind.removesuffix("*")
            field = descriptor.field.add(name=name, number=int(number))
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            field.type = _SCALARS.get(base, field.TYPE_MESSAGE)
            if base not in _SCALARS:
                field.type_name = f".{_PACKAGE}.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _TABLE}


_CLASSES = _classes()


def module_message(data: bytes) -> Any:
    """The `HloModuleProto` that `data` holds, alone or inside an `HloProto`.

    Raises:
      GraphError: `data` is neither, or ends too early.
    """
    for outer in ("Module", "HloProto"):
        message = _CLASSES[outer]()
        try:
            message.ParseFromString(data)
        except DecodeError:
            continue
        module = message if outer == "Module" else message.hlo_module
        if module.entry_computation_name or module.entry_computation_id:  # what an HloProto does not have at this place
            return module
    raise GraphError("broken or truncated HLO: must be a whole HloModuleProto or HloProto")


def executable_message(data: bytes) -> tuple[bytes, Any]:
    """What `Client.serialize_executable` of a CPU's client gives: its first bytes, and the `ExecutableAndOptionsProto`
    behind them.

    Raises:
      GraphError: `data` is something else.
    """
    length = shift = size = 0
    while not size or data[size - 1] & 0x80:  # the length of what comes first, in protobuf's way
        length |= (data[size] & 0x7F) << shift
        size, shift = size + 1, shift + 7
    message = _CLASSES["ExecutableAndOptions"]()
    try:
        message.ParseFromString(data[size + length :])
    except DecodeError:
        raise GraphError("this jaxlib serializes executables in another way") from None
    if not message.serialized_executable.hlo_module.hlo_module.computations:
        raise GraphError("this jaxlib serializes executables in another way")
    return data[: size + length], message


def shape_message(data: bytes) -> Any:
    """The `ShapeProto` that `data` holds.

    Raises:
      GraphError: it does not parse.
    """
    return _parsed("Shape", data, "a shape")


def literal_message(data: bytes) -> Any:
    """The `LiteralProto` that `data` holds.

    Raises:
      GraphError: it does not parse.
    """
    return _parsed("Literal", data, "a constant")


def _parsed(kind: str, data: bytes, what: str) -> Any:
    message = _CLASSES[kind]()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise GraphError(f"broken HLO: {what} does not parse") from None
    return message


def replace(field: Any, items: Iterable[Any]) -> None:
    """Gives a repeated field other messages, which may be among those that it holds now."""
    kept = []
    for item in items:  # what a field holds is gone once it is emptied
        copy = type(item)()
        copy.CopyFrom(item)
        kept.append(copy)
    del field[:]
    field.extend(kept)


def in_order(instructions: Sequence[Any], gone: Container[int] = ()) -> list[Any]:
    """Instructions' messages, each moved behind what it waits for, which is no longer any of `gone`."""
    by_id = {i.id: i for i in instructions}
    placed: dict[int, Any] = {}

    def place(i: Any) -> None:
        todo = [i]
        while todo:
            waits = (*todo[-1].operand_ids, *todo[-1].control_predecessor_ids)
            missing = [by_id[k] for k in waits if k in by_id and k not in placed]
            if missing:
                todo += missing
            else:
                done = todo.pop()
                placed[done.id] = done

    for i in instructions:
        i.control_predecessor_ids[:] = [k for k in i.control_predecessor_ids if k not in gone]
    for i in instructions:
        if i.id not in placed:
            place(i)
    return list(placed.values())
