"""Models as programs: a function with abstract arguments, of inference and of a training step.

Nothing here stores weights: arguments are `jax.ShapeDtypeStruct`s, enough to trace (`from_jax`), lower and compile. A
model is a Keras model, a Flax Linen module, or any function `fn(weights, *inputs)`.

    program = training_step(model, jax.ShapeDtypeStruct((224, 224, 3), "float32"), batch=8)
    compiled = graphrl.compile(program.fn, *program.args)
    graph = graphrl.from_jax(program.fn, *program.args, weights_argnums=program.weights)

Keras (with its JAX backend) gives every variable its initial value when a layer is built. Traces and compilations need
no values, so `abstract_variables` leaves them out: a model of 47 billion parameters takes a few megabytes. The methods
that it replaces are private to Keras (tested with 3.8 to 3.15); `graphrl` does not depend on Keras otherwise.
"""

import contextlib
import functools
import importlib
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.errors import GraphrlError

SMALL = 64  # elements: layers read some small variables while they build (seeds, counters), so these have values
_METHODS = ("_initialize_with_initializer", "_deferred_initialize")


class Program(NamedTuple):
    """A function and its abstract arguments.

    Attributes:
      fn: pure; takes `args`.
      args: pytrees of `jax.ShapeDtypeStruct`s.
      weights: positions of the arguments that stay in memory from run to run (parameters, statistics, moments).
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    weights: tuple[int, ...]


class Parts(NamedTuple):
    """Weights, state and call of a model, as pure JAX.

    Attributes:
      weights: values that training differentiates by: a pytree of `jax.ShapeDtypeStruct`s.
      state: other values that the call reads and updates: statistics, seeds.
      call: function of weights, state, inputs and True for training; returns outputs and state.
    """

    weights: Any
    state: Any
    call: Callable[[Any, Any, Any, bool], tuple[Any, Any]]


def inference(model: Any, inputs: Any, *, batch: int, weights: Any = None, **call: Any) -> Program:
    """Builds the inference program `fn(weights, state, inputs) -> outputs` of a model.

    Args:
      model: a Keras model, a Flax Linen module, or a function `fn(weights, *inputs)`.
      inputs: inputs of one example: a pytree of `jax.ShapeDtypeStruct`s. A tuple is several arguments for a module or a
        function; a Keras model takes it as it is.
      batch: the first dimension that every array gets.
      weights: for a function only: its parameters, a pytree of `jax.ShapeDtypeStruct`s.
      **call: keyword arguments of a module's or function's call, such as `train=False`; no arrays.

    Returns:
      The program. `state` contains the model's values other than parameters (statistics, seeds); empty for a function.
    """
    inputs = _batched(inputs, batch)
    parts = _parts(model, inputs, weights, call)

    def apply(weights: Any, state: Any, inputs: Any) -> Any:
        return parts.call(weights, state, inputs, False)[0]

    return Program(apply, (parts.weights, parts.state, inputs), (0, 1))


def training_step(model: Any, inputs: Any, *, batch: int, weights: Any = None, **call: Any) -> Program:
    """Builds `fn(weights, state, inputs) -> ((loss, state), gradients)` of a model; arguments as for `inference`.

    The loss is the `mean_square` of the outputs.
    """
    inputs = _batched(inputs, batch)
    parts = _parts(model, inputs, weights, call)

    def objective(weights: Any, state: Any, inputs: Any) -> tuple[jax.Array, Any]:
        outputs, state = parts.call(weights, state, inputs, True)
        return mean_square(outputs), state

    gradient = jax.value_and_grad(objective, has_aux=True)
    return Program(gradient, (parts.weights, parts.state, inputs), (0, 1))


def mean_square(outputs: Any) -> jax.Array:
    """Sums the mean square of each output array, in float32: a loss that needs no labels."""
    leaves = jax.tree_util.tree_leaves(outputs)
    return functools.reduce(operator.add, (jnp.mean(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves))


def _batched(inputs: Any, batch: int) -> Any:
    return jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape), x.dtype), inputs)


def _parts(model: Any, inputs: Any, weights: Any, call: dict[str, Any]) -> Parts:
    if _is_a(model, "keras", "Model", "Layer"):
        return _keras_parts(model, call)
    if _is_a(model, "flax.linen", "Module"):
        return _flax_parts(model, inputs, call)

    def apply(weights: Any, state: Any, inputs: Any, training: bool) -> tuple[Any, Any]:
        return model(weights, *_arguments(inputs), **call), state

    return Parts(weights, {}, apply)


def _is_a(model: Any, module: str, *names: str) -> bool:
    """True if the model is an instance of a library's class. A library that is not imported has no instances."""
    library = sys.modules.get(module)
    return library is not None and isinstance(model, tuple(getattr(library, name) for name in names))


def _arguments(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _flax_parts(module: Any, inputs: Any, call: dict[str, Any]) -> Parts:
    """Splits a Flax Linen module: weights are `params`; state is all other collections and a key for dropout."""
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)

    def init(key: jax.Array, *inputs: Any) -> Any:
        return module.init({"params": key, "dropout": key}, *inputs, **call)

    variables = dict(jax.eval_shape(init, key, *_arguments(inputs)))
    weights = variables.pop("params", {})

    def apply(weights: Any, state: Any, inputs: Any, training: bool) -> tuple[Any, Any]:
        held = {"params": weights, **state["variables"]}
        if not training:
            return module.apply(held, *_arguments(inputs), **call), state
        key, dropout = jax.random.split(state["key"])
        outputs, renewed = module.apply(
            held, *_arguments(inputs), rngs={"dropout": dropout}, mutable=list(state["variables"]), **call
        )
        return outputs, {"variables": {**state["variables"], **renewed}, "key": key}

    return Parts(weights, {"variables": variables, "key": key}, apply)


@contextlib.contextmanager
def abstract_variables() -> Iterator[None]:
    """Context manager in which Keras layers are built without values in variables of more than `SMALL` elements.

    Such a model has shapes, and can be called through `stateless_call` (as `inference` does) after the `with` too;
    calling it directly, or loading weights, fails.

    Raises:
      GraphrlError: Keras is missing, has another backend than JAX, or lacks the methods that this module replaces.
    """
    variable = _variable_class()
    originals = {name: getattr(variable, name) for name in _METHODS}

    def initialize(self: Any, initializer: Any) -> None:
        if math.prod(self._shape) <= SMALL:
            originals["_initialize_with_initializer"](self, initializer)
        else:
            self._value, self._initializer = None, initializer

    def deferred(self: Any) -> None:
        if math.prod(self._shape) <= SMALL:
            originals["_deferred_initialize"](self)

    try:
        for name, method in zip(_METHODS, (initialize, deferred), strict=True):
            setattr(variable, name, method)
        yield
    finally:
        for name, method in originals.items():
            setattr(variable, name, method)


def _keras_parts(model: Any, call: dict[str, Any]) -> Parts:
    """Splits a built Keras model or layer; `call` has keyword arguments of its call."""

    def apply(weights: Any, state: Any, inputs: Any, training: bool) -> tuple[Any, Any]:
        return model.stateless_call(weights, state, inputs, training=training, **call)

    return Parts(_abstract(model.trainable_variables), _abstract(model.non_trainable_variables), apply)


def _abstract(variables: Any) -> list[jax.ShapeDtypeStruct]:
    from keras import backend

    return [jax.ShapeDtypeStruct(v.shape, backend.standardize_dtype(v.dtype)) for v in variables]


def _variable_class() -> Any:
    try:
        keras = importlib.import_module("keras")
        if keras.backend.backend() != "jax":
            raise GraphrlError(f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=jax before importing it")
        variable = importlib.import_module("keras.src.backend.jax.core").JaxVariable
    except ImportError as error:
        raise GraphrlError(
            f"Keras models need keras >= 3.8 and KERAS_BACKEND=jax in the environment: {error}"
        ) from None
    except AttributeError:
        variable = None
    missing = [name for name in _METHODS if not hasattr(variable, name)]
    if missing:
        raise GraphrlError(f"keras {keras.__version__}: its variables have no {missing[0]}: known are 3.8 to 3.15")
    return variable
