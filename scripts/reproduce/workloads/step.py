"""A model's training step, and which of its ops came of which op of the forward pass."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Literal

from reproduce.workloads.model import Batch, Model
from reproduce.workloads.weights import Weights

RATE = 0.1
UPDATE = "update"  # the scope of what changes a parameter

Parameters = dict[str, jax.Array]
Step = Callable[[Parameters, Batch], tuple[Parameters, jax.Array, Any]]


def training_step(model: Model, mark: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn) -> Step:
    """`step(parameters, batch) -> (parameters, loss, state)`: plain gradient descent.

    Args:
      model: of which loss.
      mark: what the loss is wrapped in before it is differentiated: see `numbered`.
    """

    def step(parameters: Parameters, batch: Batch) -> tuple[Parameters, jax.Array, Any]:
        loss = mark(lambda parameters, batch: model.loss(Weights(parameters), batch))
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, batch)
        updated = {}
        for name, parameter in parameters.items():
            with jax.named_scope(f"{UPDATE}/{name}"):
                updated[name] = parameter - RATE * gradients[name]
        return updated, value, state

    return step


def numbered(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, equation i of its jaxpr in the scope `#i`, which JAX's derivatives keep: an op of the backward
    pass says by it which op of the forward pass it is of.
    """

    def with_numbers(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        jaxpr = closed.jaxpr
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values |= dict(zip(jaxpr.invars, jax.tree.leaves(args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for number, equation in enumerate(jaxpr.eqns):
            primitive = equation.primitive
            with jax.named_scope(f"{equation.source_info.name_stack}/#{number}"):
                results = primitive.bind(*map(read, equation.invars), **primitive.get_bind_params(equation.params))
            values.update(zip(equation.outvars, results if primitive.multiple_results else [results], strict=True))
        return jax.tree.unflatten(jax.tree.structure(shape), map(read, jaxpr.outvars))

    return with_numbers
