"""Which external inputs of a graph are weights: readers give a weight's bytes to the first op that reads it."""

from graphrl.graphs.graph import ComputationGraph, Op

_MOST_SUMS = 100_000  # of bytes, that are looked at for one op


def own_weights(graph: ComputationGraph) -> list[set[str]]:
    """The external inputs of each op whose bytes are in its `weight_bytes`: `[n]` sets of names."""
    size = {tensor.name: int(tensor.bytes) for tensor in graph.inputs}
    seen: set[str] = set()
    weights: list[set[str]] = [set() for _ in graph.ops]
    for index in graph.arrays.topological.tolist():
        op = graph.ops[index]
        shared = {tensor.alias for tensor in op.outputs}
        fresh = [name for name in dict.fromkeys(op.inputs) if name in size and name not in seen | shared]
        seen.update(fresh)
        weights[index] = _summing(fresh, size, op)
    return weights


def listed_weights(graph: ComputationGraph) -> list[set[str]]:
    """The same where all weights are among the inputs, as readers leave them; else, as in layers, none: `[n]` sets."""
    weights, size = own_weights(graph), {tensor.name: int(tensor.bytes) for tensor in graph.inputs}
    sums = (sum(size[name] for name in names) for names in weights)
    if all(total == op.weight_bytes for total, op in zip(sums, graph.ops, strict=True)):
        return weights
    return [set() for _ in graph.ops]


def _summing(names: list[str], size: dict[str, int], op: Op) -> set[str]:
    """Those of the names whose sizes sum to the op's weights, later ones first; where none do, those that fit."""
    if op.weight_bytes == 0:
        return set()
    sums: dict[int, tuple[str, ...]] = {0: ()}
    for name in reversed(names):
        sums |= {
            total + size[name]: (*chosen, name) for total, chosen in sums.items() if total + size[name] not in sums
        }
        if op.weight_bytes in sums:
            return set(sums[op.weight_bytes])
        if len(sums) > _MOST_SUMS:
            break
    left, chosen = op.weight_bytes, set()
    for name in sorted(names, key=lambda name: -size[name]):
        if size[name] <= left:
            left -= size[name]
            chosen.add(name)
    return chosen
