"""Runs a JAX function op by op in any order of its graph's ops, as the graph of `from_jax` predicts.

Every op runs alone and to its end, and a value is freed when the last op that reads it has run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from graphrl.graphs.readers.jaxpr.flatten import External, Outside, Result, Scalar, Value, flatten
from graphrl.graphs.roofline import DEFAULT_CHIP, find_chip


class OpByOp:
    """A traced function, and its live values during evaluation.

    Attributes:
      live_bytes: bytes of all values that ops wrote and that are still needed, by place in the order: when the op there
        has written its own values and before its operands are freed. Memory rules compare this number with the peak.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        self._closed, results = jax.make_jaxpr(fn, return_shape=True)(*args)
        self._arguments = jax.tree.leaves(args)
        self._result = jax.tree.structure(results)
        given = [External(str(i), 0, False) for i in range(len(self._arguments))]
        self._flat = flatten(self._closed, given, find_chip(DEFAULT_CHIP))
        self._ops = [index for index, alive in enumerate(self._flat.live) if alive]

    def run(self, order: Sequence[int], watch: Callable[[], None]) -> Any:
        """Evaluates the ops in an order and gives the function's results; `watch` is called after each."""
        flat, self._values, live = self._flat, dict[Result, Any](), 0
        reads = Counter(value for index in self._ops for value in flat.nodes[index].inputs)
        reads.update(value for value in flat.outputs if isinstance(value, Result))  # these counts never reach 0
        self.live_bytes = []
        for index in (self._ops[op] for op in order):
            node = flat.nodes[index]
            written = [Result(index, output) for output in range(len(node.output_bytes))]
            self._values.update(zip(written, self._compute(node), strict=True))
            live += sum(self._values[value].nbytes for value in written)
            self.live_bytes.append(live)
            watch()
            reads.subtract(node.inputs)
            for value in (*node.inputs, *written):
                if isinstance(value, Result) and not reads[value]:
                    live -= self._values.pop(value).nbytes
        pairs = zip(flat.outputs, self._closed.out_avals, strict=True)
        return jax.tree.unflatten(self._result, [self._read(value, aval) for value, aval in pairs])

    def _compute(self, node: Any) -> Sequence[Any]:
        primitive = node.equation.primitive
        pairs = zip(node.operands, node.equation.invars, strict=True)
        operands = [self._read(value, atom.aval) for value, atom in pairs]
        with node.equation.ctx.manager:
            results = primitive.bind(*operands, **primitive.get_bind_params(node.equation.params))
        return jax.block_until_ready(results if primitive.multiple_results else [results])

    def _read(self, value: Value, aval: Any) -> Any:
        if isinstance(value, Scalar):
            return np.asarray(value.value, aval.dtype)
        if isinstance(value, Outside):
            constants = [external.array for external in self._flat.externals[len(self._arguments) :]]
            return [*self._arguments, *constants][value.external]
        return self._values[value]
