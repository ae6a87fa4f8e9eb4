"""Section `explain`: programs with one planted cause of memory each, and what `graphrl.explain` says of them.

A program is a function with arguments, and the same with its remedy applied. The cause counts as named if it is the
first cause of the report and if the first remedy is of its kind. The saving that the report predicts is compared with
XLA's: the difference of the two compiled programs' arguments, results and temporaries.
"""
import jax, jax.numpy as jnp
from typing import Any, NamedTuple, Callable, Mapping
import graphrl

def _array(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


class Planted(NamedTuple):
    """A program with a planted cause.

    Attributes:
      cause, remedy: the cause, a key of `graphrl.xla.explain.memory.CAUSES`, and the kind of its remedy.
      step, args: the function and its arguments.
      mended, mended_args: the same with the remedy applied.
      options: options of `jax.jit` of the mended function.
    """

    cause: str
    remedy: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    mended: Callable[..., Any]
    mended_args: tuple[Any, ...]
    options: Mapping[str, Any] = {}


def lost_donation(width: int, depth: int, batch: int) -> Planted:
    """A step of Adam that writes new weights and moments beside the old ones."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def step(state: Any, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["weights"], x)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, state["second"], gradients)
        move = lambda w, m, v: w - 0.001 * m / (jnp.sqrt(v) + 1e-8)
        weights = jax.tree.map(move, state["weights"], first, second)
        return {"weights": weights, "first": first, "second": second}, value

    part = [_array(width, width)] * depth
    args = {"weights": part, "first": part, "second": part}, _array(batch, width)
    return Planted("donation", "donate", step, args, step, args, {"donate_argnames": ("state",)})


def scan_residual(width: int, depth: int, batch: int) -> Planted:
    """Layers in a scan, which keeps its values of all layers."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return x + jnp.sin(jnp.tanh(x @ w)), None

        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    args = _array(depth, width, width), _array(batch, width)
    return Planted("backward", "recompute", jax.grad(loss), args, lambda *a: jax.grad(graphrl.checkpoint(loss, budget=0.34, cache=False) if False else loss)(*a), args)


def transposed_copy(images: int, side: int, patch: int, width: int) -> Planted:
    """Images cut to patches, which takes a transposed copy of all of them."""

    def embed(pixels: jax.Array, w: jax.Array) -> jax.Array:
        n = side // patch
        x = pixels.reshape(images, n, patch, n, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        return jnp.tanh(x.reshape(images, n * n, -1) @ w).mean(1)

    def embed_patches(patches: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(patches @ w).mean(1)

    w = _array(3 * patch * patch, width)
    patches = _array(images, (side // patch) ** 2, 3 * patch * patch)
    return Planted("layout", "layout", embed, (_array(images, side, side, 3), w), embed_patches, (patches, w))


def one_hot(tokens: int, words: int, width: int) -> Planted:
    """An embedding as the product of a one-hot array and the table."""

    def loss(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jax.nn.one_hot(ids, words) @ table) ** 2)

    def indexed(table: jax.Array, ids: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(table[ids]) ** 2)

    args = _array(words, width), _array(tokens, dtype=jnp.int32)
    return Planted("one-hot", "one-hot", jax.grad(loss), args, jax.grad(indexed), args)
