"""ONNX's shape inference, and constant folding of the values that shapes depend on.

- `infer_shapes`: inference for models whose nodes may be of several opsets. ONNX infers with one version of each
  operator set per model. Therefore a node of another version becomes the call of a function with this one node. ONNX
  does not propagate constants into bodies, so bodies get copies.
- `fold`, `computed_values`: exporters write `x.reshape(x.shape[0], -1)` as a chain of Shape, Gather, Div, Concat, ...,
  whose results determine other shapes. ONNX's own data propagation follows some of these ops. `fold` runs the rest with
  ONNX's reference implementation and stores the values in the model for inference.
"""

import math
import uuid
from collections.abc import Container, Mapping, Sequence, Set

import numpy as np
import onnx.numpy_helper
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.model import all_nodes, native, own_version, standard
from graphrl.graphs.readers.onnx.sequences import scope_of, static_result
from graphrl.graphs.readers.onnx.values import MAX_ELEMENTS, Scope, bodies_in, captured, reads_of, replace, typed_scope

# Ops that are run, by the bound on the size of their results: the broadcast shape of their inputs, or their inputs'
# total.
_BROADCASTING = """Abs Add And Ceil Div Equal Floor Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Not Or
Pow Round Sign Sqrt Sub Sum Where Xor"""
_BOUNDED = """Cast CastLike Concat Identity ReduceMax ReduceMin ReduceProd ReduceSum Reshape Shape Size Slice Squeeze
Unsqueeze"""

_OURS = uuid.uuid4().hex  # unique: in no file
_CALLS = f"graphrl.calls.{_OURS}"  # domain of the functions for inference
_COPY = f"graphrl.copies.{_OURS}"  # marks the copies of constants in bodies
# Operators that inference does not know, or knows by a faulty function: replacements of the same type and shape.
_STAND_INS = {"GroupNormalization": "Identity", "MeanVarianceNormalization": "Identity"}


def infer_shapes(model: ModelProto, foreign: Foreign) -> ModelProto:
    """Returns the model with inferred shapes; `model` itself must not be used afterwards."""
    hidden = _hide(model, ())
    result = native("infer_shapes", model, foreign)
    _restore(result, hidden)
    return result


def shape_faults(model: ModelProto, unknown: Container[str], foreign: Foreign) -> str:
    """Returns the faults in a model's types and shapes that ONNX's inference reports, one per line.

    Args:
      model: with its shapes; restored afterwards.
      unknown: names of nodes whose operators inference does not know, but whose results are known. Without them,
        inference reports no faults in the nodes after an unknown operator.
      foreign: process that runs it.
    """
    hidden = _hide(model, unknown)
    faults = foreign.call("shape_faults", model.SerializeToString())
    _restore(model, hidden)
    return faults.decode(errors="replace")


def has_stand_in(node: NodeProto) -> bool:
    """True if shape inference does not know the operator, but another one that gives the same shape."""
    return standard(node.domain) == "" and node.op_type in _STAND_INS


def fold(graph: GraphProto, opset: int) -> bool:
    """Replaces the nodes of a sorted graph whose results follow from constants and shapes by those results.

    Nodes that need large values, or that fail, stay.

    Args:
      graph: changed in place.
      opset: version of the standard operators.

    Returns:
      True if any node was replaced.
    """
    folded = computed_values(graph, opset, scope_of(graph))
    nodes = [node for node in graph.node if folded.keys().isdisjoint(node.output)]
    if not nodes:  # all results follow from shapes: the ops that write the outputs remain to plan
        folded = {name: array for name, array in folded.items() if name not in {info.name for info in graph.output}}
        nodes = [node for node in graph.node if folded.keys().isdisjoint(node.output)]
    if len(nodes) == len(graph.node):
        return False
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in folded.items())
    # Their inferred types may have open dimensions, and would override the initializers.
    replace(graph, node=nodes, value_info=[info for info in graph.value_info if info.name not in folded])
    return True


def known_values(graph: GraphProto) -> dict[str, np.ndarray]:
    """Collects the small numeric tensors among a graph's constants, by name."""
    return {name: array for name, value in typed_scope(graph).items() if (array := value.array) is not None}


def computed_values(
    graph: GraphProto, opset: int, scope: Scope, wanted: Set[str] | None = None
) -> dict[str, np.ndarray]:
    """Computes the values of all results that follow from constants and shapes, by name.

    Args:
      graph: with sorted nodes.
      opset: version of the standard operators.
      scope: known values in the graph and around it.
      wanted: names of the relevant results; all if None.
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
    """Computes a node's only result if it follows from known values, else returns None."""
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
    except Exception:  # the reference implementation raises exceptions of any type: inference reports the fault
        return None
    return result if result.size <= MAX_ELEMENTS and result.dtype.kind in "biuf" else None


def _most_elements(node: NodeProto, inputs: list[np.ndarray]) -> float:
    """Bounds the number of elements of a node's result from above; infinite for a node that must not be run."""
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
        return math.prod(max(1, size) for size in sizes)  # a size of 0 must not hide the others: sums may omit it
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


def _hide(model: ModelProto, unknown: Container[str]) -> list[NodeProto]:
    """Replaces each node that inference would not understand by a call of a function that it does; returns these nodes.

    These are nodes of another version, those with a stand-in, and the unknown ones.
    """
    originals: list[NodeProto] = []
    for node in list(all_nodes(model.graph.node)):
        is_unknown = bool(node.name) and node.name in unknown
        if own_version(node) is None and not has_stand_in(node) and not is_unknown:
            continue
        original = NodeProto.FromString(node.SerializeToString())
        function = _function_of(original, f"{original.op_type}.{len(originals)}")
        if is_unknown:
            function.ClearField("node")
        originals.append(original)
        model.functions.append(function)
        node.Clear()
        node.MergeFrom(
            NodeProto(
                name=original.name,
                op_type=function.name,
                domain=_CALLS,
                input=filter(None, original.input),
                output=filter(None, original.output),
            )
        )
    _copy_constants(model.graph, {})
    if originals:
        model.opset_import.add(domain=_CALLS, version=1)
    return originals


def _copy_constants(graph: GraphProto, outer: Mapping[str, np.ndarray]) -> None:
    """Copies small constants that bodies read from outside into the bodies."""
    bodies = list(bodies_in(graph))
    values = {**outer, **known_values(graph)} if bodies else {}
    for body in bodies:
        for name in captured(body):
            if name in values:
                body.initializer.append(onnx.numpy_helper.from_array(values[name], name))
                body.initializer[-1].doc_string = _COPY
        own = {info.name for info in body.input} | {name for node in body.node for name in node.output}
        _copy_constants(body, {name: value for name, value in values.items() if name not in own})


def _remove_copies(graph: GraphProto) -> None:
    """Undoes `_copy_constants`."""
    for body in bodies_in(graph):
        while body.initializer and body.initializer[-1].doc_string == _COPY:
            del body.initializer[-1]
        _remove_copies(body)


def _restore(model: ModelProto, originals: Sequence[NodeProto]) -> None:
    """Undoes `_hide`."""
    _remove_copies(model.graph)
    if not originals:
        return
    calls = [node for node in all_nodes(model.graph.node) if node.domain == _CALLS]
    for node, original in zip(calls, originals, strict=True):
        node.CopyFrom(original)
    del model.functions[:]
    imports = [entry for entry in model.opset_import if entry.domain != _CALLS]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def _function_of(node: NodeProto, name: str) -> FunctionProto:
    """Wraps a node into a function whose result has the same shape, in the node's version of its operator set."""
    inner = NodeProto.FromString(node.SerializeToString())
    for kind, names in (("input", inner.input), ("output", inner.output)):
        for i, tensor in enumerate(names):
            names[i] = f"{kind}{i}" if tensor else ""
    version = own_version(node) or 1
    if has_stand_in(node):
        inner = NodeProto(op_type=_STAND_INS[node.op_type], input=inner.input[:1], output=inner.output[:1])
    return FunctionProto(
        name=name,
        domain=_CALLS,
        input=[f"input{i}" for i, tensor in enumerate(node.input) if tensor],
        output=[f"output{i}" for i, tensor in enumerate(node.output) if tensor],
        node=[inner],
        opset_import=[onnx.OperatorSetIdProto(domain=node.domain, version=version)],
    )
