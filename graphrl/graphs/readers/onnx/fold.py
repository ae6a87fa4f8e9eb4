"""Values of the small tensors in an ONNX model that shapes are computed with, known before the model runs.

Exporters write `x.reshape(x.shape[0], -1)` as a chain of Shape, Gather, Div, Concat, ... whose results other shapes
depend on. ONNX's own data propagation follows some of these ops; `fold` runs the rest by ONNX's reference
implementation and puts the values into the model, where inference finds them.
"""

import math
from collections.abc import Mapping, Set

import numpy as np
import onnx.numpy_helper
from onnx import GraphProto, NodeProto, ValueInfoProto

from graphrl.graphs.readers.onnx.model import own_version
from graphrl.graphs.readers.onnx.sequences import scope_of, static_result
from graphrl.graphs.readers.onnx.values import MAX_ELEMENTS, Scope, reads_of, replace, typed_scope

# Ops that are run, by what bounds their results: what their inputs broadcast to, or their inputs taken together.
_BROADCASTING = """Abs Add And Ceil Div Equal Floor Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Not Or
Pow Round Sign Sqrt Sub Sum Where Xor"""
_BOUNDED = """Cast CastLike Concat Identity ReduceMax ReduceMin ReduceProd ReduceSum Reshape Shape Size Slice Squeeze
Unsqueeze"""


def fold(graph: GraphProto, opset: int) -> bool:
    """Replaces the nodes of a sorted graph whose results follow from constants and shapes by those results.

    Returns whether there were any. Nodes that need large values, or that do what they must not, stay.

    Args:
      opset: version of the standard operators.
    """
    folded = computed_values(graph, opset, scope_of(graph))
    nodes = [node for node in graph.node if folded.keys().isdisjoint(node.output)]
    if not nodes:  # all follows from shapes: the ops that write the outputs are what there is to plan
        folded = {name: array for name, array in folded.items() if name not in {info.name for info in graph.output}}
        nodes = [node for node in graph.node if folded.keys().isdisjoint(node.output)]
    if len(nodes) == len(graph.node):
        return False
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in folded.items())
    # What inference noted about them may have open dimensions, and would outweigh the initializers.
    replace(graph, node=nodes, value_info=[info for info in graph.value_info if info.name not in folded])
    return True


def known_values(graph: GraphProto) -> dict[str, np.ndarray]:
    """The small tensors of numbers among a graph's constants, by name."""
    return {name: array for name, value in typed_scope(graph).items() if (array := value.array) is not None}


def computed_values(
    graph: GraphProto, opset: int, scope: Scope, wanted: Set[str] | None = None
) -> dict[str, np.ndarray]:
    """Values by name of the results that follow from constants and shapes.

    Args:
      opset: version of the standard operators.
      scope: what is known in the graph and around it.
      wanted: whose values matter; all if None.
    """
    nodes = list(graph.node)
    if wanted is not None:
        needed, nodes = set(wanted), []
        for node in reversed(graph.node):
            if not needed.isdisjoint(node.output):
                needed.update(reads_of(node))
                nodes.append(node)
        nodes.reverse()
    values: dict[str, np.ndarray] = {}
    for node in nodes:
        result = _value(node, opset, values, scope)
        if result is not None:
            values[node.output[0]] = result
    return values


def _value(node: NodeProto, opset: int, values: Mapping[str, np.ndarray], scope: Scope) -> np.ndarray | None:
    """The only result of a node if it can be known, else None."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1 or not node.output[0]:
        return None
    if (number := static_result(node, scope)) is not None:
        return np.array(number)
    if node.op_type in ("Shape", "Size") and node.input:
        source = scope.get(node.input[0])
        if source is None or not source.is_static:
            return None
        inputs = {node.input[0]: np.broadcast_to(np.int8(0), source.sizes)}  # a view: no memory
    else:
        inputs = {}
        for name in filter(None, node.input):
            array = values[name] if name in values else scope[name].array if name in scope else None
            if array is None:
                return None
            inputs[name] = array
    try:
        if not 0 <= _most_elements(node, [inputs[name] for name in node.input if name]) <= MAX_ELEMENTS:
            return None
        result = _run(node, own_version(node) or opset, inputs)
    except Exception:  # the reference implementation raises what it likes: inference says what is wrong
        return None
    return result if result.size <= MAX_ELEMENTS and result.dtype.kind in "biuf" else None


def _most_elements(node: NodeProto, inputs: list[np.ndarray]) -> float:
    """How many elements a result has at most; infinite if the node is none that is run."""
    kind = node.op_type
    if kind in _BROADCASTING.split():
        return math.prod(np.broadcast_shapes(*(array.shape for array in inputs)))
    if kind in ("Shape", "Size"):
        return len(inputs[0].shape)
    if kind in _BOUNDED.split():
        return sum(array.size for array in inputs)
    if kind in ("ConstantOfShape", "Expand"):
        shape = inputs[-1].tolist()
        sizes = np.broadcast_shapes(inputs[0].shape, tuple(shape)) if kind == "Expand" else shape
        return math.prod(max(1, size) for size in sizes)  # a size of 0 must not hide the others: sums may leave it out
    if kind == "Gather":
        table, indices = inputs
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return table.size // max(1, table.shape[axis]) * indices.size
    if kind == "Range":
        start, limit, step = (array.item() for array in inputs)
        return math.ceil(max(0, (limit - start) / step))
    return math.inf


def _run(node: NodeProto, opset: int, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator  # slow to import

    graph = GraphProto(
        name="node",
        node=[node],
        input=[ValueInfoProto(name=name) for name in inputs],
        output=[ValueInfoProto(name=node.output[0])],
    )
    with np.errstate(all="ignore"):
        (result,) = ReferenceEvaluator(graph, opsets={"": opset}).run(None, dict(inputs))
    return np.asarray(result)
