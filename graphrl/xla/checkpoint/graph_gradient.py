"""The decision problem of a training step that is given as a computation graph.

jax writes `transpose(...)` into the scopes of backward ops, and op names of graphs read from jax programs contain these
scopes. All else is as for a traced function: op types decide on fusion, and run times of fused ops are estimated by
roofline. Kernels and loops have the run times of the graph. Loops are single ops, whose bodies stay as they are.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from graphrl.costs.fusion.problem import ELEMENTWISE, RENAMES
from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.layers import REDUCTIONS
from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result
from graphrl.graphs.roofline import Chip
from graphrl.xla.checkpoint.derivative import Derivative, Value
from graphrl.xla.checkpoint.equations import KERNELS, SLICES, VIEWS, is_scatter
from graphrl.xla.checkpoint.gradient import LevelBuilder, Origin
from graphrl.xla.checkpoint.memory import RANDOM
from graphrl.xla.checkpoint.solvers.level import Gradient

BACKWARD = "transpose("  # part of the names of backward ops
PARAMETER = "variable"  # the type of ops that only represent parameters
MOVING = ("gather", "scatter")  # start of op types that are kernels in XLA


class GraphGradient(NamedTuple):
    """A graph's gradient, with links from its arrays to the graph.

    Attributes:
      gradient: the decision problem for a solver, with one level; its "equations" are the forward ops.
      ops: for each value, the op that computes it.
      places: for each value, the index of that op in the graph.
    """

    gradient: Gradient
    ops: tuple[Op, ...]
    places: tuple[int, ...]

    def origin(self, number: int, value: int) -> Origin:
        """Returns the origin of a value for the report: index, type and name of its op."""
        del number
        return Origin((self.places[value],), self.ops[value].type, self.ops[value].name)


def gradient_of_graph(graph: ComputationGraph, chip: Chip) -> GraphGradient:
    """Builds the decision problem of a training step.

    Args:
      graph: forward and backward pass, and optionally ops that depend on the latter, such as an optimizer's.
      chip: the chip for which run times of fused ops are estimated.

    Raises:
      GraphError: the graph has no backward ops that read values of the forward pass.
    """
    forward, backward = _passes(graph)
    derivative = _derivative(graph, forward, backward)
    builder = LevelBuilder(derivative, chip, (), {})
    level = builder.level(0, np.zeros(len(forward), bool))
    if not len(level.kernel_reads):
        raise GraphError(
            f"{graph.name} has no backward pass: its ops would have {BACKWARD}...) in their names, as those of a "
            "gradient traced from JAX have (for example zoo:distilbert/training/b2/jaxpr)"
        )
    places = tuple(forward[value.node] for value in builder.values if isinstance(value, Result))
    gradient = Gradient((level,), ({},), sum(derivative.outside), derivative.result_bytes)
    return GraphGradient(gradient, tuple(graph.ops[i] for i in places), places)


def _passes(graph: ComputationGraph) -> tuple[list[int], list[int]]:
    """Splits ops into forward and backward pass, in topological order and without parameters. The backward pass has the
    ops with `BACKWARD` in their names, and all ops that depend on them.
    """
    writer = {tensor.name: i for i, op in enumerate(graph.ops) for tensor in op.outputs}
    index = {op.name: i for i, op in enumerate(graph.ops)}
    after = [False] * len(graph.ops)
    passes: tuple[list[int], list[int]] = [], []
    for i in graph.arrays.topological.tolist():
        op = graph.ops[i]
        before = [*(writer[name] for name in op.inputs if name in writer), *(index[name] for name in op.after)]
        after[i] = BACKWARD in op.name or any(after[j] for j in before)
        if op.type != PARAMETER:
            passes[after[i]].append(i)
    return passes


def _derivative(graph: ComputationGraph, forward: Sequence[int], backward: Sequence[int]) -> Derivative:
    """Builds the derivative that a trace of the training step would give: ops of the forward pass first."""
    parameters = [tensor for op in graph.ops if op.type == PARAMETER for tensor in op.outputs]
    outside = [*graph.inputs, *parameters]
    sizes = {
        tensor.name: tensor.bytes for tensors in (outside, *(op.outputs for op in graph.ops)) for tensor in tensors
    }
    values: dict[str, Value] = {tensor.name: Outside(k) for k, tensor in enumerate(outside)}
    same: dict[Value, Value] = {}
    names: dict[Value, tuple[int, int]] = {}
    nodes: list[Node | None] = []
    for number, i in enumerate((*forward, *backward)):
        op = graph.ops[i]
        values |= {tensor.name: Result(number, k) for k, tensor in enumerate(op.outputs)}
        node = _node(op, values, sizes)
        is_view = op.type in VIEWS | RENAMES and len(node.inputs) == len(op.outputs) == 1
        if is_view:
            same[Result(number, 0)] = same.get(node.inputs[0], node.inputs[0])
        elif number < len(forward):
            names |= {Result(number, k): (number, k) for k in range(len(op.outputs))}
        nodes.append(None if is_view else node)
    outputs = [same.get(values[name], values[name]) for name in graph.outputs]
    is_forward = {value: isinstance(value, Result) and value.node < len(forward) for value in outputs}
    return Derivative(
        nodes=nodes,
        backward=[False] * len(forward) + [True] * len(backward),
        place=[*range(len(forward)), *_backward_places(nodes, same, len(forward))],
        same=same,
        names=names,
        results=frozenset(value for value in outputs if is_forward[value]),
        gradients=frozenset(value for value in outputs if not is_forward[value]),
        returned=(),
        orders={},
        padded={},
        outside=[tensor.bytes for tensor in outside],
        result_bytes=sum(sizes[name] for name in graph.outputs),
    )


def _node(op: Op, values: dict[str, Value], sizes: Mapping[str, int]) -> Node:
    """Converts an op to a node of a flattened jaxpr. Only scatters get operands, since the first one is updated."""
    inputs = list(dict.fromkeys(values[name] for name in op.inputs))
    equation = _equation(op, sizes)
    return Node(
        type=op.type,
        scope=op.name,
        inputs=inputs,
        output_bytes=[tensor.bytes for tensor in op.outputs],
        flops=op.flops,
        runtime=float(op.runtime),  # may be an integer beyond 64 bits
        workspace_bytes=op.workspace_bytes,
        after=[],
        effectful=False,
        equation=equation,
        operands=list(inputs) if is_scatter(equation) else [],
    )


def _backward_places(nodes: Sequence[Node | None], same: dict[Value, Value], forward: int) -> list[int]:
    """Returns for each backward op the last forward op that it or a later backward op reads from: a backward pass goes
    through the forward ops from the last to the first.
    """
    places, last = [], 0
    for node in reversed(nodes[forward:]):
        read = [same.get(value, value) for value in node.inputs] if node is not None else []
        last = max([last, *(v.node for v in read if isinstance(v, Result) and v.node < forward)])
        places.append(last)
    return places[::-1]


def _equation(op: Op, sizes: Mapping[str, int]) -> Any:
    """Converts an op to an object with the attributes of a jax equation that the model reads. It has an effect, so that
    no two count as equal: a graph does not record which elements a slice takes.
    """
    if op.type in REDUCTIONS:
        name, params = "reduce", {"axes": (1 if _reduces_rows(op, sizes) else 0,)}
        invars = [SimpleNamespace(aval=SimpleNamespace(shape=(0, 0)))]
    else:
        kernel = op.type in KERNELS or op.type.lower().startswith(MOVING)
        fused = not kernel and (op.type in ELEMENTWISE | SLICES or op.type.startswith(RANDOM))
        name, params, invars = op.type if fused or op.type.startswith("scatter") else "custom_call", {}, []
    return SimpleNamespace(primitive=SimpleNamespace(name=name), params=params, invars=invars, effects=(op.name,))


def _reduces_rows(op: Op, sizes: Mapping[str, int]) -> bool:
    """True if a reduction turns each of several rows into one number, as far as sizes show."""
    if op.layer is None or not op.inputs:
        return False
    several = op.layer.batch * op.layer.input_x * op.layer.input_y > 1
    return several and sizes[op.inputs[0]] == op.layer.input_z * op.outputs[0].bytes
