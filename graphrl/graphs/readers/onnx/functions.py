"""Functions of an ONNX model in the places of their calls, also where they are written for another operator set.

Each node of a function keeps the version that the function was written for: a node whose operator is another one in the
model's version (`Squeeze` had an attribute where it has an input now) is tagged with its own.
"""

from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx.defs
import onnx.helper
from onnx import FunctionProto, ModelProto, NodeProto

from graphrl.errors import GraphError
from graphrl.graphs.readers.onnx.values import constant_of, is_standard, subgraphs

_TAG = "graphrl.opset"  # in a node's metadata: the version of its operator set, where it is not the model's
# Their versions differ in the element types that they allow only; Constant's also in attributes, see `plain_constants`.
_ONLY_TYPES = ("Constant", "If", "Loop")

Identity = tuple[str, str, str]


def standard(domain: str) -> str:
    """The domain; "" for both names of the standard one."""
    return "" if domain == "ai.onnx" else domain


def versions_of(proto: ModelProto | FunctionProto) -> dict[str, int]:
    """Version of each operator set that a model or function imports."""
    return {standard(entry.domain): entry.version for entry in proto.opset_import}


def own_version(node: NodeProto) -> int | None:
    """Version of the node's operator set where it is not the model's, else None."""
    values = [entry.value for entry in node.metadata_props if entry.key == _TAG]
    return int(values[0]) if values else None


def clear_versions(model: ModelProto) -> None:
    """Removes what a file itself has under the key of our tags."""
    functions = (node for function in model.functions for node in function.node)
    for node in all_nodes((*model.graph.node, *functions)):
        if any(entry.key == _TAG for entry in node.metadata_props):
            kept = [entry for entry in node.metadata_props if entry.key != _TAG]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of their bodies, in a fixed order."""
    for node in nodes:
        yield node
        for body in subgraphs(node).values():
            yield from all_nodes(body.node)


def prepare_inlining(model: ModelProto) -> None:
    """Makes all functions of one operator set, that of the model, so that ONNX's own code inlines each.

    Raises:
      GraphError: a function has an operator set that this `onnx` does not know, or a node with a body of an operator
        that means something else in the model's.
    """
    functions = _called(model)
    versions = versions_of(model)
    for function in functions:
        versions = {**versions_of(function), **versions}
        _check_version(function)
    known = versions_of(model)
    for domain in versions.keys() - known.keys():
        model.opset_import.add(domain=domain, version=versions[domain])
    names = {_identity(function) for function in functions}
    for function in functions:
        _tag_nodes(function, versions, names)
        del function.opset_import[:]
        function.opset_import.extend(model.opset_import)
    defaults = {_identity(function): function.attribute_proto for function in functions}
    for node in all_nodes((*model.graph.node, *(node for function in functions for node in function.node))):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a for a in defaults.get(_call(node), ()) if a.name not in given)
    copies = [FunctionProto.FromString(function.SerializeToString()) for function in functions]
    del model.functions[:]
    model.functions.extend(copies)


def plain_constants(model: ModelProto) -> None:
    """Writes `Constant`s as tensors: before opset 12 they have no numbers and texts (`value_ints`), functions may."""
    for node in all_nodes(model.graph.node):
        if node.op_type == "Constant" and is_standard(node) and len(node.attribute) == 1:
            tensor = constant_of(node.attribute[0])
            if tensor is not None:
                node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", tensor))


def _identity(function: FunctionProto) -> Identity:
    return standard(function.domain), function.name, function.overload


def _call(node: NodeProto) -> Identity:
    return standard(node.domain), node.op_type, node.overload


def _called(model: ModelProto) -> list[FunctionProto]:
    """The functions that the graph needs; the others must not be looked at."""
    functions = {_identity(function): function for function in model.functions}
    needed: dict[Identity, None] = {}
    pending = [_call(node) for node in all_nodes(model.graph.node)]
    while pending:
        name = pending.pop()
        if name in functions and name not in needed:
            needed[name] = None
            pending += [_call(node) for node in all_nodes(functions[name].node)]
    return [functions[name] for name in needed]


def _check_version(function: FunctionProto) -> None:
    newest, version = onnx.defs.onnx_opset_version(), versions_of(function).get("", 1)
    if not 1 <= version <= newest:
        name = ".".join(filter(None, _identity(function)))
        raise GraphError(
            f"function {name!r}: ONNX opset version {version}: onnx {onnx.__version__} knows 1 to {newest}"
        )


def _tag_nodes(function: FunctionProto, versions: dict[str, int], functions: set[Identity]) -> None:
    """Notes the function's version at each node whose operator is another one in the model's."""
    own = versions_of(function)
    for node in all_nodes(function.node):
        domain = standard(node.domain)
        version = own.get(domain, versions.get(domain, 1))
        if _call(node) in functions or not _differs(node, version, versions.get(domain, version)):
            continue
        if subgraphs(node):
            name = ".".join(filter(None, _identity(function)))
            raise GraphError(
                f"function {name!r}: its {node.op_type} is of opset {version}, which means something else than that of "
                f"the model's opset {versions[domain]}: both must be of one opset"
            )
        node.metadata_props.add(key=_TAG, value=str(version))


def _differs(node: NodeProto, version: int, other: int) -> bool:
    if node.op_type in _ONLY_TYPES or version == other:
        return False
    since = [_since(node, v) for v in (version, other)]
    return since[0] != since[1] and not (node.op_type == "Scan" and min(since) >= 9)


def _since(node: NodeProto, version: int) -> int:
    """Version that brought the operator as it is in `version`; 0 if it is unknown."""
    schema = schema_of(node, {standard(node.domain): version})
    return 0 if schema is None else schema.since_version


def schema_of(node: NodeProto, versions: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """Schema of the operator, in the node's own version or that of `versions`; None if this `onnx` has none."""
    domain = standard(node.domain)
    try:
        return onnx.defs.get_schema(node.op_type, own_version(node) or versions.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None
