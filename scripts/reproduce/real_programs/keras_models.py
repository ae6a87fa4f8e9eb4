"""Keras models without memory: built with abstract variables, called without state.

Keras (with its JAX backend) gives every variable its initial value when a layer is built. To trace or compile a model
no values are needed, so `abstract_variables` leaves them out: a model of 47 billion parameters takes a few megabytes.
What it replaces is private to Keras (seen in 3.8 to 3.15); `graphrl` does not depend on Keras otherwise.
"""

import contextlib
import importlib
import math
from collections.abc import Iterator
from typing import Any

import jax

from graphrl.errors import GraphrlError
from reproduce.real_programs.models import Parts

SMALL = 64  # elements: layers read some small variables while they build (seeds, counters), so these have values
_METHODS = ("_initialize_with_initializer", "_deferred_initialize")


@contextlib.contextmanager
def abstract_variables() -> Iterator[None]:
    """Keras layers built inside have no values in variables of more than `SMALL` elements.

    Such a model has shapes, and can be called through `stateless_call` (as `programs.inference` does) after the `with`
    too; calling it directly, or loading weights, fails.

    Raises:
      GraphrlError: Keras is missing, has another backend than JAX, or is not built as this module knows it.
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


def keras_parts(model: Any, call: dict[str, Any]) -> Parts:
    """A built Keras model or layer taken apart; `call` is keyword arguments of its call.

    Raises:
      GraphrlError: it has no variables yet because it never saw an input's shape.
    """
    if not model.built:
        raise GraphrlError(f"Keras model {model.name!r} is not built: give it an Input, or call model.build(shape)")

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
