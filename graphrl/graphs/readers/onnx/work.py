"""What an ONNX node costs: single ops by the roofline, loops and branches by their bodies."""

from typing import Any, NamedTuple

import onnx.helper
from onnx import AttributeProto, GraphProto, NodeProto

from graphrl.graphs.readers.onnx.flops import ATTRIBUTES, Call, bytes_moved, flops
from graphrl.graphs.readers.onnx.sequences import loop_states, scope_of
from graphrl.graphs.readers.onnx.values import Scope, reads_of, subgraphs, trip_count
from graphrl.graphs.roofline import Chip, runtime

_MAX_WORK = 10**30  # no sum of these overflows; the graph's checks refuse what needs as much


class Work(NamedTuple):
    """What running something once takes.

    Attributes:
      flops: operations.
      runtime: seconds.
      workspace_bytes: most bytes that its bodies hold at once.
      weight_bytes: bytes of the weights and constants inside its bodies.
    """

    flops: int = 0
    runtime: float = 0.0
    workspace_bytes: int = 0
    weight_bytes: int = 0


def node_work(node: NodeProto, scope: Scope, chip: Chip) -> Work:
    """Work of a node of the graph whose values `scope` knows; what is unknown inside bodies counts nothing."""
    bodies = subgraphs(node)
    if not bodies:
        return _single(node, scope, chip)
    if node.op_type == "Loop" and "body" in bodies:
        return _loop_work(node, bodies["body"], scope, chip)
    works = [_body_work(body, scope_of(body, scope), chip, results=node.op_type != "If") for body in bodies.values()]
    weights = sum(work.weight_bytes for work in works)
    if node.op_type == "If":
        return Work(*(max(figures) for figures in zip(*works, strict=True)))._replace(weight_bytes=weights)
    trips = _scan_length(node, scope) if node.op_type == "Scan" else 1
    return Work(
        trips * sum(work.flops for work in works),
        trips * sum(work.runtime for work in works),
        max(work.workspace_bytes for work in works),
        weights,
    )


def _loop_work(node: NodeProto, body: GraphProto, scope: Scope, chip: Chip) -> Work:
    """Work of a Loop. What it carries in sequences grows by the same in each run: the mean run is that of both ends."""
    count = trip_count(node, scope)
    trips = 1 if count is None else count
    first, last = (
        _body_work(body, scope_of(body, scope, loop_states(node, scope, times)), chip, results=True)
        for times in (0, max(0, trips - 1))
    )
    runtime = first.runtime + (last.runtime - first.runtime) / 2
    return last._replace(flops=trips * last.flops, runtime=trips * runtime)


def _single(node: NodeProto, scope: Scope, chip: Chip) -> Work:
    inputs = [scope.get(name) for name in node.input]
    outputs = [scope[name] for name in node.output if name in scope]
    call = Call(
        type=node.op_type,
        attributes=node_attributes(node),
        inputs=[value.sizes if value else () for value in inputs],
        outputs=[value.sizes for value in outputs if value.bytes is not None],
    )
    operations = min(max(0, flops(call)), _MAX_WORK)
    read = [scope[name].bytes or 0 for name in dict.fromkeys(node.input) if name in scope]
    moved = min(bytes_moved(node.op_type, read, sum(value.bytes or 0 for value in outputs)), _MAX_WORK)
    return Work(operations, runtime(operations, moved, chip))


def node_attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes that costs depend on; one of another type than ONNX says counts as left out."""
    return {
        a.name: onnx.helper.get_attribute_value(a)
        for a in node.attribute
        if AttributeProto.AttributeType.Name(a.type) == ATTRIBUTES.get(a.name)
    }


def _scan_length(node: NodeProto, scope: Scope) -> int:
    """Size of the scanned axis of the first scanned input; 1 if it is not known."""
    attributes = node_attributes(node)
    first = len(node.input) - attributes.get("num_scan_inputs", 0)
    name = node.input[first] if 0 <= first < len(node.input) else ""
    sizes = scope[name].sizes if name in scope else ()
    axis = next(iter(attributes.get("scan_input_axes", ())), 0)
    return sizes[axis] if -len(sizes) <= axis < len(sizes) else 1


def _body_work(body: GraphProto, scope: Scope, chip: Chip, *, results: bool) -> Work:
    """Work of one run of a body, in the order of the file; its results count as its memory if `results`."""
    sizes = {info.name: scope[info.name].bytes or 0 for info in (*body.value_info, *body.output)}
    weights = sum(scope[tensor.name].bytes or 0 for tensor in body.initializer)
    works = []
    for node in body.node:
        if node.op_type == "Constant":
            weights += sum(sizes.pop(name, 0) for name in node.output)
        works.append(Work() if node.op_type == "Constant" else node_work(node, scope, chip))
    return Work(
        sum(work.flops for work in works),
        sum(work.runtime for work in works),
        _peak(body, sizes, [work.workspace_bytes for work in works], results),
        weights + sum(work.weight_bytes for work in works),
    )


def _peak(body: GraphProto, sizes: dict[str, int], workspace: list[int], results: bool) -> int:
    """Most bytes of a body's own tensors (`sizes`) and of its nodes' `workspace` that are live at once."""
    kept = {info.name for info in body.output}
    last_use = {name: i for i, node in enumerate(body.node) for name in (*node.output, *reads_of(node))}
    live = peak = 0
    for i, node in enumerate(body.node):
        counted = [name for name in node.output if results or name not in kept]
        live += sum(sizes.get(name, 0) for name in counted)
        peak = max(peak, live + workspace[i])
        ending = {name for name in (*reads_of(node), *node.output) if last_use[name] == i and name not in kept}
        live -= sum(sizes.get(name, 0) for name in ending)
    return peak
