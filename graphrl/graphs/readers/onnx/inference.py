"""ONNX's shape inference, of models whose nodes may be of several opsets.

ONNX infers with one version of each operator set per model. So a node of another version becomes the call of a function
that has this one node. Inside bodies ONNX does not know the values of constants around them, so bodies get copies.
"""

import uuid
from collections.abc import Container, Mapping, Sequence

import numpy as np
import onnx.numpy_helper
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from graphrl.graphs.readers.foreign import Foreign
from graphrl.graphs.readers.onnx.fold import known_values
from graphrl.graphs.readers.onnx.model import all_nodes, native, own_version, standard
from graphrl.graphs.readers.onnx.values import captured, subgraphs

_OURS = uuid.uuid4().hex  # no file has it
_CALLS = f"graphrl.calls.{_OURS}"  # domain of the functions that inference sees
_COPY = f"graphrl.copies.{_OURS}"  # marks the copies of constants in bodies
# Operators that inference does not know, or knows by a function with a fault, and others of the same type and shape.
_STAND_INS = {"GroupNormalization": "Identity", "MeanVarianceNormalization": "Identity"}


def infer_shapes(model: ModelProto, foreign: Foreign) -> ModelProto:
    """The model with the shapes that follow; `model` itself is of no use any more."""
    hidden = _hide(model, ())
    result = native("infer_shapes", model, foreign)
    _restore(result, hidden)
    return result


def shape_faults(model: ModelProto, unknown: Container[str], foreign: Foreign) -> str:
    """Faults in the types and shapes of a model, as ONNX's inference reports them, a line each.

    Args:
      model: with its shapes; left as it was.
      unknown: names of nodes of operators that inference does not know, but whose results it does. Of the nodes after
        an unknown operator, it does not say what is impossible.
      foreign: where it runs.
    """
    hidden = _hide(model, unknown)
    faults = foreign.call("shape_faults", model.SerializeToString())
    _restore(model, hidden)
    return faults.decode(errors="replace")


def has_stand_in(node: NodeProto) -> bool:
    """Whether shape inference does not know the operator, but another one that gives the same shape."""
    return standard(node.domain) == "" and node.op_type in _STAND_INS


def _hide(model: ModelProto, unknown: Container[str]) -> list[NodeProto]:
    """Replaces each node that inference would not understand by a call of a function that it does; returns the nodes.

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
    """Puts copies of the small constants that bodies take from around them into them."""
    bodies = [body for node in graph.node for body in subgraphs(node).values()]
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
    for node in graph.node:
        for body in subgraphs(node).values():
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
    """A function whose result has the shape of the node's, in the node's version of its operator set."""
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
