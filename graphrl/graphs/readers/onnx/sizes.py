"""Bytes of the tensors in an ONNX model with inferred shapes; errors that name the `dims` which give unknown ones."""

from collections.abc import Iterable, Sequence

from onnx import NodeProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.onnx.sequences import MAX_TENSORS, scope_of
from graphrl.graphs.readers.onnx.values import UNKNOWN, Scope, Value, dimension, is_standard, reads_of, subgraphs


def bytes_of(name: str, scope: Scope, where: str) -> int:
    """Bytes of a tensor.

    Raises:
      GraphError: they are unknown; the message begins with `where` and names what would give them.
    """
    value = scope.get(name, UNKNOWN)
    if value.bytes is not None:
        return value.bytes
    if value.kind == "unknown":
        raise GraphError(f"{where}: the type of {name!r} is unknown: declare it in the model, with its shape")
    if value.kind != "tensor":
        raise GraphError(f"{where}: {name!r} is of kind {value.kind}: {_unsized(value)}")
    if value.shape is None:
        raise GraphError(
            f"{where}: {name!r} has an unknown number of axes: give dims for all of them, such as {name}:0=1, "
            f"{name}:1=1 for two (--dim in commands), or declare its shape in the model"
        )
    sizes = ", ".join(f"{key}=1" for key in dict.fromkeys(_open(name, value)))
    raise GraphError(
        f"{where}: {name!r} has dimensions of unknown size: give dims, such as {sizes} (--dim in commands)"
    )


def check_inputs(inputs: Sequence[str], scope: Scope) -> None:
    """Raises GraphError if bytes of an input are unknown, with the open dimensions of all inputs in one message."""
    keys = dict.fromkeys(key for name in inputs for key in _open(name, scope.get(name, UNKNOWN)))
    if keys:
        sizes = ", ".join(f"{key}=1" for key in keys)
        raise GraphError(f"its inputs have dimensions of unknown size: give dims, such as {sizes} (--dim in commands)")
    for name in inputs:
        bytes_of(name, scope, f"input {name!r}")


def check_branches(node: NodeProto, written: Iterable[str], scope: Scope) -> None:
    """Raises GraphError if the bytes of a result of an If are unknown because its branches give different ones."""
    branches = subgraphs(node) if node.op_type == "If" else {}
    inner = {body: scope_of(branch, scope) for body, branch in branches.items()}
    for i, name in enumerate(node.output if branches else ()):
        if name not in written or scope.get(name, UNKNOWN).bytes is not None:
            continue
        values = {
            body: inner[body].get(branch.output[i].name, UNKNOWN) if i < len(branch.output) else UNKNOWN
            for body, branch in branches.items()
        }
        if len(set(map(_described, values.values()))) > 1 and all(value.bytes is not None for value in values.values()):
            what = ", ".join(f"{_described(value)} in {body}" for body, value in values.items())
            raise GraphError(
                f"op {node.name!r}: {name!r} is {what}, and {node.input[0]!r} says which when the model runs: make "
                f"that a constant{_advice(name, scope.get(name, UNKNOWN), list(values.values()))}"
            )


def check_bodies(node: NodeProto, scope: Scope, where: str) -> None:
    """Raises GraphError if the size of a tensor inside the bodies of a branch or loop is not known.

    Inference does not enter other bodies (`FlexAttention`); what is unknown there counts nothing.
    """
    if node.op_type not in ("If", "Loop", "Scan") or not is_standard(node):
        return
    for body in subgraphs(node).values():
        inner = scope_of(body, scope)
        read = {name for other in body.node for name in reads_of(other)} | {info.name for info in body.output}
        for other in body.node:
            for name in other.output:
                if name in read and inner.get(name, UNKNOWN).kind in ("tensor", "unknown"):
                    bytes_of(name, inner, f"{where}, in its body")
            check_bodies(other, inner, where)


def _open(name: str, value: Value) -> list[str]:
    """Names of a tensor's unknown sizes, as `dims` has them."""
    shape = value.shape if value.kind == "tensor" else None
    return [dimension(name, axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, str)]


def _advice(name: str, known: Value, values: list[Value]) -> str:
    """The `dims` that give a result of an If the shape of its largest branch, where these work."""
    largest = max(values, key=lambda value: value.bytes or 0).sizes
    if any(value.kind != "tensor" for value in values):
        return ""
    shape = known.shape if known.shape is not None and len(known.shape) == len(largest) else ("",) * len(largest)
    sizes = [
        f"{dimension(name, axis, size)}={largest[axis]}" for axis, size in enumerate(shape) if isinstance(size, str)
    ]
    return f", or give dims for the larger, such as {', '.join(sizes)} (--dim in commands)"


def _described(value: Value) -> str:
    if value.elements is None:
        return str(list(value.sizes))
    return f"{value.kind} of {len(value.elements)} with {value.bytes} bytes"


def _unsized(value: Value) -> str:
    """Reason why a value that is no tensor of numbers has no known bytes, with a remedy."""
    if value.kind == "sequence":
        return (
            f"the number (at most {MAX_TENSORS}) and the shapes of its tensors must be known: give tensors as inputs, "
            "and splits, positions and trip counts as constants"
        )
    if value.kind == "optional":
        return "it must be known whether it holds a value, and which: make it a tensor, or leave it out"
    if value.kind in ("map", "sequence of maps"):
        return "ONNX does not say how it lies in memory: export classifiers with zipmap=False"
    return "only tensors of numbers, sequences of them and constants have a size to plan with"
