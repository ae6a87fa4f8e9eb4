"""Evaluating a JAX function op by op in a plan's order: what the graph of `from_jax` predicts, made true.

Every op runs alone and to its end, and a value is freed when the last op that reads it has run. So the bytes of all
live values are, op by op, those of the graph's memory rules: a test of the rules, and the one way to run
in a plan's order where XLA takes no schedule. It is no fast way: nothing is fused.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import GraphrlError, PlanError
from graphrl.graphs.readers.jaxpr.flatten import Node, Outside, Result, Scalar, Value
from graphrl.graphs.readers.jaxpr.reader import Traced
from graphrl.plan import Plan


class Evaluation(NamedTuple):
    """What came of an evaluation of n ops.

    Attributes:
      results: what the function returns.
      live_bytes: `[n]` int64, bytes of all values that ops wrote and that are still needed, by place in the order:
        when the op there has written its own and before what it read is freed. That is what memory rules compare with
        the peak, but for `workspace_bytes`, which no one sees from outside.
    """

    results: Any
    live_bytes: np.ndarray


def evaluate(
    traced: Traced, *args: Any, plan: Plan | None = None, watch: Callable[[int, int], None] | None = None, **kwargs: Any
) -> Evaluation:
    """Evaluates a traced function on `args` and `kwargs`, one op at a time.

    Args:
      traced: from `graphs.readers.jaxpr.reader.trace`.
      *args, **kwargs: of the shapes and types that it was traced with; static ones are not looked at. (A function whose
        keyword is called `plan` or `watch` is traced with that bound.)
      plan: of `traced.graph` on one device; by default the program's own order.
      watch: called with the place and its live bytes when they are counted.

    Raises:
      GraphrlError: an argument has another shape or type.
      PlanError: the plan is of another graph, breaks a rule or has several devices.
    """
    given = _arguments(traced, args, kwargs)
    evaluator = _Evaluator(traced, given)
    live = []
    for place, op in enumerate(_order(traced, plan)):
        live.append(evaluator.run(traced.nodes[op]))
        if watch is not None:
            watch(place, live[-1])
        evaluator.release(traced.nodes[op])
    pairs = zip(traced.flat.outputs, traced.closed.out_avals, strict=True)
    results = [_result(evaluator.read(value, aval)) for value, aval in pairs]
    return Evaluation(jax.tree_util.tree_unflatten(traced.result, results), np.array(live, np.int64))


def _order(traced: Traced, plan: Plan | None) -> Sequence[int]:
    """The ops, as they run."""
    if plan is None:
        return range(len(traced.nodes))
    if plan.problem.devices != 1:
        raise PlanError(f"the plan is for {plan.problem.devices} devices: op by op runs on one")
    plan.check(traced.graph)
    return plan.decisions(traced.graph)[1].tolist()


def _arguments(traced: Traced, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arrays among the arguments, in the jaxpr's order."""
    arrays = [arg for i, arg in enumerate(args) if i not in traced.static]
    given = jax.tree_util.tree_leaves((arrays, kwargs))
    avals = traced.closed.in_avals
    if len(given) != len(avals):
        raise GraphrlError(f"{len(given)} arrays given: {traced.graph.name} was traced with {len(avals)}")
    return [_checked(*pair, traced.graph.inputs[i].name) for i, pair in enumerate(zip(given, avals, strict=True))]


def _checked(value: Any, aval: Any, name: str) -> Any:
    """The argument as an array. Those that JAX does not hold yet stay on the host, where they are not counted."""
    own = jax.typeof(value)
    if (own.shape, own.dtype) != (aval.shape, aval.dtype):
        raise GraphrlError(f"argument {name} is {own.str_short()}: it was traced as {aval.str_short()}")
    return value if isinstance(value, jax.Array) else np.asarray(value, aval.dtype)


class _Evaluator:
    """The values that live, and how many reads each still waits for."""

    def __init__(self, traced: Traced, arguments: Sequence[Any]) -> None:
        flat = traced.flat
        self._nodes = flat.nodes
        self._outside = [*arguments, *(external.array for external in flat.externals[len(arguments) :])]
        self._values: dict[Result, Any] = {}
        self._bytes = 0
        self._reads = Counter(value for index in traced.nodes for value in flat.nodes[index].inputs)
        self._reads.update(value for value in flat.outputs if isinstance(value, Result))  # these never come to nought

    def run(self, index: int) -> int:
        """Runs a node to its end; returns the bytes that live then."""
        node = self._nodes[index]
        for output, value in enumerate(_compute(node, self._operands(node))):
            self._values[Result(index, output)] = value
            self._bytes += _nbytes(value)
        return self._bytes

    def release(self, index: int) -> None:
        """Frees what the node read last, and those of its outputs that nobody reads."""
        node = self._nodes[index]
        self._reads.subtract(node.inputs)
        for value in (*node.inputs, *(Result(index, output) for output in range(len(node.output_bytes)))):
            if isinstance(value, Result) and not self._reads[value]:
                self._bytes -= _nbytes(self._values.pop(value))

    def read(self, value: Value, aval: Any) -> Any:
        """What stands for a value; a literal becomes an array of its own type on the host."""
        if isinstance(value, Scalar):
            return np.asarray(value.value, aval.dtype)
        return self._outside[value.external] if isinstance(value, Outside) else self._values[value]

    def _operands(self, node: Node) -> list[Any]:
        pairs = zip(node.operands, node.equation.invars, strict=True)
        return [self.read(value, atom.aval) for value, atom in pairs]


def _compute(node: Node, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of a node's equation. All of them are there when it returns, whatever JAX's asynchronous dispatch."""
    primitive = node.equation.primitive
    with node.equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(node.equation.params))
    return jax.block_until_ready(results if primitive.multiple_results else [results])


def _result(value: Any) -> Any:
    """A result as `jax.jit` returns it; what literals and host arguments hold becomes JAX's."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) and value.dtype != jax.dtypes.float0 else value


def _nbytes(value: Any) -> int:
    """Of a value in memory; tokens have none."""
    return getattr(value, "nbytes", 0)
