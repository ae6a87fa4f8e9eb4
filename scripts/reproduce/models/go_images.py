"""AmoebaNet-D and Inception-v3, as workloads of GO.

AmoebaNet-D: cells found by evolution (Real et al., "Regularized evolution for image classifier architecture search",
2018), in the size of GPipe's table 1 named (18, 208), with 82 million parameters. GO only names AmoebaNet: the variant,
the batch (32) and 224 pixels are our choice. A cell adds pairs of outputs of seven kinds of ops on two earlier states.
No dropped paths, no auxiliary classifier.

Inception-v3 at 299 pixels with its auxiliary classifier (Szegedy et al., "Rethinking the Inception architecture for
computer vision", 2015, table 1); batch norm after every convolution, no dropout, no label smoothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.models.go_layers import (
    Batch,
    Model,
    Weights,
    average_pool,
    batch_norm,
    conv,
    cross_entropy,
    dense,
    floats,
    max_pool,
    tokens,
)


class Cell(NamedTuple):
    """Ops on states, added in pairs to new states; the cell outputs the concatenated states.

    State 0 is the last cell's output, state 1 that of the one before.
    """

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
    """`layers` normal cells in `groups`, a reduction cell between two groups; `filters` is D in GPipe."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        channels = filters // 4
        with jax.named_scope("stem"):
            last = before = batch_norm(w, "stem", conv(w, "stem", data["images"], channels, (3, 3), 2))
        reduced = False  # True if the last cell was a reduction
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
    """Halves height and width by two convolutions of every other pixel."""
    x = jax.nn.relu(x)
    moved = lax.pad(x, 0.0, ((0, 0, 0), (-1, 1, 0), (-1, 1, 0), (0, 0, 0)))
    halves = [conv(w, f"{name}/half{i}", y, channels // 2, (1, 1), 2) for i, y in enumerate((x, moved))]
    return batch_norm(w, name, lax.concatenate(halves, 3))


def _identity(w: Weights, name: str, x: jax.Array, stride: int) -> jax.Array:
    return x if stride == 1 else _halved(w, name, x, x.shape[-1])


def _narrowed(windows: tuple[tuple[int, int], ...]) -> Callable[[Weights, str, jax.Array, int], jax.Array]:
    """Makes a bottleneck: convolutions of a quarter of the channels between two of 1x1; oblong ones share a stride."""

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


AUXILIARY = 0.4  # weight of the auxiliary loss


class Conv(NamedTuple):
    """Sizes of a convolution in a branch."""

    channels: int
    window: tuple[int, int]
    stride: int = 1
    padding: str = "SAME"


Branch = list[Conv]

STEM: list[Branch] = [
    [Conv(32, (3, 3), 2, "VALID"), Conv(32, (3, 3), 1, "VALID"), Conv(64, (3, 3))],
    [Conv(80, (1, 1)), Conv(192, (3, 3), 1, "VALID")],
]


def _block35(pool: int) -> list[Branch]:
    return [
        [Conv(64, (1, 1))],
        [Conv(48, (1, 1)), Conv(64, (5, 5))],
        [Conv(64, (1, 1)), Conv(96, (3, 3)), Conv(96, (3, 3))],
        [Conv(pool, (1, 1))],
    ]


def _block17(inner: int) -> list[Branch]:
    return [
        [Conv(192, (1, 1))],
        [Conv(inner, (1, 1)), Conv(inner, (1, 7)), Conv(192, (7, 1))],
        [Conv(inner, (1, 1)), Conv(inner, (7, 1)), Conv(inner, (1, 7)), Conv(inner, (7, 1)), Conv(192, (1, 7))],
        [Conv(192, (1, 1))],
    ]


REDUCTION17: list[Branch] = [
    [Conv(384, (3, 3), 2, "VALID")],
    [Conv(64, (1, 1)), Conv(96, (3, 3)), Conv(96, (3, 3), 2, "VALID")],
]
REDUCTION8: list[Branch] = [
    [Conv(192, (1, 1)), Conv(320, (3, 3), 2, "VALID")],
    [Conv(192, (1, 1)), Conv(192, (1, 7)), Conv(192, (7, 1)), Conv(192, (3, 3), 2, "VALID")],
]
SIDES: list[Branch] = [[Conv(384, (1, 3))], [Conv(384, (3, 1))]]


def inception_v3(
    batch: int,
    size: int = 299,
    thin: int = 1,
    pools: tuple[int, ...] = (32, 64, 64),
    inners: tuple[int, ...] = (128, 160, 160, 192),
    last: int = 2,
    classes: int = 1000,
) -> Model:
    """Inception-v3 for images of `size` pixels a side, at least 139; channels are divided by `thin`.

    Args:
      batch, size, thin, classes: batch size, pixels a side, divisor of channels, number of classes.
      pools: channels after the pooling in each block at 35 pixels.
      inners: inner channels of each block at 17 pixels.
      last: number of blocks at 8 pixels.
    """

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        net = _Net(w, thin)
        x = data["images"]
        for number, steps in enumerate(STEM):
            x = net.branch(f"stem{number}", x, steps)
            with jax.named_scope(f"stem{number}/pool"):
                x = max_pool(x, 3, 2, "VALID")
        for number, pool in enumerate(pools):
            x = net.block(f"block35_{number}", x, _block35(pool))
        x = net.reduction("reduction17", x, REDUCTION17)
        for number, inner in enumerate(inners):
            x = net.block(f"block17_{number}", x, _block17(inner))
        auxiliary = net.auxiliary(x, classes)
        x = net.reduction("reduction8", x, REDUCTION8)
        for number in range(last):
            x = net.block8(f"block8_{number}", x)
        with jax.named_scope("softmax"):
            main = cross_entropy(dense(w, "softmax", jnp.mean(x, (1, 2)), classes), data["labels"])
            return main + AUXILIARY * cross_entropy(auxiliary, data["labels"]), None

    return Model(loss, {"images": floats(batch, size, size, 3), "labels": tokens(batch)}, classes)


class _Net:
    """Inception's blocks, built from convolutions with named weights."""

    def __init__(self, w: Weights, thin: int) -> None:
        self.w = w
        self.thin = thin

    def branch(self, name: str, x: jax.Array, steps: Branch) -> jax.Array:
        """Applies the convolutions of a branch in sequence."""
        for number, (channels, window, stride, padding) in enumerate(steps):
            with jax.named_scope(f"{name}/conv{number}"):
                x = conv(self.w, f"{name}/conv{number}", x, channels // self.thin, window, stride, padding)
                x = jax.nn.relu(batch_norm(self.w, f"{name}/conv{number}", x))
        return x

    def branches(self, name: str, inputs: list[jax.Array], steps: list[Branch]) -> list[jax.Array]:
        """Applies several branches, each to its own input."""
        pairs = enumerate(zip(inputs, steps, strict=True))
        return [self.branch(f"{name}/branch{number}", x, branch) for number, (x, branch) in pairs]

    def block(self, name: str, x: jax.Array, steps: list[Branch]) -> jax.Array:
        """Applies all branches to one input, which is average-pooled for the last branch; concatenates the results."""
        with jax.named_scope(f"{name}/pool"):
            pooled = average_pool(x, 3, 1)
        outputs = self.branches(name, [x] * (len(steps) - 1) + [pooled], steps)
        with jax.named_scope(f"{name}/concat"):
            return lax.concatenate(outputs, 3)

    def reduction(self, name: str, x: jax.Array, steps: list[Branch]) -> jax.Array:
        """Halves height and width: the branches, and a pooling."""
        outputs = self.branches(name, [x] * len(steps), steps)
        with jax.named_scope(f"{name}/concat"):
            return lax.concatenate([*outputs, max_pool(x, 3, 2, "VALID")], 3)

    def block8(self, name: str, x: jax.Array) -> jax.Array:
        """Applies a block whose two middle branches each split into two convolutions at the end."""
        first = self.branch(f"{name}/branch0", x, [Conv(320, (1, 1))])
        short = self.branch(f"{name}/branch1", x, [Conv(384, (1, 1))])
        long = self.branch(f"{name}/branch2", x, [Conv(448, (1, 1)), Conv(384, (3, 3))])
        sides = [
            *self.branches(f"{name}/branch1", [short] * 2, SIDES),
            *self.branches(f"{name}/branch2", [long] * 2, SIDES),
        ]
        with jax.named_scope(f"{name}/pool"):
            pooled = average_pool(x, 3, 1)
        last = self.branch(f"{name}/branch3", pooled, [Conv(192, (1, 1))])
        with jax.named_scope(f"{name}/concat"):
            return lax.concatenate([first, *sides, last], 3)

    def auxiliary(self, x: jax.Array, classes: int) -> jax.Array:
        """Computes the logits of the auxiliary classifier."""
        with jax.named_scope("auxiliary/pool"):
            pooled = average_pool(x, 5, 3, "VALID")
        window = pooled.shape[1:3]
        x = self.branch("auxiliary", pooled, [Conv(128, (1, 1)), Conv(768, (window[0], window[1]), 1, "VALID")])
        with jax.named_scope("auxiliary/softmax"):
            return dense(self.w, "auxiliary/softmax", jnp.mean(x, (1, 2)), classes)
