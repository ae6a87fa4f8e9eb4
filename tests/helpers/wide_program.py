"""A program whose memory depends on its order, for processes that measure it."""

import os
from typing import Any

import jax

BRANCHES, ROWS, WIDTH = 16, 2048, 512
BYTES = 4 * ROWS * WIDTH  # of every branch's product until it is reduced


def wide(branches: int = BRANCHES) -> tuple[Any, tuple[Any, ...]]:
    """A sum of products that XLA does not fuse: `x @ w_i` is large, `x @ w_i @ v` is small."""

    def fn(x: jax.Array, weights: list[jax.Array], v: jax.Array) -> jax.Array:
        total = x[:, :8]
        for w in weights:
            total = total + (x @ w) @ v
        return total

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, "float32")

    return fn, (shape(ROWS, WIDTH), [shape(WIDTH, WIDTH)] * branches, shape(WIDTH, 8))


def broken() -> None:
    """A recipe that fails."""
    raise ValueError("no such luck")


def allocator() -> None:
    """Raises the environment's setting of the C library's allocator."""
    raise ValueError(os.environ.get("MALLOC_MMAP_THRESHOLD_"))
