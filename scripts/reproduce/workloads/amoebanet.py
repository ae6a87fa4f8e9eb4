"""AmoebaNet-D: cells that evolution chose (Real et al., "Regularized evolution for image classifier architecture
search", 2018), in the size of GPipe's table 1 that is called (18, 208) and has 82 million parameters.

GO names AmoebaNet and no more: which one, the batch (32) and 224 pixels are ours. A cell adds pairs of what seven
kinds of ops make of two earlier states. No dropped paths, no auxiliary classifier.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.workloads.layers import average_pool, batch_norm, conv, cross_entropy, dense, max_pool
from reproduce.workloads.model import Batch, Model, floats, tokens
from reproduce.workloads.weights import Weights


class Cell(NamedTuple):
    """Ops on states (0 is the last cell's output, 1 that of the one before), added in pairs to new states; the
    concatenated ones leave the cell."""

    ops: tuple[tuple[int, str], ...]
    concatenated: tuple[int, ...]


NORMAL = Cell(
    (
        (1, "conv_1x1"), (1, "max_pool_3x3"), (1, "none"), (0, "conv_1x7_7x1"), (0, "conv_1x1"), (0, "conv_1x7_7x1"),
        (2, "max_pool_3x3"), (2, "none"), (1, "avg_pool_3x3"), (5, "conv_1x1"),
    ),
    (0, 3, 4, 6),
)  # fmt: skip
REDUCTION = Cell(
    (
        (0, "max_pool_2x2"), (0, "max_pool_3x3"), (2, "none"), (1, "conv_3x3"), (2, "conv_1x7_7x1"),
        (2, "max_pool_3x3"), (3, "none"), (1, "max_pool_2x2"), (2, "avg_pool_3x3"), (3, "conv_1x1"),
    ),
    (4, 5, 6),
)  # fmt: skip


def amoebanet(
    layers: int = 18, filters: int = 208, batch: int = 32, size: int = 224, classes: int = 1000, groups: int = 3
) -> Model:
    """`layers` normal cells in `groups`, a reduction cell between two; `filters` is what GPipe calls D."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        channels = filters // 4
        with jax.named_scope("stem"):
            last = before = batch_norm(w, "stem", conv(w, "stem", data["images"], channels, (3, 3), 2))
        reduced = False  # by the last cell
        normal = [False] * (layers // groups)
        kinds = [True, True, *[*normal, True] * (groups - 1), *normal]
        for number, reduces in enumerate(kinds):
            channels *= 1 + reduces
            last, before = _cell(w, f"cell{number}", last, before, channels, reduces, reduced), last
            reduced = reduces
        with jax.named_scope("softmax"):
            logits = dense(w, "softmax", jnp.mean(last, (1, 2)), classes)
            return cross_entropy(logits, data["labels"]), None

    return Model(loss, {"images": floats(batch, size, size, 3), "labels": tokens(batch)}, classes)


def _cell(
    w: Weights, name: str, last: jax.Array, before: jax.Array, channels: int, reduces: bool, reduced: bool
) -> jax.Array:
    with jax.named_scope(f"{name}/last"):
        states = [_convolved(w, f"{name}/last", last, channels, (1, 1))]
    with jax.named_scope(f"{name}/before"):
        if reduced:
            before = _halved(w, f"{name}/before", before, channels)
        elif before.shape[-1] != channels:
            before = _convolved(w, f"{name}/before", before, channels, (1, 1))
        states.append(before)
    cell = REDUCTION if reduces else NORMAL
    results: list[jax.Array] = []
    for number, (state, op) in enumerate(cell.ops):
        stride = 2 if reduces and state < 2 else 1
        with jax.named_scope(f"{name}/{number}_{op}"):
            results.append(OPS[op](w, f"{name}/{number}", states[state], stride))
            if number % 2:
                states.append(results[-2] + results[-1])
    with jax.named_scope(f"{name}/concat"):
        return lax.concatenate([states[state] for state in cell.concatenated], 3)


def _convolved(
    w: Weights, name: str, x: jax.Array, channels: int, window: tuple[int, int], stride: int | tuple[int, int] = 1
) -> jax.Array:
    return batch_norm(w, name, conv(w, name, jax.nn.relu(x), channels, window, stride))


def _halved(w: Weights, name: str, x: jax.Array, channels: int) -> jax.Array:
    """Half as large, by two convolutions of every other pixel."""
    x = jax.nn.relu(x)
    moved = lax.pad(x, 0.0, ((0, 0, 0), (-1, 1, 0), (-1, 1, 0), (0, 0, 0)))
    halves = [conv(w, f"{name}/half{i}", y, channels // 2, (1, 1), 2) for i, y in enumerate((x, moved))]
    return batch_norm(w, name, lax.concatenate(halves, 3))


def _identity(w: Weights, name: str, x: jax.Array, stride: int) -> jax.Array:
    return x if stride == 1 else _halved(w, name, x, x.shape[-1])


def _narrowed(windows: tuple[tuple[int, int], ...]) -> Callable[[Weights, str, jax.Array, int], jax.Array]:
    """Convolutions of a quarter of the channels between two of 1x1; windows that are not square share the stride."""

    def op(w: Weights, name: str, x: jax.Array, stride: int) -> jax.Array:
        channels = x.shape[-1]
        x = _convolved(w, f"{name}/narrow", x, channels // 4, (1, 1))
        for number, (height, width) in enumerate(windows):
            strides = (stride if height > 1 else 1, stride if width > 1 else 1)
            x = _convolved(w, f"{name}/inner{number}", x, channels // 4, (height, width), strides)
        return _convolved(w, f"{name}/wide", x, channels, (1, 1))

    return op


OPS: dict[str, Callable[[Weights, str, jax.Array, int], jax.Array]] = {
    "none": _identity,
    "avg_pool_3x3": lambda w, name, x, stride: average_pool(x, 3, stride),
    "max_pool_2x2": lambda w, name, x, stride: max_pool(x, 2, stride),
    "max_pool_3x3": lambda w, name, x, stride: max_pool(x, 3, stride),
    "conv_1x1": lambda w, name, x, stride: _convolved(w, name, x, x.shape[-1], (1, 1), stride),
    "conv_3x3": _narrowed(((3, 3),)),
    "conv_1x7_7x1": _narrowed(((1, 7), (7, 1))),
}
