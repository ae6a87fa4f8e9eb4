"""Shapes of XLA values, and how many bytes their buffers take."""

import dataclasses
import functools
import math
from typing import Any

from graphrl.errors import GraphError
from graphrl.graphs.readers.hlo.proto import shape_message

Index = tuple[int, ...]  # of a leaf in a tuple shape: () for what is no tuple, (1, 0) for the first of the second

# PrimitiveType of xla_data.proto: number -> name, bits of an element in memory
_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8), 30: ("s1", 8), 26: ("s2", 8), 21: ("s4", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32),
    5: ("s64", 64), 31: ("u1", 8), 27: ("u2", 8), 22: ("u4", 8), 6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32),
    9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8),
    28: ("f8e4m3", 8), 20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 8), 33: ("f8e8m0fnu", 8), 15: ("c64", 64), 18: ("c128", 128),
    13: ("tuple", 0), 14: ("opaque", 64), 17: ("token", 0), 34: ("buffer", 0),
}  # fmt: skip
_POINTER = 8  # bytes
_TUPLE, _BUFFER = 13, 34
_COMBINED = -(2**63)  # in a tile, `*`: the dimension is one with the next
HOST = 5  # the memory space S(5), XLA's Layout::kHostMemorySpace


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Type and size of a value.

    Attributes:
      dtype: "f32", "pred", ..., or "tuple", "token", "opaque".
      dims: of an array; the upper bound for a dimension of dynamic size.
      bytes: of the buffer that holds it, in whatever memory: an array's elements with the padding of its tiles; of a
        tuple, only its table of pointers (8 bytes each).
      elements: of a tuple.
      layout: an array's dimensions from the fastest varying to the slowest; empty where the module does not say.
      memory_space: as the layout says; 0 is the device's main memory (see `HloModule.device_bytes`).
      tiles: as the layout says, `T(8,128)(2,1)`, the first first.
      leaves: index and shape of everything in it that is no tuple, in order; of an array, itself at `()`.
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
        """Bytes of all leaves together."""
        return sum(leaf.bytes for _, leaf in self.leaves)

    def at(self, index: Index) -> "Shape":
        """The part of a tuple at `index`."""
        return functools.reduce(lambda shape, k: shape.elements[k], index, self)


class Shapes(dict[bytes, Shape]):
    """Shapes by their serialized `ShapeProto`: a module repeats a few hundred of them thousands of times."""

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
        size += 4 * len(dims)  # XLA on the host keeps the real sizes behind the elements
    return Shape(dtype, dims, size, (), order, layout.memory_space, tiles)


def _stored(dims: tuple[int, ...], order: tuple[int, ...], tiles: tuple[tuple[int, ...], ...]) -> int:
    """Elements that an array takes in memory, those that fill up its tiles included.

    After "Tiled layout" of XLA's documentation: a tile splits the fastest varying dimensions into whole tiles, and the
    next tile splits what the one before it gives.
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
    """The least multiple that is no less."""
    return -(-count // multiple) * multiple
