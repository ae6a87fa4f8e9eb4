"""Programs whose memory is mostly values that are cheap to recompute."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.graphs.readers.hlo.reader import HloProgram
from graphrl.graphs.topology import least_first

# `wide` (4 MB) is a function of the parameter (1 kB); it is read early by `early`, and late through a view by `late`.
# Between them runs a product of 4 MB, which needs `early` only.
HAND = """HloModule hand, is_scheduled=true, entry_computation_layout={(f32[256]{0})->f32[1024,1024]{1,0}}

%wide_body (p: f32[256]) -> f32[1024,1024] {
  %p = f32[256]{0} parameter(0)
  %e = f32[256]{0} exponential(%p)
  %s = f32[4,256]{1,0} broadcast(%e), dimensions={1}
  %b = f32[4,256,1024]{2,1,0} broadcast(%s), dimensions={0,1}
  ROOT %r = f32[1024,1024]{1,0} reshape(%b)
}

%early_body (p.1: f32[1024,1024]) -> f32[1024,1024] {
  %p.1 = f32[1024,1024]{1,0} parameter(0)
  ROOT %n = f32[1024,1024]{1,0} negate(%p.1)
}

%late_body (p.2: f32[1048576], p.3: f32[1024,1024]) -> f32[1024,1024] {
  %p.2 = f32[1048576]{0} parameter(0)
  %p.3 = f32[1024,1024]{1,0} parameter(1)
  %v = f32[1024,1024]{1,0} bitcast(%p.2)
  ROOT %a = f32[1024,1024]{1,0} add(%v, %p.3)
}

ENTRY %main (x: f32[256]) -> f32[1024,1024] {
  %x = f32[256]{0} parameter(0)
  %wide = f32[1024,1024]{1,0} fusion(%x), kind=kLoop, calls=%wide_body
  %view = f32[1048576]{0} bitcast(%wide)
  %early = f32[1024,1024]{1,0} fusion(%wide), kind=kLoop, calls=%early_body
  %product = f32[1024,1024]{1,0} dot(%early, %early), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %middle = f32[1024,1024]{1,0} dot(%product, %product), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %late = f32[1024,1024]{1,0} fusion(%view, %middle), kind=kLoop, calls=%late_body
  ROOT %result = f32[1024,1024]{1,0} copy(%late)
}
"""

# The same, but `wide` is an outer product of two parameters, recomputed only in the class of expensive values.
OUTER = (
    HAND.replace("(f32[256]{0})->", "(f32[1024,1]{1,0}, f32[1,1024]{1,0})->")
    .replace("ENTRY %main (x: f32[256])", "ENTRY %main (x: f32[1024,1], y: f32[1,1024])")
    .replace(
        "%x = f32[256]{0} parameter(0)", "%x = f32[1024,1]{1,0} parameter(0)\n  %y = f32[1,1024]{1,0} parameter(1)"
    )
    .replace(
        "fusion(%x), kind=kLoop, calls=%wide_body", "dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
)


def network(layers: int = 6, channels: int = 16, size: int = 32, batch: int = 8) -> tuple[Any, tuple[Any, ...]]:
    """A training step of a small convolutional network, and its abstract arguments.

    The gradient keeps every layer's output, also normalised and after a sigmoid.
    """

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = (x - x.mean((0, 1, 2), keepdims=True)) * lax.rsqrt(x.var((0, 1, 2), keepdims=True) + 1e-3)
            x = x * jax.nn.sigmoid(x)
        return jnp.mean(x * x)

    kernels = [shape(3, 3, 3 if k == 0 else channels, channels) for k in range(layers)]
    return jax.value_and_grad(loss), (kernels, shape(batch, size, size, 3))


def random_order(program: HloProgram, seed: int) -> list[int]:
    """A random order of a program's ops, each after those that it reads."""
    drawn = np.random.default_rng(seed).permutation(len(program.graph.ops))
    return [int(op) for op in least_first(drawn, program.graph.arrays.waiting())]
