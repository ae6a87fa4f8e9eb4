"""Inception-v3 at 299 pixels with its auxiliary classifier (Szegedy et al., "Rethinking the Inception architecture for
computer vision", 2015, table 1); batch norm after every convolution, no dropout, no label smoothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.workloads.layers import average_pool, batch_norm, conv, cross_entropy, dense, max_pool
from reproduce.workloads.model import Batch, Model, floats, tokens
from reproduce.workloads.weights import Weights

AUXILIARY = 0.4  # weight of the auxiliary loss


class Conv(NamedTuple):
    """A convolution of a branch."""

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
    """Images of `size` pixels a side, at least 139; channels are `thin` times fewer.

    Args:
      batch, size, thin, classes: see above.
      pools: channels after the pooling, of the blocks at 35 pixels.
      inners: channels between, of those at 17 pixels.
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
    """Blocks of convolutions by name."""

    def __init__(self, w: Weights, thin: int) -> None:
        self.w = w
        self.thin = thin

    def branch(self, name: str, x: jax.Array, steps: Branch) -> jax.Array:
        """Convolutions one after the other."""
        for number, (channels, window, stride, padding) in enumerate(steps):
            with jax.named_scope(f"{name}/conv{number}"):
                x = conv(self.w, f"{name}/conv{number}", x, channels // self.thin, window, stride, padding)
                x = jax.nn.relu(batch_norm(self.w, f"{name}/conv{number}", x))
        return x

    def branches(self, name: str, inputs: list[jax.Array], steps: list[Branch]) -> list[jax.Array]:
        """Each of its own input."""
        pairs = enumerate(zip(inputs, steps, strict=True))
        return [self.branch(f"{name}/branch{number}", x, branch) for number, (x, branch) in pairs]

    def block(self, name: str, x: jax.Array, steps: list[Branch]) -> jax.Array:
        """All branches of one input; the last one's is averaged first."""
        with jax.named_scope(f"{name}/pool"):
            pooled = average_pool(x, 3, 1)
        outputs = self.branches(name, [x] * (len(steps) - 1) + [pooled], steps)
        with jax.named_scope(f"{name}/concat"):
            return lax.concatenate(outputs, 3)

    def reduction(self, name: str, x: jax.Array, steps: list[Branch]) -> jax.Array:
        """Half as large: the branches, and a pooling."""
        outputs = self.branches(name, [x] * len(steps), steps)
        with jax.named_scope(f"{name}/concat"):
            return lax.concatenate([*outputs, max_pool(x, 3, 2, "VALID")], 3)

    def block8(self, name: str, x: jax.Array) -> jax.Array:
        """A block whose two middle branches end in two sides each."""
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
        """Logits half-way."""
        with jax.named_scope("auxiliary/pool"):
            pooled = average_pool(x, 5, 3, "VALID")
        window = pooled.shape[1:3]
        x = self.branch("auxiliary", pooled, [Conv(128, (1, 1)), Conv(768, (window[0], window[1]), 1, "VALID")])
        with jax.named_scope("auxiliary/softmax"):
            return dense(self.w, "auxiliary/softmax", jnp.mean(x, (1, 2)), classes)
