"""Type of the zoo's architectures, and those without Keras: an MLP-Mixer in plain JAX, a U-Net in Flax."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

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
      name: name in the names of programs.
      family: a key of `graphrl.graphs.datasets.zoo.program.SPLITS`.
      build: returns the model (Keras model, Flax module or `Function`); called in a separate process.
      inputs: inputs of one example: a pytree of `jax.ShapeDtypeStruct`s.
      inference, training: batch sizes of either kind of program.
      levels: graphs to read from it, "jaxpr" or "hlo".
      training_call: keyword arguments of a Flax module's call in training.
      keras: True if `build` makes Keras variables, which then get no values.
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
    """Returns the abstract float32 array of this shape."""
    return jax.ShapeDtypeStruct(shape, "float32")


def image(size: int) -> jax.ShapeDtypeStruct:
    """Returns the abstract float32 array of a square image."""
    return floats(size, size, 3)


def tokens(length: int, *names: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns abstract integer sequences by name."""
    return {name: jax.ShapeDtypeStruct((length,), "int32") for name in names}


def hub(name: str, **options: Any) -> Callable[[], Any]:
    """Returns a function that builds a model of keras_hub.

    Args:
      name: class name in `keras_hub.models`, or with a module of `keras_hub.src.models` before it.
      **options: options of the model; a builder among them is replaced by the model that it builds.
    """

    def build() -> Any:
        module, _, model = name.rpartition(".")
        library = importlib.import_module(f"keras_hub.src.models.{module}" if module else "keras_hub.models")
        built = {key: value() if callable(value) else value for key, value in options.items()}
        return getattr(library, model)(**built)

    return build


def _dense(size_in: int, size_out: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "w": jax.ShapeDtypeStruct((size_in, size_out), "float32"),
        "b": jax.ShapeDtypeStruct((size_out,), "float32"),
    }


def _apply(dense: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ dense["w"] + jnp.broadcast_to(dense["b"], (*x.shape[:-1], dense["b"].size))


def _norm(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    scale, shift = (jnp.broadcast_to(weights[key], x.shape) for key in ("w", "b"))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * scale + shift


def _mlp(weights: dict[str, Any], x: jax.Array) -> jax.Array:
    return _apply(weights["out"], jax.nn.gelu(_apply(weights["in"], x)))


def _mixer(layers: int, width: int, patch: int) -> Function:
    """Tolstikhin et al., "MLP-Mixer: an all-MLP architecture for vision", 2021: 224 pixels, 1,000 classes."""
    cells = (224 // patch) ** 2
    scale = {key: jax.ShapeDtypeStruct((width,), "float32") for key in ("w", "b")}

    def block() -> dict[str, Any]:
        tokens = {"in": _dense(cells, width // 2), "out": _dense(width // 2, cells)}
        channels = {"in": _dense(width, 4 * width), "out": _dense(4 * width, width)}
        return {"norm1": scale, "tokens": tokens, "norm2": scale, "channels": channels}

    weights = {
        "stem": _dense(patch * patch * 3, width),
        "blocks": [block() for _ in range(layers)],
        "norm": scale,
        "head": _dense(width, 1000),
    }

    def fn(weights: dict[str, Any], images: jax.Array) -> jax.Array:
        side = 224 // patch
        x = images.reshape(-1, side, patch, side, patch, 3).swapaxes(2, 3).reshape(-1, cells, patch * patch * 3)
        x = _apply(weights["stem"], x)
        for block in weights["blocks"]:
            x = x + _mlp(block["tokens"], _norm(block["norm1"], x).swapaxes(1, 2)).swapaxes(1, 2)
            x = x + _mlp(block["channels"], _norm(block["norm2"], x))
        return _apply(weights["head"], jnp.mean(_norm(weights["norm"], x), 1))

    return Function(fn, weights)


def _unet(widths: tuple[int, ...]) -> Any:
    """Ronneberger et al., "U-Net: convolutional networks for biomedical image segmentation", 2015.

    Padded convolutions, batch normalisation.
    """
    from flax import linen as nn

    class Block(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            for _ in range(2):
                x = nn.Conv(self.width, (3, 3))(x)
                x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            return x

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            skips = []
            for width in widths[:-1]:
                x = Block(width)(x, train)
                skips.append(x)
                x = nn.max_pool(x, (2, 2), (2, 2))
            x = Block(widths[-1])(x, train)
            for width, skip in zip(widths[-2::-1], skips[::-1], strict=True):
                x = nn.ConvTranspose(width, (2, 2), (2, 2))(x)
                x = Block(width)(jnp.concatenate([skip, x], -1), train)
            return nn.Conv(2, (1, 1))(x)

    return UNet()


PLAIN = [
    Architecture("mixer_s16", "mixer", functools.partial(_mixer, 8, 512, 16), image(224), **SMALL, keras=False),
    Architecture("mixer_b16", "mixer", functools.partial(_mixer, 12, 768, 16), image(224), **SMALL, keras=False),
    Architecture(
        "unet",
        "unet",
        functools.partial(_unet, (64, 128, 256, 512, 1024)),
        image(256),
        **SMALL,
        training_call={"train": True},
        keras=False,
    ),
]
