"""Inlining of ONNX bodies whose execution is known when the model is loaded.

Runtimes inline the branch of an `If` whose condition is a constant or follows from shapes, as in exports of
`torch.squeeze(x, dim)`: the other branch and its own inputs are dropped. The body of a `SequenceMap` is repeated for
each tensor of its sequence, as these may differ in shape.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx.numpy_helper
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from graphrl.graphs.readers.onnx.declared import HIDDEN
from graphrl.graphs.readers.onnx.inference import computed_values
from graphrl.graphs.readers.onnx.sequences import scope_of
from graphrl.graphs.readers.onnx.values import (
    Scope,
    is_standard,
    of_constant,
    reads_of,
    replace,
    subgraphs,
    weight_names,
)

_MAX_COPIED = 1 << 14  # limit on the nodes that one SequenceMap expands to

Names = Counter[str]  # number of definitions of each value name in a model


def inline_bodies(graph: GraphProto, opset: int) -> bool:
    """Inlines bodies into a graph of sorted nodes, and into the bodies that stay; returns True if there were any.

    Bodies inside inlined bodies are left for the next call. The new nodes may lack names.

    Args:
      graph: changed in place.
      opset: version of the standard operators.
    """
    if not any(map(_is_candidate, graph.node)):
        return False
    return _inline(graph, opset, {}, Counter(_defined(graph, nested=True)))


def _is_candidate(node: NodeProto) -> bool:
    """True for a node with bodies if it, or a node inside them, is of a type whose body may be inlined."""
    bodies = subgraphs(node).values()
    own = is_standard(node) and node.op_type in _INLINERS
    return bool(bodies) and (own or any(_is_candidate(inner) for body in bodies for inner in body.node))


def _inline(graph: GraphProto, opset: int, outer: Scope, names: Names) -> bool:
    scope = _with_conditions(graph, opset, scope_of(graph, outer))
    nodes, infos, changed = [], [], False
    replaced: set[str] = set()
    for node in graph.node:
        if is_standard(node) and node.op_type in _INLINERS:
            replacement = _Replacement(graph, node, names)
            if _INLINERS[node.op_type](replacement, scope):
                replaced.update(node.output)
                nodes += replacement.nodes
                infos += replacement.infos
                continue
        nodes.append(node)
        for body in subgraphs(node).values():
            if any(map(_is_candidate, body.node)):
                changed |= _inline(body, opset, scope, names)
    if replaced:
        # Inferred types of an If's results cover only the common part of both branches, and would override those of one
        # branch.
        kept = [info for info in graph.value_info if info.name not in replaced]
        replace(graph, node=nodes, value_info=kept + infos)
        for info in graph.output:
            if info.name in replaced:
                info.ClearField("type")
    return changed or bool(replaced)


def _with_conditions(graph: GraphProto, opset: int, scope: Scope) -> Scope:
    """Adds to a scope the computed values that conditions in the graph and in its bodies may depend on."""
    wanted = {name for node in graph.node if _is_candidate(node) for name in reads_of(node)}
    values = computed_values(graph, opset, scope, wanted)
    return {**scope, **{name: of_constant(onnx.numpy_helper.from_array(array)) for name, array in values.items()}}


class _Replacement:
    """The nodes that replace one node with bodies, and their declared types; their weights are added to the graph."""

    def __init__(self, graph: GraphProto, node: NodeProto, names: Names) -> None:
        self.graph, self.node, self.names = graph, node, names
        self.nodes: list[NodeProto] = []
        self.infos: list[ValueInfoProto] = []

    def name(self, *parts: object) -> str:
        """Returns a new value name that starts with the node's name."""
        return _new_name("/".join(map(str, (self.node.name or self.node.op_type, *parts))), self.names)

    def add_node(self, type: str, inputs: Sequence[str], output: str) -> None:
        """Adds a node."""
        self.nodes.append(NodeProto(op_type=type, input=inputs, output=[output]))

    def add_body(self, body: GraphProto, given: Mapping[str, str], *part: object) -> dict[str, str]:
        """Adds a copy of a body, renamed by `given`; its values without unique names get new names that include `part`.

        Returns:
          All changed names, old to new.
        """
        copy, own = GraphProto(), [name for name in _defined(body) if name not in given]
        copy.CopyFrom(body)
        changed = {**given, **{name: self.name(*part, name) for name in own if self.names[name] > 1}}
        _rename(copy, changed, self.names)
        self.graph.initializer.extend(copy.initializer)
        self.graph.sparse_initializer.extend(copy.sparse_initializer)
        self.infos += [info for info in copy.value_info if info.name.startswith(HIDDEN)]
        self.nodes += copy.node
        return changed


def _inline_branch(replacement: _Replacement, scope: Scope) -> bool:
    """Replaces an If by the branch that runs; False if the branch is not known."""
    node, branches = replacement.node, subgraphs(replacement.node)
    condition = scope[node.input[0]].array if node.input and node.input[0] in scope else None
    if condition is None or condition.size != 1 or condition.dtype.kind != "b":
        return False
    taken, dropped = ("then_branch", "else_branch") if condition.item() else ("else_branch", "then_branch")
    if not {taken, dropped} <= branches.keys() or len(branches[taken].output) < len(node.output):
        return False
    branch = branches[taken]
    replacement.names.subtract(_defined(branches[dropped], nested=True))
    own = set(_defined(branch))
    results: dict[str, str] = {}
    for info, output in zip(branch.output, node.output, strict=False):
        if output and info.name in own:
            results.setdefault(info.name, output)
    changed = replacement.add_body(branch, results)
    for info, output in zip(branch.output, node.output, strict=False):
        if output and results.get(info.name) != output:  # a value from outside of the branch, or the same value again
            replacement.add_node("Identity", [changed.get(info.name, info.name)], output)
    return True


def _inline_map(replacement: _Replacement, scope: Scope) -> bool:
    """Replaces a SequenceMap by a copy of its body for each tensor; False if their number is unknown or too large."""
    node, body = replacement.node, subgraphs(replacement.node).get("body")
    sequences = [name for name in node.input if name in scope and scope[name].kind == "sequence"]
    counts = {None if (held := scope[name].elements) is None else len(held) for name in sequences}
    if body is None or len(counts) != 1 or None in counts:
        return False
    count = counts.pop() or 0
    fits = len(body.input) == len(node.input) and len(body.output) >= len(node.output)
    if not fits or count * len(body.node) > _MAX_COPIED:
        return False
    weights, rest = _parts(body)
    shared = replacement.add_body(weights, {})
    shared = {name: shared.get(name, name) for name in _defined(weights)}
    replacement.names.update(_defined(rest, nested=True))  # the copies get new names
    parts: list[list[str]] = [[] for _ in node.output]
    for i in range(count):
        position, given = replacement.name(i), dict(shared)
        replacement.graph.initializer.append(helper.make_tensor(position, TensorProto.INT64, (), [i]))
        for info, name in zip(body.input, node.input, strict=True):
            given[info.name] = replacement.name(i, info.name) if name in sequences else name
            if name in sequences:
                replacement.add_node("SequenceAt", [name, position], given[info.name])
        changed = replacement.add_body(rest, given, i)
        for part, info in zip(parts, body.output, strict=False):
            part.append(changed.get(info.name, info.name))
    for part, output, info in zip(parts, node.output, body.output, strict=False):
        if output and part:
            replacement.add_node("SequenceConstruct", part, output)
        elif output:
            replacement.add_node("SequenceEmpty", [], output)
            dtype = info.type.tensor_type.elem_type or TensorProto.FLOAT
            replacement.nodes[-1].attribute.append(helper.make_attribute("dtype", dtype))
    return True


_INLINERS: dict[str, Callable[[_Replacement, Scope], bool]] = {"If": _inline_branch, "SequenceMap": _inline_map}


def _parts(body: GraphProto) -> tuple[GraphProto, GraphProto]:
    """Splits a body into its weights and constants, and the rest."""
    nodes: dict[bool, list[NodeProto]] = {True: [], False: []}
    for node in body.node:
        nodes[node.op_type == "Constant"].append(node)
    weights = GraphProto(initializer=body.initializer, sparse_initializer=body.sparse_initializer, node=nodes[True])
    rest = GraphProto(input=body.input, output=body.output, value_info=body.value_info, node=nodes[False])
    return weights, rest


def _defined(graph: GraphProto, nested: bool = False) -> Iterator[str]:
    """Names of the values that a graph defines; with `nested`, also those of its bodies."""
    yield from (info.name for info in graph.input)
    yield from weight_names(graph)
    for node in graph.node:
        yield from filter(None, node.output)
        if nested:
            for body in subgraphs(node).values():
                yield from _defined(body, nested)


def _rename(graph: GraphProto, changed: dict[str, str], names: Names) -> None:
    """Renames values in a graph and in its bodies, except names that a body redefines."""
    for named in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        name = named.name.removeprefix(HIDDEN)
        named.name = named.name.removesuffix(name) + changed.get(name, name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = changed.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        node.input[:] = [changed.get(name, name) for name in node.input]
        node.output[:] = [changed.get(name, name) for name in node.output]
        for body in subgraphs(node).values():
            own, new = set(_defined(body)), set(changed.values())
            inside = {old: name for old, name in changed.items() if old not in own}
            _rename(body, inside | {name: _new_name(name, names) for name in own & new}, names)


def _new_name(name: str, names: Names) -> str:
    while name in names:
        name += "'"
    names[name] = 1
    return name
