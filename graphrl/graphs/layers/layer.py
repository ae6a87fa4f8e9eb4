"""What an op does to feature maps: what networks see of a layer beside its bytes (EGRL, table 1)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

_MOST = 2**31 - 1


class Window(NamedTuple):
    """What a convolution or pooling slides over its input; of stride, padding and dilation those along x."""

    groups: int
    kernel_x: int
    kernel_y: int
    stride: int
    padding: int
    dilation: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """Shapes of the first input and of the first output, and the window that a convolution or pooling slides.

    Images have width x, height y and channels z; a matrix has its rows as x and its columns as z. 0 is unknown, or
    nothing that the op has.
    """

    batch: int = 0
    input_x: int = 0
    input_y: int = 0
    input_z: int = 0
    output_x: int = 0
    output_y: int = 0
    output_z: int = 0
    groups: int = 0
    kernel_x: int = 0
    kernel_y: int = 0
    stride: int = 0
    padding: int = 0
    dilation: int = 0

    @staticmethod
    def of(input: Sequence[int], output: Sequence[int], window: Window | None = None) -> "Layer":
        """The layer of the shapes of its first input and output, batch first and channels last."""
        batch, *read = _axes(input)
        _, *written = _axes(output)
        values = batch, *read, *written, *((0,) * 6 if window is None else window)
        return Layer(*(min(max(0, int(value)), _MOST) for value in values))


def _axes(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Batch, x, y and z: of more dimensions than four, those between batch and y are part of y."""
    if len(shape) < 3:
        return 1, shape[0] if len(shape) == 2 else 1, 1, shape[-1] if shape else 1
    batch, *between, x, z = shape
    return batch, x, math.prod(between), z
