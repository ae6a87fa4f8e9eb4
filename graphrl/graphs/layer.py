"""What an op does to feature maps: what networks see of a layer beside its bytes (EGRL, table 1)."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """Shapes of the largest input and of the first output, and the window that a convolution or pooling slides.

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
