"""What the graphs of one program at several batch sizes share: ops, names, edges and buffers, as columns."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from graphrl.graphs.datasets.zoo.columns import names, table, texts, unzigzag, zigzag
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers.layer import Layer

SHARINGS = ("alias", "reuses")


class Values(NamedTuple):
    """What differs between batch sizes.

    Attributes:
      ops: by op: runtime, workspace, weight bytes, FLOPs, the numbers of its `Layer` or None, and the bytes of each
        output.
      inputs: bytes of the external inputs.
    """

    ops: list[tuple[Any, ...]]
    inputs: list[int]


def structure_of(graph: ComputationGraph, order: Sequence[int]) -> dict[str, Any]:
    """A graph without its numbers, ops in the topological `order`; as JSON. `graph_of` gives the graph back."""
    ops = [graph.ops[index] for index in order]
    places = {op.name: place for place, op in enumerate(ops)}
    produced = {tensor.name: i for i, tensor in enumerate(tensor for op in ops for tensor in op.outputs)}
    external = {tensor.name: i for i, tensor in enumerate(graph.inputs)}
    kinds, kind = table((op.type, tuple(_suffix(op, tensor) for tensor in op.outputs)) for op in ops)
    reads, read = _reads(ops, produced, external)
    return {
        "names": texts([op.name for op in ops]),
        "kinds": kinds,
        "kind": kind,
        "reads": reads,
        "read": read,
        "shared": [_shared(op) for op in ops],
        "after": [[place - places[name] for name in op.after] for place, op in enumerate(ops)],
        "inputs": texts([tensor.name for tensor in graph.inputs]),
        "outputs": [produced.get(name, -1 - external.get(name, 0)) for name in graph.outputs],
    }


def _suffix(op: Op, tensor: Tensor) -> str | tuple[str]:
    """What an output's name has beyond the op's; the whole name, in a tuple, if it does not begin so."""
    return tensor.name[len(op.name) :] if tensor.name.startswith(op.name) else (tensor.name,)


def _reads(ops: Sequence[Op], produced: dict[str, int], external: dict[str, int]) -> tuple[list[Any], list[int]]:
    """What each op reads: how many tensors back (> 0), or an external input relative to the one read before (< 0)."""
    rows, written, last = [], 0, -1
    for op in ops:
        row = []
        for name in op.inputs:
            if name in produced:
                row.append(written - produced[name])
            else:
                row.append(-1 - zigzag(external[name] - last - 1))
                last = external[name]
        rows.append(tuple(row))
        written += len(op.outputs)
    return table(rows)


def _shared(op: Op) -> list[int]:
    """Triples output, 0 for alias or 1 for reuses, input: numbers of an op's outputs and inputs."""
    numbers = []
    for number, tensor in enumerate(op.outputs):
        for code, sharing in enumerate(SHARINGS):
            if getattr(tensor, sharing) is not None:
                numbers += [number, code, op.inputs.index(getattr(tensor, sharing))]
    return numbers


def values_of(graph: ComputationGraph, order: Sequence[int]) -> Values:
    """The numbers of a graph, run times to four digits."""
    ops = [graph.ops[index] for index in order]
    return Values(
        [
            (
                float(f"{op.runtime:.4g}"),
                int(op.workspace_bytes),
                int(op.weight_bytes),
                int(op.flops),
                None if op.layer is None else dataclasses.astuple(op.layer),
                *(int(tensor.bytes) for tensor in op.outputs),
            )
            for op in ops
        ],
        [int(tensor.bytes) for tensor in graph.inputs],
    )


def graph_of(name: str, structure: dict[str, Any], values: Values, order: Sequence[int]) -> ComputationGraph:
    """The graph of a structure and its numbers; `order` is where its ops stand in the structure."""
    op_names = names(structure["names"])
    kinds, reads = structure["kinds"], structure["reads"]
    inputs = [Tensor(name, size) for name, size in zip(names(structure["inputs"]), values.inputs, strict=True)]
    tensors: list[str] = []
    ops, last = [], -1
    for place, op_name in enumerate(op_names):
        kind, suffixes = kinds[structure["kind"][place]]
        read = []
        for code in reads[structure["read"][place]]:
            if code > 0:
                read.append(tensors[len(tensors) - code])
            else:
                last += 1 + unzigzag(-1 - code)
                read.append(inputs[last].name)
        runtime, workspace, weights, flops, layer, *sizes = values.ops[place]
        shared = structure["shared"][place]
        sharing: dict[int, dict[str, Any]] = {
            shared[i]: {SHARINGS[shared[i + 1]]: read[shared[i + 2]]} for i in range(0, len(shared), 3)
        }
        outputs = tuple(
            Tensor(op_name + suffix if isinstance(suffix, str) else suffix[0], size, **sharing.get(number, {}))
            for number, (suffix, size) in enumerate(zip(suffixes, sizes, strict=True))
        )
        after = tuple(op_names[place - back] for back in structure["after"][place])
        shapes = None if layer is None else Layer(*layer)
        ops.append(Op(op_name, kind, runtime, tuple(read), outputs, after, workspace, weights, flops, shapes))
        tensors += [tensor.name for tensor in outputs]
    kept = tuple(tensors[code] if code >= 0 else inputs[-1 - code].name for code in structure["outputs"])
    return ComputationGraph(name, tuple(ops[place] for place in order), tuple(inputs), kept)
