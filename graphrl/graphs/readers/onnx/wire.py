"""ONNX files without their weights: a walk over the protobuf wire format that skips what tensors hold.

`onnx.load(load_external_data=False)` still reads every byte that is embedded, and parses it into a second copy. Here
the file is mapped, the walk touches only the headers of large tensors, and what is parsed afterwards has no weights.
Small tensors stay whole: shape inference needs the shapes and axes that they carry. (Encoding: protobuf.dev,
"Encoding"; field numbers: onnx/onnx.proto.)
"""

from graphrl.errors import GraphError
from graphrl.files import Content

MAX_VALUES = 4096  # bytes of one tensor's values that are kept

_CHILDREN = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_VALUES = frozenset((4, 5, 7, 9, 10, 11))  # float_data, int32_data, int64_data, raw_data, double_data, uint64_data
_IS_EXTERNAL = bytes((14 << 3, 1))  # data_location = EXTERNAL: "the values are elsewhere"
_MAX_DEPTH = 100  # what protobuf itself allows


def without_weights(data: Content) -> bytes:
    """The ONNX model `data` with the values of all large tensors dropped and marked as external.

    Raises:
      GraphError: `data` is no whole protobuf message.
    """
    return _copy(data, 0, len(data), "model", 0)


def _copy(data: Content, position: int, end: int, kind: str, depth: int) -> bytes:
    if depth > _MAX_DEPTH:
        raise GraphError(f"broken ONNX: messages nested more than {_MAX_DEPTH} deep")
    children = _CHILDREN[kind]
    parts, copied, dropped = [], position, False
    while position < end:
        start = position
        field, start_of_value, position = _field(data, position, end)
        if position - start_of_value <= MAX_VALUES:
            continue
        if kind == "tensor" and field in _VALUES:
            parts.append(data[copied:start])
            copied, dropped = position, True
        elif field in children:
            body = _copy(data, start_of_value, position, children[field], depth + 1)
            parts += [data[copied:start], _encoded(field << 3 | 2), _encoded(len(body)), body]
            copied = position
    parts.append(data[copied:end])
    return b"".join(parts) + (_IS_EXTERNAL if dropped else b"")


def _field(data: Content, position: int, end: int) -> tuple[int, int, int]:
    """Number, start of the value and end of the field at `position`."""
    tag, value = _varint(data, position, end)
    field, wire = tag >> 3, tag & 7
    if wire == 0:
        stop = _varint(data, value, end)[1]
    elif wire == 2:
        length, value = _varint(data, value, end)
        stop = value + length
    elif wire in (1, 5):
        stop = value + (8 if wire == 1 else 4)
    else:
        raise GraphError(f"broken ONNX: byte {position} starts no protobuf field")
    if field == 0:
        raise GraphError(f"broken ONNX: byte {position} starts no protobuf field")
    if stop > end:
        raise GraphError(f"truncated or broken ONNX: the field at byte {position} ends at {stop}, its message at {end}")
    return field, value, stop


def _varint(data: Content, position: int, end: int) -> tuple[int, int]:
    """The integer at `position`, and where it ends."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise GraphError(f"truncated or broken ONNX: no whole number at byte {position}")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
