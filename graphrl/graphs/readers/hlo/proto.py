"""The part of XLA's `HloModuleProto` that graphrl reads: protobuf messages, shapes and bytes.

The messages are built from a table (`readers/messages.py`). Field numbers are XLA's (xla/service/hlo.proto,
xla/xla_data.proto). Some messages of XLA are fields of type `bytes` here: those that graphrl does not parse (literals),
and those that repeat thousands of times (shapes, and metadata, which `Sources` parses).

`Shapes` parses shapes, and provides the bytes of the buffers of each value. `Sources` finds the line of the user's code
that an instruction comes from.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphrl.errors import GraphError
from graphrl.graphs.readers.hlo.head import varint
from graphrl.graphs.readers.messages import message_classes

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
    "ScheduleEntry": {"key": "1 int64", "value": "2 Sequence"},  # wire format of a map
    "Schedule": {"sequences": "1 ScheduleEntry*"},
    "AliasEntry": {
        "output_shape_index": "1 int64*",
        "parameter_number": "2 int64",
        "parameter_shape_index": "3 int64*",
        "kind": "4 int32",
    },
    "InputOutputAlias": {"entries": "1 AliasEntry*"},
    "Metadata": {
        "op_name": "2 string",
        "source_file": "3 string",
        "source_line": "4 int32",
        "stack_frame_id": "15 int32",
    },
    "FileLocation": {"file_name_id": "1 int32", "function_name_id": "2 int32", "line": "3 int32"},
    "StackFrame": {"file_location_id": "1 int32", "parent_frame_id": "2 int32"},
    "StackFrames": {
        "file_names": "1 string*",
        "function_names": "2 string*",
        "file_locations": "3 FileLocation*",
        "stack_frames": "4 StackFrame*",
    },
    "Module": {
        "name": "1 string",
        "entry_computation_name": "2 string",
        "computations": "3 Computation*",
        "entry_computation_id": "6 int64",
        "schedule": "7 Schedule",
        "input_output_alias": "8 InputOutputAlias",
        "stack_frame_index": "17 StackFrames",
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
_CLASSES = message_classes("graphrl.hlo", _TABLE)

_TABLES_IN_TEXT = {  # sections of HLO text -> fields of "StackFrames"
    "FileNames": "file_names", "FunctionNames": "function_names", "FileLocations": "file_locations",
    "StackFrames": "stack_frames",
}  # fmt: skip
_IN_FRAMES = ("file_name_id", "function_name_id", "line", "file_location_id", "parent_frame_id")
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python3")  # in paths of files that are not the user's

Index = tuple[int, ...]  # of a leaf in a tuple shape: () if not in a tuple, (1, 0) for the first of the second

# PrimitiveType of xla_data.proto: number -> name, bits of an element in memory
_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8), 30: ("s1", 8), 26: ("s2", 8), 21: ("s4", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32),
    5: ("s64", 64), 31: ("u1", 8), 27: ("u2", 8), 22: ("u4", 8), 6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32),
    9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8),
    28: ("f8e4m3", 8), 20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 8), 33: ("f8e8m0fnu", 8), 15: ("c64", 64), 18: ("c128", 128),
    13: ("tuple", 0), 14: ("opaque", 64), 17: ("token", 0), 34: ("buffer", 0),
}  # fmt: skip
_BITS = dict(_TYPES.values())
_POINTER = 8  # bytes
_TUPLE, _BUFFER = 13, 34
_COMBINED = -(2**63)  # in a tile, `*`: the dimension is merged with the next
HOST = 5  # the memory space S(5), XLA's Layout::kHostMemorySpace


def module_message(data: bytes) -> Any:
    """Parses `data` as an `HloModuleProto`, alone or inside an `HloProto`.

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
        if module.entry_computation_name or module.entry_computation_id:  # not in an HloProto at this place
            return module
    raise GraphError("broken or truncated HLO: must be a whole HloModuleProto or HloProto")


def stack_frames_in(text: bytes) -> bytes:
    """Reads the tables of stack frames in HLO text, which XLA's parser leaves out of the module.

    Returns:
      A serialized `HloModuleProto` with these tables alone, to append to the module's; b"" if the text has none.
    """
    module = _CLASSES["Module"]()
    tables = module.stack_frame_index
    for section, fields in _TABLES_IN_TEXT.items():
        match = re.search(rb"^%b\n((?:\d+ .*\n)+)" % section.encode(), text, re.MULTILINE)
        for line in match[1].decode(errors="replace").splitlines() if match else ():
            content = line.partition(" ")[2]
            if section.endswith("Names"):
                getattr(tables, fields).append(content.strip('"'))
            else:
                numbers = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", content)}
                known = {name: number for name, number in numbers.items() if name in _IN_FRAMES}
                getattr(tables, fields).add(**known)
    frames = tables.stack_frames
    if frames and frames[0].parent_frame_id == 1:  # XLA prints parents one too high
        for frame in frames:
            frame.parent_frame_id -= 1
    return bytes(module.SerializeToString())


def executable_message(data: bytes) -> tuple[bytes, Any]:
    """Parses the output of `Client.serialize_executable` of a CPU client.

    Returns:
      The bytes before the `ExecutableAndOptionsProto`, and that message.

    Raises:
      GraphError: `data` is not such an output.
    """
    length, size = varint(data)  # of the first part
    message = _CLASSES["ExecutableAndOptions"]()
    try:
        message.ParseFromString(data[size + length :])
    except DecodeError:
        raise GraphError("this jaxlib serializes executables in another way") from None
    if not message.serialized_executable.hlo_module.hlo_module.computations:
        raise GraphError("this jaxlib serializes executables in another way")
    return data[: size + length], message


def shape_message(data: bytes) -> Any:
    """Parses `data` as a `ShapeProto`.

    Raises:
      GraphError: it does not parse.
    """
    message = _CLASSES["Shape"]()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise GraphError("broken HLO: a shape does not parse") from None
    return message


def replace(field: Any, items: Iterable[Any]) -> None:
    """Replaces the messages of a repeated field; the new ones may be among the old ones."""
    kept = []
    for item in items:  # messages of a field are invalid once it is emptied
        copy = type(item)()
        copy.CopyFrom(item)
        kept.append(copy)
    del field[:]
    field.extend(kept)


def in_order(instructions: Sequence[Any], removed: Container[int] = ()) -> list[Any]:
    """Sorts instruction messages topologically, each after its operands and control predecessors.

    Control predecessors with ids in `removed` are removed from the messages in place.
    """
    by_id = {i.id: i for i in instructions}
    placed: dict[int, Any] = {}

    def place(i: Any) -> None:
        stack = [i]
        while stack:
            waits = (*stack[-1].operand_ids, *stack[-1].control_predecessor_ids)
            missing = [by_id[k] for k in waits if k in by_id and k not in placed]
            if missing:
                stack += missing
            else:
                done = stack.pop()
                placed[done.id] = done

    for i in instructions:
        i.control_predecessor_ids[:] = [k for k in i.control_predecessor_ids if k not in removed]
    for i in instructions:
        if i.id not in placed:
            place(i)
    return list(placed.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Type, shape and size of a value.

    Attributes:
      dtype: "f32", "pred", ..., or "tuple", "token", "opaque".
      dims: dimensions of an array; a dynamic dimension has its upper bound.
      bytes: size of its buffer, in any memory: an array's elements with the padding of its tiles; of a tuple, only its
        table of pointers (8 bytes each).
      elements: shapes of a tuple's elements.
      layout: indices of an array's dimensions, the fastest varying first; empty if the module does not state it.
      memory_space: from the layout; 0 is the device's main memory (see `HloModule.device_bytes`).
      tiles: from the layout, `T(8,128)(2,1)`, in this order.
      leaves: index and shape of each part that is not a tuple, in order; for an array, the array itself at `()`.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    elements: tuple["Shape", ...] = ()
    layout: tuple[int, ...] = ()
    memory_space: int = 0
    tiles: tuple[tuple[int, ...], ...] = ()
    leaves: tuple[tuple[Index, "Shape"], ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        leaves: tuple[tuple[Index, Shape], ...] = (((), self),)
        if self.dtype == "tuple":
            leaves = tuple(((k, *index), leaf) for k, e in enumerate(self.elements) for index, leaf in e.leaves)
        object.__setattr__(self, "leaves", leaves)

    @property
    def is_tuple(self) -> bool:
        return self.dtype == "tuple"

    @property
    def size(self) -> int:
        """Number of elements of an array."""
        return math.prod(self.dims)

    @property
    def leaf_bytes(self) -> int:
        """Total bytes of all leaves: the size without the tables of pointers."""
        return sum(leaf.bytes for _, leaf in self.leaves)

    @property
    def unpadded_bytes(self) -> int:
        """Bytes of an array's elements, without the padding of tiles."""
        return -(-self.size * _BITS[self.dtype] // 8)

    def at(self, index: Index) -> "Shape":
        """Returns the part of a nested tuple at `index`."""
        return functools.reduce(lambda shape, k: shape.elements[k], index, self)


class Source(NamedTuple):
    """Origin of an instruction.

    Attributes:
      op_name: jax's scopes and primitive, e.g. "jit(step)/transpose(jvp(layer))/dot_general"; "" if unknown.
      file, line: place in the user's code; "" and 0 if unknown.
      function: name of the function there.
    """

    op_name: str = ""
    file: str = ""
    line: int = 0
    function: str = ""


class Sources(dict[bytes, Source]):
    """Cache of the origins of a module's instructions by their serialized `OpMetadata`."""

    def __init__(self, module: Any) -> None:
        """Args: `module`, the `HloModuleProto`, which has the table of stack frames."""
        self._tables = module.stack_frame_index

    def __missing__(self, data: bytes) -> Source:
        message = _CLASSES["Metadata"]()
        try:
            message.ParseFromString(data)
        except DecodeError:
            raise GraphError("broken HLO: metadata of an instruction does not parse") from None
        places = list(self._places(message.stack_frame_id))
        if message.source_file:
            places.append((message.source_file, message.source_line, ""))
        own = (place for place in places if not any(part in place[0] for part in _LIBRARIES))
        file, line, function = next(own, places[0] if places else ("", 0, ""))
        source = self[data] = Source(message.op_name, file, line, function)
        return source

    def _places(self, frame: int) -> Iterator[tuple[str, int, str]]:
        """Yields file, line and function of a stack frame and of its callers, the innermost first."""
        tables, visited = self._tables, set[int]()
        while 0 < frame <= len(tables.stack_frames) and frame not in visited:
            visited.add(frame)
            at = tables.stack_frames[frame - 1]
            if not 0 < at.file_location_id <= len(tables.file_locations):
                return
            place = tables.file_locations[at.file_location_id - 1]
            names = (tables.file_names, place.file_name_id), (tables.function_names, place.function_name_id)
            file, function = (table[k - 1] if 0 < k <= len(table) else "" for table, k in names)
            yield file, place.line, function
            frame = at.parent_frame_id


class Shapes(dict[bytes, Shape]):
    """Cache of parsed shapes by serialized `ShapeProto`: a module repeats a few hundred of them thousands of times."""

    def __missing__(self, data: bytes) -> Shape:
        shape = self[data] = _shape(shape_message(data))
        return shape


def _shape(message: Any) -> Shape:
    if message.element_type not in _TYPES:
        raise GraphError(f"broken HLO: a shape has the unknown element type {message.element_type}")
    if message.element_type == _BUFFER and len(message.tuple_shapes) == 1:  # a wrapper around an array
        return _shape(message.tuple_shapes[0])
    dtype, bits = _TYPES[message.element_type]
    dims, layout = tuple(message.dimensions), message.layout
    if any(d < 0 for d in dims):
        raise GraphError(f"broken HLO: a shape has the dimensions {dims}: must be at least 0")
    elements = tuple(map(_shape, message.tuple_shapes))
    if message.element_type == _TUPLE:
        return Shape(dtype, (), _POINTER * len(elements), elements)
    tiles = tuple(tuple(tile.dimensions) for tile in layout.tiles)
    order = tuple(layout.minor_to_major)
    count = _stored(dims, order, tiles)
    count = _rounded(count, max(1, layout.tail_padding_alignment_in_elements))
    size = -(-count * (layout.element_size_in_bits or bits) // 8) + layout.dynamic_shape_metadata_prefix_bytes
    if any(message.is_dynamic_dimension):
        size += 4 * len(dims)  # XLA on the host stores the real sizes after the elements
    return Shape(dtype, dims, size, (), order, layout.memory_space, tiles)


def _stored(dims: tuple[int, ...], order: tuple[int, ...], tiles: tuple[tuple[int, ...], ...]) -> int:
    """Counts the elements that an array takes in memory, including the padding of its tiles.

    As in "Tiled layout" of XLA's documentation, a tile splits the fastest varying dimensions into whole tiles, and the
    next tile splits the result of the previous one.
    """
    if 0 in dims:
        return 0
    places = order[::-1] if sorted(order) == list(range(len(dims))) else range(len(dims))
    sizes = [dims[k] for k in places]  # from the slowest varying on
    for tile in tiles:
        if any(t < 1 and t != _COMBINED for t in tile) or tile[-1:] == (_COMBINED,):
            raise GraphError(f"broken HLO: a layout has the tile {tile}: its dimensions must be at least 1")
        sizes = [1] * (len(tile) - len(sizes)) + sizes
        rest = len(sizes) - len(tile)
        split, whole = [], 1
        for size, t in zip(sizes[rest:], tile, strict=True):
            whole *= size
            if t != _COMBINED:
                split.append((whole, t))
                whole = 1
        sizes = sizes[:rest] + [-(-size // t) for size, t in split] + [t for _, t in split]
    return math.prod(sizes)


def _rounded(count: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple
