"""What XLA's compiler for GPUs writes beside the operands and results of kernels, which take them in fewer forms.

- cuDNN pads both sides of a picture alike: where a convolution does not, the picture is copied with its padding, in its
  gradients too.
- cuBLAS wants a product's batch, free and contracted dimensions each in a row and in one order: other operands are
  transposed first.
- The gradient of a maximum of windows is scattered into zeros, which are written when the step begins, as its operand's
  other side is.
"""

from collections.abc import Sequence
from typing import Any

from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result
from graphrl.graphs.readers.jaxpr.flops import array_bytes

Value = Result | Outside
Order = tuple[int, ...]  # of a value's dimensions, outermost first; () for the order that they have
SCATTERED = 2  # arrays like its result that a gradient of a maximum of windows needs all the time


def padded_bytes(convolution: Any) -> int:
    """Of a convolution's picture with its padding; 0 if the two sides of each dimension are padded alike."""
    padding = convolution.params["padding"]
    if all(low == high for low, high in padding):
        return 0
    picture = convolution.invars[0].aval
    shape = list(picture.shape)
    for dim, (low, high) in zip(convolution.params["dimension_numbers"].lhs_spec[2:], padding, strict=True):
        shape[dim] = max(0, shape[dim] + low + high)
    return array_bytes(picture.update(shape=tuple(shape)))


def resident_bytes(nodes: Sequence[Node | None]) -> int:
    """Of what lies in memory all the time for what scatters."""
    return SCATTERED * sum(
        sum(node.output_bytes) for node in nodes if node is not None and node.type == "select_and_scatter_add"
    )


def orders_of(nodes: Sequence[Node], product: Node) -> list[tuple[Value, Order]]:
    """Of both operands of a product, what they are views of, and in which order that must lie.

    Args:
      nodes: all of the program, views too.
      product: a `dot_general`.
    """
    contracted, batch = product.equation.params["dimension_numbers"]
    shapes = [operand.aval.shape for operand in product.equation.invars]
    sources = [_source(nodes, operand, len(shape)) for operand, shape in zip(product.operands, shapes, strict=True)]
    place = sources[0][1].index
    pairs = [sorted(zip(*both, strict=True), key=lambda pair: place(pair[0])) for both in (batch, contracted)]
    found = []
    for side, ((value, dims), shape) in enumerate(zip(sources, shapes, strict=True)):
        batches, sums = ([pair[side] for pair in both if shape[pair[side]] > 1] for both in pairs)
        free = [dim for dim, size in enumerate(shape) if size > 1 and dim not in (*batch[side], *contracted[side])]
        own = [dim for dim in dims if shape[dim] > 1]
        right = (batches + free + sums, batches + sums + free, free + batches + sums, sums + batches + free)
        found.append((value, () if own in right else tuple(own.index(dim) for dim in right[0])))
    return found


def _source(nodes: Sequence[Node], value: Any, rank: int) -> tuple[Value, Order]:
    """What an operand is a view of, as far as views only permute, and which of the operand's dimensions each of its
    dimensions is. A tie is where it is written, in the order that its readers need.
    """
    dims = tuple(range(rank))
    while isinstance(value, Result) and nodes[value.node].type in ("transpose", "name", "copy"):
        node = nodes[value.node]
        if node.type == "transpose":
            dims = tuple(dims[node.equation.params["permutation"].index(dim)] for dim in range(rank))
        value = node.operands[0]
    return value, dims
