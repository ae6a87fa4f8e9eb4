"""Computation graphs from ONNX models: their structure and shapes; the weights' values are never loaded.

One op per node, with these exceptions, which are what runtimes do before the first inference:

- what depends on weights and constants only is computed once and is a weight itself (`Constant`, a reshaped weight; not
  random numbers, nor `DequantizeLinear`, which would undo the compression), as are the `Shape` and `Size` of tensors of
  known shape, and the lengths of sequences;
- an `If` whose condition is a constant or follows from shapes is the nodes of the branch that it takes;
- what no output of the model depends on is dropped;
- an output that a node may leave out and nobody reads is left out (the mask of `Dropout`), as are inputs of unknown
  size that nobody reads.

Other `If`s, `Loop` and `Scan` are single ops that also read what their bodies take from around them: a branch costs the
most expensive body, a loop its body times the trip count (1 if it is not known), and their workspace is what the body
holds at most. A loop's state that grows, such as a list of tokens, or shrinks has the larger of its first and last size
in every iteration: an upper bound. A `SequenceMap` is its body for each tensor. Views such as `Reshape` are ops whose
outputs have bytes of their own, and so are ops that put tensors into sequences and optionals or take them out: they
copy. Functions of the model are inlined, also those written for another operator set.

Types and shapes follow from the inputs and weights. What the model declares of other tensors (`value_info`, outputs)
counts only where nothing follows: for operators that ONNX does not know, and for sizes that depend on data. A sequence
or an optional has the bytes of what it holds (`sequences.py`), constant text those of its UTF-8. ONNX gives no size to
other text and to maps: models whose outputs depend on them are refused.
"""

import os
from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto

from graphrl import files
from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.foreign import DEFAULT_LIMITS, Foreign, ReadLimits
from graphrl.graphs.readers.onnx.bodies import check_branches
from graphrl.graphs.readers.onnx.functions import schema_of, standard, versions_of
from graphrl.graphs.readers.onnx.layers import node_layer
from graphrl.graphs.readers.onnx.model import check_and_sort, load
from graphrl.graphs.readers.onnx.sequences import number_held, scope_of, unsized
from graphrl.graphs.readers.onnx.shapes import inferred
from graphrl.graphs.readers.onnx.values import UNKNOWN, Scope, Value, dimension, reads_of, subgraphs, weight_names
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
    """The graph of an ONNX model, named after its file.

    Args:
      data: the model; weights in separate files need not be there.
      source: the file's name.
      chip: whose run times the ops get, by `roofline.runtime`: a name in `roofline.CHIPS` or a `Chip`.
      dims: sizes, from 0, of dimensions that the model leaves open, by their name in the model (`{"batch": 8}`), or by
        tensor and axis (`{"input_ids:1": 128}`) if they have none or depend on data, in bodies too. A negative size in
        a model is an open one. Where even the number of axes is unknown, `{"y:0": 24, "y:1": 8}` gives all of them. Of
        a loop's state that grows, the size is that after the last iteration. A model whose sizes do not all follow
        from these is refused: a guess would give a plan for another model.
      limits: of what ONNX's own code, in a process of its own, may take.

    Returns:
      The graph. Weights are external inputs, and their bytes the `weight_bytes` of the first op that reads each, so
      that the sum over the ops is the model's.

    Raises:
      GraphrlError: the chip is unknown.
      GraphError: one line that names the file and the op, if the file is broken or truncated, needs a newer `onnx`, is
        no directed acyclic graph, needs values of unknown size (sequences of unknown length, maps, text), has types and
        shapes that cannot be, contradicts `dims`, or takes more than the limits.
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
    """The graph of a model whose nodes are sorted and named and whose shapes are inferred."""
    graph, scope, versions = model.graph, scope_of(model.graph), versions_of(model)
    reads = [reads_of(node) for node in graph.node]
    constants, computed = _constants(graph, reads, scope)
    outputs = dict.fromkeys(info.name for info in graph.output)
    live = _live(graph, reads, computed, outputs)
    read = {key for i in live for key in reads[i]} | outputs.keys()
    inputs = [info.name for info in graph.input if info.name not in constants]
    _check_inputs([name for name in inputs if name in read], scope)
    weights: dict[str, None] = {}
    ops = []
    for i in live:
        node, where = graph.node[i], f"op {graph.node[i].name!r}"
        fresh = [key for key in reads[i] if key in constants and key not in weights]
        weights |= dict.fromkeys(fresh)
        names = _written(node, versions, scope, read)
        check_branches(node, names, scope)
        written = tuple(Tensor(key, _bytes(key, scope, where)) for key in names)
        _check_bodies(node, scope, where)
        work = node_work(node, scope, chip)
        ops.append(
            Op(
                name=node.name,
                type=node.op_type,
                runtime=work.runtime,
                inputs=tuple(reads[i]),
                outputs=written,
                workspace_bytes=work.workspace_bytes,
                weight_bytes=work.weight_bytes + sum(_bytes(key, scope, where) for key in fresh),
                flops=work.flops,
                layer=node_layer(node, scope),
            )
        )
    weights |= dict.fromkeys(key for key in outputs if key in constants)
    given = [key for key in inputs if key in read or scope.get(key, UNKNOWN).bytes is not None]
    external = tuple(Tensor(key, _bytes(key, scope, f"input {key!r}")) for key in (*given, *weights))
    return ComputationGraph(name, tuple(ops), external, tuple(outputs))


def _constants(graph: GraphProto, reads: Sequence[list[str]], scope: Scope) -> tuple[set[str], list[int]]:
    """Names of all tensors that are known before the model runs, and the other nodes' places."""
    constants, computed = set(weight_names(graph)), []
    for i, node in enumerate(graph.node):
        if _is_constant(node, reads[i], constants, scope):
            constants.update(node.output)
        else:
            computed.append(i)
    if not computed:  # a model without inputs: its ops are what there is to plan
        computed = [i for i, node in enumerate(graph.node) if node.op_type != "Constant"]
        constants -= {name for i in computed for name in graph.node[i].output}
    return constants, computed


def _is_constant(node: NodeProto, reads: Sequence[str], constants: set[str], scope: Scope) -> bool:
    if node.op_type in ("Shape", "Size") and node.domain in _STANDARD:
        known = all(scope.get(name, UNKNOWN).is_static for name in reads)
    else:
        known = number_held(node, scope) is not None
    return known or (constants.issuperset(reads) and _is_function(node))


def _is_function(node: NodeProto) -> bool:
    """Whether the node gives the same for the same inputs, in every run and at no cost in memory."""
    if node.domain not in _STANDARD or node.op_type in _NEVER_CONSTANT:
        return False
    return all(_is_function(inner) for body in subgraphs(node).values() for inner in body.node)


def _live(
    graph: GraphProto, reads: Sequence[list[str]], computed: Sequence[int], outputs: Mapping[str, None]
) -> list[int]:
    """Places of the nodes that the outputs depend on; all if no output does."""
    needed, live = set(outputs), []
    for i in reversed(computed):
        if needed.intersection(graph.node[i].output):
            live.append(i)
            needed.update(reads[i])
    return live[::-1] or list(computed)


def _written(node: NodeProto, versions: Mapping[str, int], scope: Scope, read: set[str]) -> list[str]:
    """Outputs that the node really gives: those that someone reads, and others that it cannot leave out."""
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


def _check_inputs(inputs: Sequence[str], scope: Scope) -> None:
    """Raises for faults of the inputs; for all open dimensions at once, as they are what the user must say."""
    keys = dict.fromkeys(key for name in inputs for key in _open(name, scope.get(name, UNKNOWN)))
    if keys:
        sizes = ", ".join(f"{key}=1" for key in keys)
        raise GraphError(f"its inputs have dimensions of unknown size: give dims, such as {sizes} (--dim in commands)")
    for name in inputs:
        _bytes(name, scope, f"input {name!r}")


def _open(name: str, value: Value) -> list[str]:
    """What `dims` calls the unknown sizes of a tensor."""
    shape = value.shape if value.kind == "tensor" else None
    return [dimension(name, axis, size) for axis, size in enumerate(shape or ()) if isinstance(size, str)]


def _bytes(name: str, scope: Scope, where: str) -> int:
    """Bytes of a tensor; raises GraphError that says what is missing if they are not known."""
    value = scope.get(name, UNKNOWN)
    if value.bytes is not None:
        return value.bytes
    if value.kind == "unknown":
        raise GraphError(f"{where}: the type of {name!r} is unknown: declare it in the model, with its shape")
    if value.kind != "tensor":
        raise GraphError(f"{where}: {name!r} is of kind {value.kind}: {unsized(value)}")
    if value.shape is None:
        raise GraphError(
            f"{where}: {name!r} has an unknown number of axes: give dims for all of them, such as {name}:0=1, "
            f"{name}:1=1 for two (--dim in commands), or declare its shape in the model"
        )
    sizes = ", ".join(f"{key}=1" for key in dict.fromkeys(_open(name, value)))
    raise GraphError(
        f"{where}: {name!r} has dimensions of unknown size: give dims, such as {sizes} (--dim in commands)"
    )


def _check_bodies(node: NodeProto, scope: Scope, where: str) -> None:
    """Raises GraphError if the size of a tensor inside the bodies of a branch or loop is not known.

    Inference does not enter other bodies (`FlexAttention`); what is unknown there counts nothing.
    """
    if node.op_type not in ("If", "Loop", "Scan") or standard(node.domain):
        return
    for body in subgraphs(node).values():
        inner = scope_of(body, scope)
        read = {name for other in body.node for name in reads_of(other)} | {info.name for info in body.output}
        for other in body.node:
            for name in other.output:
                if name in read and inner.get(name, UNKNOWN).kind in ("tensor", "unknown"):
                    _bytes(name, inner, f"{where}, in its body")
            _check_bodies(other, inner, where)
