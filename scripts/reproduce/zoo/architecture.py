"""What an architecture of the zoo is."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

SMALL: dict[str, Any] = {"inference": (1, 8), "training": (2, 8)}
LARGE: dict[str, Any] = {"inference": (1, 4), "training": (1, 4)}


@dataclasses.dataclass(frozen=True)
class Function:
    """A plain JAX model: `fn(weights, *inputs)` and its abstract weights."""

    fn: Callable[..., Any]
    weights: Any


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model at one size.

    Attributes:
      name: in names of programs.
      family: a key of `graphrl.graphs.datasets.zoo.program.SPLITS`.
      build: gives the model (Keras model, Flax module or `Function`); called in a process of its own.
      inputs: of one example: a pytree of `jax.ShapeDtypeStruct`s.
      inference, training: batch sizes.
      levels: which graphs are made of it.
      training_call: keyword arguments of a Flax module's call in training.
      keras: whether `build` makes Keras variables, which then get no values.
    """

    name: str
    family: str
    build: Callable[[], Any]
    inputs: Any
    inference: tuple[int, ...] = (1, 16)
    training: tuple[int, ...] = (8, 32)
    levels: tuple[str, ...] = ("jaxpr", "hlo")
    training_call: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keras: bool = True


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """One float32 array of this shape."""
    return jax.ShapeDtypeStruct(shape, "float32")


def image(size: int) -> jax.ShapeDtypeStruct:
    """A square image."""
    return floats(size, size, 3)


def tokens(length: int, *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Integer sequences by name."""
    return {name: jax.ShapeDtypeStruct((length,), "int32") for name in names}


def hub(name: str, **options: Any) -> Callable[[], Any]:
    """What builds a model of keras_hub.

    Args:
      name: in `keras_hub.models`, or with a module of `keras_hub.src.models` before it.
      **options: of the model; what builds another model stands for that one.
    """

    def build() -> Any:
        module, _, model = name.rpartition(".")
        library = importlib.import_module(f"keras_hub.src.models.{module}" if module else "keras_hub.models")
        built = {key: value() if callable(value) else value for key, value in options.items()}
        return getattr(library, model)(**built)

    return build
