"""Models as programs: a function with abstract arguments, of inference and of a training step.

Nothing here holds weights: arguments are `jax.ShapeDtypeStruct`s, enough to trace (`from_jax`), lower and compile. A
model is a Keras model (`keras_models.abstract_variables` builds one without memory), a Flax Linen module, or any
function `fn(weights, *inputs)`.

    program = training_step(model, jax.ShapeDtypeStruct((224, 224, 3), "float32"), batch=8)
    compiled = graphrl.compile(program.fn, *program.args)
    graph = graphrl.from_jax(program.fn, *program.args, weights_argnums=program.weights)
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.errors import GraphrlError
from reproduce.real_programs.models import Parts, open_model


class Program(NamedTuple):
    """A function and what to trace it with.

    Attributes:
      fn: pure; takes `args`.
      args: pytrees of `jax.ShapeDtypeStruct`s.
      weights: numbers of the arguments that stay in memory from run to run (parameters, statistics, moments).
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    weights: tuple[int, ...]


def mean_square(outputs: Any) -> jax.Array:
    """The sum over the output arrays of the mean of their squares, in float32: a loss that needs no labels."""
    leaves = jax.tree_util.tree_leaves(outputs)
    return functools.reduce(operator.add, (jnp.mean(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves))


def inference(model: Any, inputs: Any, *, batch: int | None = None, weights: Any = None, **call: Any) -> Program:
    """`fn(weights, state, inputs) -> outputs` of a model.

    Args:
      model: a Keras model, a Flax Linen module, or a function `fn(weights, *inputs)`.
      inputs: the model's input: a pytree of arrays or `jax.ShapeDtypeStruct`s. A tuple is several arguments for a
        module or a function; a Keras model takes it as it is.
      batch: with it, `inputs` are those of one example, and every array gets a first dimension of this size.
      weights: for a function only: its parameters, a pytree of arrays or `jax.ShapeDtypeStruct`s.
      **call: keyword arguments of a module's or function's call, such as `train=False`; no arrays.

    Returns:
      The program. `state` is what a model carries beside its parameters (statistics, seeds); empty for a function.

    Raises:
      GraphrlError: the model is of no kind that is known here, or weights or the batch do not fit it.
    """
    parts, inputs = _open(model, inputs, batch, weights, call)

    def apply(weights: Any, state: Any, inputs: Any) -> Any:
        return parts.call(weights, state, inputs, False)[0]

    return Program(apply, (parts.weights, parts.state, inputs), (0, 1))


def training_step(model: Any, inputs: Any, *, batch: int | None = None, weights: Any = None, **call: Any) -> Program:
    """`fn(weights, state, inputs) -> ((loss, state), gradients)` of a model; arguments as for `inference`. The loss is
    the `mean_square` of the outputs.

    Raises:
      GraphrlError: see `inference`.
    """
    parts, inputs = _open(model, inputs, batch, weights, call)

    def objective(weights: Any, state: Any, inputs: Any) -> tuple[jax.Array, Any]:
        outputs, state = parts.call(weights, state, inputs, True)
        return mean_square(outputs), state

    gradient = jax.value_and_grad(objective, has_aux=True)
    return Program(gradient, (parts.weights, parts.state, inputs), (0, 1))


def _open(model: Any, inputs: Any, batch: int | None, weights: Any, call: dict[str, Any]) -> tuple[Parts, Any]:
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise GraphrlError(f"batch is {batch!r}: must be an integer of at least 1")
    if not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree_util.tree_leaves(inputs)):
        raise GraphrlError("inputs must be arrays or jax.ShapeDtypeStruct(shape, dtype), alone or in a pytree")
    first = () if batch is None else (batch,)
    inputs = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct((*first, *x.shape), x.dtype), inputs)
    return open_model(model, inputs, weights, call), inputs
