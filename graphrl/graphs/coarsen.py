"""Coarsening of model graphs to layers, for memory maps.

A layer is a convolution, product or pooling with all ops that a compiler fuses into it. A light op (`layers.py`) joins
the last layer that feeds it. Batch norm, bias, activation and residual add therefore join the preceding convolution,
which then also reads the shortcut. A reduction joins only a layer without a heavy op, so that each normalisation and
each softmax becomes a layer. Light ops without a feeding layer (a mask, a scaled weight) join their reader if they have
only one.

Totals are preserved: FLOPs, run times and weights of a layer are the sums over its ops. Tensors that another layer
reads, and outputs of the graph, are still written. Tensors that only the layer itself reads are not written.
`own_weights` and `listed_weights` find which external inputs are weights: readers count a weight's bytes with the first
op that reads it.
"""

import dataclasses

from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import LIGHT, REDUCTIONS, Layer
from graphrl.graphs.topology import grouped

_MAX_SUMS = 100_000  # limit on the distinct sums of bytes that are tried for one op


def coarsened(graph: ComputationGraph) -> ComputationGraph:
    """Merges the ops of a model graph into layers; returns the graph of the layers.

    A layer gets its name, type and shapes from its op with the most FLOPs (a convolution or product, if it has one).
    Weights are no longer inputs; their bytes are in the layers' `weight_bytes`. Layers are listed in a topological
    order. `reuses` is dropped, and an alias of a tensor that its own layer writes gets its own bytes.
    """
    layer_of = _layers(graph)
    members: dict[int, list[int]] = {}
    for index in graph.arrays.topological.tolist():
        members.setdefault(layer_of[index], []).append(index)
    written = _written(graph, layer_of)
    weights = own_weights(graph)
    name_of = {number: graph.ops[_main(graph, ops)].name for number, ops in members.items()}
    ops = [
        _layer_op(
            graph, members[number], written, weights, {name_of[layer_of[i]] for i in _waits(graph, members[number])}
        )
        for number in sorted(members)
    ]
    read = {name for op in ops for name in op.inputs} | set(graph.outputs)
    inputs = tuple(tensor for tensor in graph.inputs if tensor.name in read)
    return ComputationGraph(graph.name, tuple(ops), inputs, graph.outputs)


def own_weights(graph: ComputationGraph) -> list[set[str]]:
    """Finds the external inputs whose bytes each op counts in its `weight_bytes`: `[n]` sets of input names."""
    size = {tensor.name: int(tensor.bytes) for tensor in graph.inputs}
    counted: set[str] = set()
    weights: list[set[str]] = [set() for _ in graph.ops]
    for index in graph.arrays.topological.tolist():
        op = graph.ops[index]
        shared = {tensor.alias for tensor in op.outputs}
        new = [name for name in dict.fromkeys(op.inputs) if name in size and name not in counted | shared]
        counted.update(new)
        weights[index] = _summing(new, size, op)
    return weights


def listed_weights(graph: ComputationGraph) -> list[set[str]]:
    """Returns `own_weights` if these are all weight bytes (graphs from readers), else `[n]` empty sets (layers)."""
    weights, size = own_weights(graph), {tensor.name: int(tensor.bytes) for tensor in graph.inputs}
    sums = (sum(size[name] for name in names) for names in weights)
    if all(total == op.weight_bytes for total, op in zip(sums, graph.ops, strict=True)):
        return weights
    return [set() for _ in graph.ops]


def _summing(names: list[str], size: dict[str, int], op: Op) -> set[str]:
    """Chooses the inputs whose sizes sum to the op's weight bytes, preferring later names.

    If no such subset is found, the names that fit are taken, largest first.
    """
    if op.weight_bytes == 0:
        return set()
    sums: dict[int, tuple[str, ...]] = {0: ()}
    for name in reversed(names):
        sums |= {
            total + size[name]: (*chosen, name) for total, chosen in sums.items() if total + size[name] not in sums
        }
        if op.weight_bytes in sums:
            return set(sums[op.weight_bytes])
        if len(sums) > _MAX_SUMS:
            break
    left, chosen = op.weight_bytes, set()
    for name in sorted(names, key=lambda name: -size[name]):
        if size[name] <= left:
            left -= size[name]
            chosen.add(name)
    return chosen


def _layers(graph: ComputationGraph) -> list[int]:
    """Assigns every op to a layer: `[n]` layer numbers that never decrease along an edge.

    Edges between layers always lead to a higher number, so the layers have no cycle: an op joins the last layer that it
    depends on, or a later one, or starts a new one.
    """
    a = graph.arrays
    order = a.topological.tolist()
    is_light_input, reads = _feeds_only_light(graph, order), _reads(graph)
    layer_of, heavy = [0] * a.num_ops, list[bool]()
    light_layer: dict[int, int] = {}  # tensor -> the last layer that reads it and has no heavy op
    for index in order:
        if is_light_input[index]:
            continue
        kind = graph.ops[index].type
        last = max((layer_of[before] for before in a.predecessors[index] if not is_light_input[before]), default=-1)
        feeds = any(layer_of[writer] == last for writer in a.producer[reads[index]] if not is_light_input[writer])
        sibling = max((light_layer.get(tensor, -1) for tensor in reads[index]), default=-1)
        if feeds and (kind in LIGHT or (kind in REDUCTIONS and not heavy[last])):
            layer = last
        elif kind in REDUCTIONS and sibling >= max(last, 0):
            layer = sibling
        else:
            layer = len(heavy)
            heavy.append(kind not in LIGHT and kind not in REDUCTIONS)
        layer_of[index] = layer
        if not heavy[layer]:
            light_layer |= dict.fromkeys(reads[index], layer)
    for rank, index in reversed(list(enumerate(order))):
        if is_light_input[index]:
            readers = {layer_of[after] for after in a.successors[index]}
            layer_of[index] = readers.pop() if len(readers) == 1 else rank - a.num_ops  # before all others
    return layer_of


def _feeds_only_light(graph: ComputationGraph, order: list[int]) -> list[bool]:
    """True for each op that is light and whose ancestors are all light: `[n]`."""
    is_light_input = [op.type in LIGHT for op in graph.ops]
    for index in order:
        is_light_input[index] &= all(is_light_input[before] for before in graph.arrays.predecessors[index])
    return is_light_input


def _reads(graph: ComputationGraph) -> list[list[int]]:
    """Returns the tensors that each op reads: `[n]` lists."""
    return grouped(graph.arrays.use_op, graph.arrays.use_tensor, len(graph.ops))


def _written(graph: ComputationGraph, layer_of: list[int]) -> dict[str, Tensor]:
    """Returns the tensors that leave their layer (read by another layer, kept, or never read), by name."""
    a, names = graph.arrays, graph.tensor_names
    read = set[int]()
    outside = set(a.kept.nonzero()[0].tolist())
    for tensor, op in zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True):
        read.add(tensor)
        if layer_of[op] != layer_of[a.producer[tensor]]:
            outside.add(tensor)
    tensors = {tensor.name: tensor for op in graph.ops for tensor in op.outputs}
    home = {name: layer_of[a.producer[i]] for i, name in enumerate(names)}
    written = {}
    for i, name in enumerate(names):
        if i in outside or i not in read:
            source = tensors[name].alias
            while source is not None and home.get(source) == home[name]:
                source = tensors[source].alias
            written[name] = dataclasses.replace(tensors[name], alias=source, reuses=None)
    return written


def _layer_op(
    graph: ComputationGraph, members: list[int], written: dict[str, Tensor], weights: list[set[str]], after: set[str]
) -> Op:
    ops = [graph.ops[index] for index in members]
    main = graph.ops[_main(graph, members)]
    outputs = [written[tensor.name] for op in ops for tensor in op.outputs if tensor.name in written]
    own = {tensor.name for op in ops for tensor in op.outputs}.union(*(weights[index] for index in members))
    own -= {tensor.alias for tensor in outputs}
    inputs = {name: None for op in ops for name in op.inputs if name not in own}
    return Op(
        name=main.name,
        type=main.type,
        runtime=sum(op.runtime for op in ops),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        after=tuple(sorted(after - {main.name})),
        workspace_bytes=max(op.workspace_bytes for op in ops),
        weight_bytes=sum(int(op.weight_bytes) for op in ops),
        flops=sum(int(op.flops) for op in ops),
        layer=_shapes(main, ops[-1]),
    )


def _main(graph: ComputationGraph, members: list[int]) -> int:
    """Returns the main op of a layer: heavy before reduction before light, then most FLOPs, then first."""

    def rank(index: int) -> tuple[int, int]:
        op = graph.ops[index]
        return 0 if op.type in LIGHT else 1 if op.type in REDUCTIONS else 2, op.flops

    return max(members, key=rank)


def _waits(graph: ComputationGraph, members: list[int]) -> set[int]:
    """Returns the control predecessors of a layer's ops that are outside of the layer."""
    a = graph.arrays
    inside = set(members)
    pairs = zip(a.control_source.tolist(), a.control_target.tolist(), strict=True)
    return {source for source, target in pairs if target in inside and source not in inside}


def _shapes(main: Op, last: Op) -> Layer | None:
    """Returns a layer's shapes: those of the main op, with the output shape of the last op."""
    if main.layer is None or last.layer is None:
        return main.layer
    output = {f"output_{axis}": getattr(last.layer, f"output_{axis}") for axis in "xyz"}
    return dataclasses.replace(main.layer, **output)
