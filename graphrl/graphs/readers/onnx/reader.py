"""Computation graphs from ONNX models: their structure and shapes; the weights' values are never loaded.

Each node becomes one op, with exceptions that match the optimisations of runtimes before the first inference:

- results that depend on weights and constants only are computed once and are weights (`Constant`, a reshaped weight;
  not random numbers, nor `DequantizeLinear`, which would undo the compression), as are the `Shape` and `Size` of
  tensors of known shape, and the lengths of sequences;
- an `If` whose condition is a constant or follows from shapes is replaced by the nodes of its taken branch;
- nodes that no output of the model depends on are dropped;
- an optional output without readers is left out (the mask of `Dropout`), as are inputs of unknown size without readers.

Other `If`s, `Loop` and `Scan` are single ops that also read the outer values of their bodies: an `If` costs its most
expensive branch, a loop its body times the trip count (1 if it is not known), and their workspace is the peak memory of
the body. A loop's state that grows, such as a list of tokens, or shrinks has the larger of its first and last size in
every iteration: an upper bound. A `SequenceMap` is replaced by its body for each tensor. Views such as `Reshape` are
ops whose outputs have their own bytes, and so are ops that put tensors into sequences and optionals or take them out:
they copy. Functions of the model are inlined, also those written for another operator set.

Types and shapes follow from the inputs and weights. The model's declarations for other tensors (`value_info`, outputs)
count only where nothing follows: for operators that ONNX does not know, and for sizes that depend on data. A sequence
or an optional has the bytes of its elements (`sequences.py`), constant text those of its UTF-8. ONNX defines no size
for other text and for maps: models whose outputs depend on them are rejected.
"""

import os
from collections.abc import Mapping, Sequence

import onnx.helper
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from graphrl import files
from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer, Window
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, Foreign, ReadLimits
from graphrl.graphs.readers.onnx.checks import bytes_of, check_bodies, check_branches, check_inputs
from graphrl.graphs.readers.onnx.model import check_and_sort, load, schema_of, versions_of
from graphrl.graphs.readers.onnx.sequences import scope_of, static_result
from graphrl.graphs.readers.onnx.shapes import inferred
from graphrl.graphs.readers.onnx.values import UNKNOWN, Scope, reads_of, subgraphs, weight_names
from graphrl.graphs.readers.onnx.work import node_work
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, find_chip

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_NEVER_CONSTANT = frozenset(
    str.split("Bernoulli DequantizeLinear Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike")
)


def parse_onnx(
    data: files.Content,
    source: str,
    *,
    chip: str | Chip = DEFAULT_CHIP,
    dims: Mapping[str, int] | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> ComputationGraph:
    """Parses an ONNX model into a graph, named after its file.

    Args:
      data: the model; weights in separate files may be missing.
      source: the file's name.
      chip: determines run times (`roofline.runtime`): a name in `roofline.CHIPS` or a `Chip`.
      dims: sizes, from 0, of dimensions that the model leaves open, by their name in the model (`{"batch": 8}`), or by
        tensor and axis (`{"input_ids:1": 128}`) if they have no name or depend on data, in bodies too. A negative size
        in a model means an open dimension. If even the number of axes is unknown, `{"y:0": 24, "y:1": 8}` gives all of
        them. For a loop's state that grows, give the size after the last iteration. A model whose sizes do not all
        follow from these is rejected: a guess would give a plan for another model.
      limits: limits on time and memory for ONNX's own code, which runs in a separate process.

    Returns:
      The graph. Weights are external inputs, and their bytes the `weight_bytes` of the first op that reads each, so
        that the sum over the ops is the model's.

    Raises:
      GraphrlError: the chip is unknown.
      GraphError: one line that names the file and the op, if the file is broken or truncated, needs a newer `onnx`, is
        not a directed acyclic graph, needs values of unknown size (sequences of unknown length, maps, text), has
        impossible types or shapes, contradicts `dims`, or exceeds the limits.
    """
    figures = find_chip(chip)
    try:
        with Foreign(limits) as foreign:
            model = load(data, foreign)
            check_and_sort(model.graph)
            model = inferred(model, dims or {}, foreign)
        name = os.path.basename(source).removesuffix(".gz").removesuffix(".onnx")
        return _graph(model, name, figures)
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None
    except UnicodeDecodeError:
        raise GraphError(f"{source}: broken ONNX: a name is not UTF-8 text") from None


def _graph(model: ModelProto, name: str, chip: Chip) -> ComputationGraph:
    """Converts a model whose nodes are sorted and named and whose shapes are inferred."""
    graph, scope, versions = model.graph, scope_of(model.graph), versions_of(model)
    reads = [reads_of(node) for node in graph.node]
    constants, computed = _constants(graph, reads, scope)
    outputs = dict.fromkeys(info.name for info in graph.output)
    live = _live(graph, reads, computed, outputs)
    read = {key for i in live for key in reads[i]} | outputs.keys()
    inputs = [info.name for info in graph.input if info.name not in constants]
    check_inputs([name for name in inputs if name in read], scope)
    weights: dict[str, None] = {}
    ops = []
    for i in live:
        node, where = graph.node[i], f"op {graph.node[i].name!r}"
        fresh = [key for key in reads[i] if key in constants and key not in weights]
        weights |= dict.fromkeys(fresh)
        names = _written(node, versions, scope, read)
        check_branches(node, names, scope)
        written = tuple(Tensor(key, bytes_of(key, scope, where)) for key in names)
        check_bodies(node, scope, where)
        work = node_work(node, scope, chip)
        ops.append(
            Op(
                name=node.name,
                type=node.op_type,
                runtime=work.runtime,
                inputs=tuple(reads[i]),
                outputs=written,
                workspace_bytes=work.workspace_bytes,
                weight_bytes=work.weight_bytes + sum(bytes_of(key, scope, where) for key in fresh),
                flops=work.flops,
                layer=_layer(node, scope),
            )
        )
    weights |= dict.fromkeys(key for key in outputs if key in constants)
    given = [key for key in inputs if key in read or scope.get(key, UNKNOWN).bytes is not None]
    external = tuple(Tensor(key, bytes_of(key, scope, f"input {key!r}")) for key in (*given, *weights))
    return ComputationGraph(name, tuple(ops), external, tuple(outputs))


def _constants(graph: GraphProto, reads: Sequence[list[str]], scope: Scope) -> tuple[set[str], list[int]]:
    """Finds the tensors that are known before the model runs; returns their names, and indices of the other nodes."""
    constants, computed = set(weight_names(graph)), []
    for i, node in enumerate(graph.node):
        if _is_constant(node, reads[i], constants, scope):
            constants.update(node.output)
        else:
            computed.append(i)
    if not computed:  # a model without inputs: plan its ops
        computed = [i for i, node in enumerate(graph.node) if node.op_type != "Constant"]
        constants -= {name for i in computed for name in graph.node[i].output}
    return constants, computed


def _is_constant(node: NodeProto, reads: Sequence[str], constants: set[str], scope: Scope) -> bool:
    if node.op_type in ("Shape", "Size") and node.domain in _STANDARD:
        known = all(scope.get(name, UNKNOWN).is_static for name in reads)
    else:
        known = static_result(node, scope) is not None
    return known or (constants.issuperset(reads) and _is_function(node))


def _is_function(node: NodeProto) -> bool:
    """True if the node gives the same result for the same inputs in every run, at no cost in memory."""
    if node.domain not in _STANDARD or node.op_type in _NEVER_CONSTANT:
        return False
    return all(_is_function(inner) for body in subgraphs(node).values() for inner in body.node)


def _live(
    graph: GraphProto, reads: Sequence[list[str]], computed: Sequence[int], outputs: Mapping[str, None]
) -> list[int]:
    """Returns the indices of nodes that the outputs depend on; all of `computed` if no output depends on any."""
    needed, live = set(outputs), []
    for i in reversed(computed):
        if needed.intersection(graph.node[i].output):
            live.append(i)
            needed.update(reads[i])
    return live[::-1] or list(computed)


def _written(node: NodeProto, versions: Mapping[str, int], scope: Scope, read: set[str]) -> list[str]:
    """Lists the outputs that a node writes: those with readers, and others that it cannot omit."""
    outputs = [name for name in node.output if name]
    if all(name in read for name in outputs):
        return outputs
    schema = schema_of(node, versions)
    optional = [] if schema is None else [formal.option == formal.option.Optional for formal in schema.outputs]
    written = []
    for index, name in enumerate(node.output):
        unread = bool(name) and name not in read
        droppable = (index < len(optional) and optional[index]) or scope.get(name, UNKNOWN).bytes is None
        if name and not (unread and droppable):
            written.append(name)
    return written


def _layer(node: NodeProto, scope: Scope) -> Layer | None:
    """Returns the shapes of a node's first input and output, channels last; None if they are not known.

    Tensors of four dimensions and more have their channels second in ONNX, others last.
    """
    names = [*node.input[:1], *node.output[:1]]
    values = [scope.get(name) for name in names]
    if not names or any(value is None or value.kind != "tensor" or not value.is_static for value in values):
        return None
    shapes = [value.sizes for value in values if value is not None]
    return Layer.of(_channels_last(shapes[0]), _channels_last(shapes[-1]), _window(node, scope))


def _channels_last(shape: Sequence[int]) -> Sequence[int]:
    return (shape[0], *shape[2:], shape[1]) if len(shape) > 3 else shape


def _window(node: NodeProto, scope: Scope) -> Window | None:
    lists = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type == AttributeProto.INTS}
    kernel = lists.get("kernel_shape")
    if kernel is None and node.op_type.startswith("Conv") and len(node.input) > 1 and node.input[1] in scope:
        kernel = scope[node.input[1]].sizes[2:]
    if not kernel:
        return None
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    y = kernel[-2] if len(kernel) > 1 else 1
    stride, dilation = ((lists.get(key) or [1])[-1] for key in ("strides", "dilations"))
    pads = lists.get("pads", [])
    padding = pads[len(kernel) - 1] if len(pads) == 2 * len(kernel) else 0  # other operators may differ
    return Window(groups, kernel[-1], y, stride, padding, dilation)
