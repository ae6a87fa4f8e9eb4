"""Plans under `jax_remat3`, jax's new implementation of `jax.checkpoint`: the same memory and values."""

import contextlib
from collections.abc import Hashable, Iterator

import jax
import jax.numpy as jnp
import pytest
from checkpoint_programs import WEIGHTS, X, assert_same, checkpointed, kept_bytes, mlp, nested, scanned
from jax.experimental.hijax import VJPHiPrimitive

import graphrl
from graphrl.xla.checkpoint.rewrite import scan_in_stretches

pytestmark = pytest.mark.skipif(not hasattr(jax.config, "jax_remat3"), reason="jax before 0.10.2 has no jax_remat3")
PROGRAMS = {program.__name__: program for program in (mlp, scanned, nested)}


@contextlib.contextmanager
def remat3() -> Iterator[None]:
    """Switches to the new implementation."""
    jax.config.update("jax_remat3", True)
    try:
        yield
    finally:
        jax.config.update("jax_remat3", False)


@pytest.mark.parametrize(("name", "offload"), [("mlp", False), ("scanned", True), ("nested", False)])
def test_a_plan_keeps_the_same_bytes(name: str, offload: bool) -> None:
    fn = graphrl.checkpoint(PROGRAMS[name], budget=0.6, seconds=0.1, offload=offload, cache=False)
    fn.report(WEIGHTS, X)  # one search serves both
    before = kept_bytes(fn, WEIGHTS, X), str(jax.make_jaxpr(jax.grad(fn))(WEIGHTS, X))
    with remat3():
        assert (kept_bytes(fn, WEIGHTS, X), str(jax.make_jaxpr(jax.grad(fn))(WEIGHTS, X))) == before


def test_the_users_own_checkpoints_cost_what_they_compute() -> None:
    graph = graphrl.from_jax(checkpointed, WEIGHTS, X)
    with remat3():
        other = graphrl.from_jax(checkpointed, WEIGHTS, X)
        fn = graphrl.checkpoint(checkpointed, budget=0.6, seconds=0.1, cache=False)
        assert_same(jax.value_and_grad(fn)(WEIGHTS, X), jax.value_and_grad(checkpointed)(WEIGHTS, X))
    assert sum(op.flops for op in other.ops) == sum(op.flops for op in graph.ops) > 0
    assert [op.type for op in other.ops] == [op.type for op in graph.ops]


def test_loops_in_stretches_compute_the_same_steps_again() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        (h,), _ = scan_in_stretches(
            lambda carry, w: ([jnp.tanh(carry[0] @ w[0])], []),
            [x],
            [weights],
            3,
            unrolled=False,
            length=len(weights),
            reverse=False,
            unroll=1,
        )
        return h.sum()

    before = str(jax.make_jaxpr(jax.grad(loss))(WEIGHTS, X))
    with remat3():
        assert str(jax.make_jaxpr(jax.grad(loss))(WEIGHTS, X)) == before


def test_a_high_level_primitive_is_what_it_stands_for() -> None:
    class Cube(VJPHiPrimitive):
        """x ** 3 by two products."""

        def __init__(self, aval: object) -> None:
            self.in_avals, self.out_aval = (aval,), aval
            self.params: dict[str, Hashable] = {}
            super().__init__()

        def expand(self, x: jax.Array) -> jax.Array:
            """See jax."""
            return x @ x @ x

    graph = graphrl.from_jax(lambda x: jnp.sin(Cube(jax.typeof(x))(x)), jnp.ones((8, 8)))
    assert [op.type for op in graph.ops] == ["dot_general", "dot_general", "sin"]
