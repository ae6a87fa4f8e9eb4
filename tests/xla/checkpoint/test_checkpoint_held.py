"""Which values take bytes: fewer than take seconds where one kernel computes them for several readers of the backward
pass, more where the forward pass sums them up.
"""

import jax
import jax.numpy as jnp
import pytest

from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.derivative import Derivative, derivative
from graphrl.xla.checkpoint.fusion import fusion_of, held
from graphrl.xla.checkpoint.program import program_of

LENGTH, WIDTH = 256, 64


def recurrence(a: jax.Array, x: jax.Array) -> jax.Array:
    def combined(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return jnp.sin(jax.lax.associative_scan(combined, (a, x))[1]).sum()


def of_recurrence() -> Derivative:
    shape = jax.ShapeDtypeStruct((LENGTH, WIDTH), jnp.float32)
    return derivative(program_of(jax.make_jaxpr(recurrence)(shape, shape)), [True, True], find_chip("h200"))


def test_readers_in_one_kernel_count_as_one() -> None:
    own = of_recurrence()
    fusion = fusion_of(own)
    lies = held(own, fusion)
    spared = [value for value in lies if fusion.solid[value] and not lies[value]]
    assert spared
    assert all(own.backward[value.node] for value in spared)
    for value in spared:  # several nodes read each of them
        assert len(own.readers(own.backward_nodes())[value]) > 1


def test_values_of_the_forward_pass_and_results_lie_where_they_did() -> None:
    own = of_recurrence()
    fusion = fusion_of(own)
    lies = held(own, fusion)
    kept = [value for value in lies if not own.backward[value.node] or value in own.gradients or value in own.results]
    assert all(lies[value] == fusion.solid[value] for value in kept)


@pytest.mark.parametrize(("axis", "is_written"), [(0, True), (1, False)])
def test_what_is_summed_up_and_read_takes_bytes(axis: int, is_written: bool) -> None:
    """As where channels are weighted by what follows from their means; not so for rows, as in a softmax."""

    def weighted(x: jax.Array) -> jax.Array:
        y = jnp.sin(x)
        return (y * y.sum(axis, keepdims=True)).sum()

    shape = jax.ShapeDtypeStruct((LENGTH, WIDTH), jnp.float32)
    own = derivative(program_of(jax.make_jaxpr(weighted)(shape)), [True], find_chip("h200"))
    fusion = fusion_of(own)
    (value,) = (value for value in fusion.solid if own.node(value.node).type == "sin")
    assert not fusion.solid[value]  # by seconds its readers compute it
    assert held(own, fusion)[value] == is_written
