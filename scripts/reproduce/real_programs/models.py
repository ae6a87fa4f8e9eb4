"""What a model of any kind is made of: parameters, other state, and a pure call."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.errors import GraphrlError


class Parts(NamedTuple):
    """A model taken apart.

    Attributes:
      weights: what training differentiates by: a pytree of `jax.ShapeDtypeStruct`s.
      state: what the call reads and renews beside them: statistics, seeds.
      call: weights, state, inputs, whether it is training -> outputs, state.
    """

    weights: Any
    state: Any
    call: Callable[[Any, Any, Any, bool], tuple[Any, Any]]


def open_model(model: Any, inputs: Any, weights: Any, call: dict[str, Any]) -> Parts:
    """Takes a model apart; arguments as for `programs.inference`, `inputs` with their batch.

    Raises:
      GraphrlError: it is of no kind that is known, or the weights are missing or too many.
    """
    has_weights = _is_a(model, "keras", "Model", "Layer") or _is_a(model, "flax.linen", "Module")
    if has_weights and weights is not None:
        raise GraphrlError(f"{type(model).__name__} has its own weights: give weights only with a function")
    if _is_a(model, "keras", "Model", "Layer"):
        from reproduce.real_programs.keras_models import keras_parts

        return keras_parts(model, call)
    if _is_a(model, "flax.linen", "Module"):
        return _flax_parts(model, inputs, call)
    if not callable(model):
        raise GraphrlError(
            f"model is of type {type(model).__name__}: must be a Keras model, a Flax module or a function"
        )
    if weights is None:
        raise GraphrlError("a function needs weights=: the pytree that it takes before its inputs")
    return _function_parts(model, weights, call)


def abstract(tree: Any) -> Any:
    """The shapes and types of a pytree of arrays."""
    return jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _is_a(model: Any, module: str, *names: str) -> bool:
    """Whether it is an instance of a class of a library that somebody else imported: without, there is none."""
    library = sys.modules.get(module)
    return library is not None and isinstance(model, tuple(getattr(library, name) for name in names))


def _arguments(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _function_parts(fn: Callable[..., Any], weights: Any, call: dict[str, Any]) -> Parts:
    def apply(weights: Any, state: Any, inputs: Any, training: bool) -> tuple[Any, Any]:
        return fn(weights, *_arguments(inputs), **call), state

    return Parts(abstract(weights), {}, apply)


def _flax_parts(module: Any, inputs: Any, call: dict[str, Any]) -> Parts:
    """A Flax Linen module: `params` are its weights; all other collections and a key for dropout are its state."""
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
