"""JAX functions as graphs: loops and branches."""

from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_programs import WEIGHTS, X, checkpointed, scanned
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from traced import TOY, only, shape

from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.graphs.readers.jaxpr.work import HIGH_LEVEL, scan_operands


def test_scan_costs_its_body_times_its_length() -> None:
    w = np.ones((4, 4), np.float32)

    def f(x: jax.Array, ys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.scan(lambda c, y: (jnp.sin(c @ w) + y, 2 * c), x, ys)

    graph = from_jax(f, shape(4), shape(10, 4), chip=TOY)
    scan = only(graph, "scan")
    assert scan.flops == 10 * (2 * 16 + 4 + 4 + 4)
    dot, sin, add, mul = (16 + 64 + 16), 32, 48, 32
    assert scan.runtime == 10 * (dot + sin + add + mul)
    # The largest moment of a step: sin's result, add's (the new carry) and nothing else, or the new carry and 2 c.
    assert scan.workspace_bytes == 32
    assert [tensor.bytes for tensor in scan.outputs] == [16, 160]
    assert scan.weight_bytes == 64
    assert set(scan.inputs) == {"constant.0", "x", "ys"}


def test_a_loop_within_a_loop_multiplies() -> None:
    def f(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, c: lax.fori_loop(0, 7, lambda j, d: jnp.sin(d), c), x)

    graph = from_jax(f, shape(1000))
    assert len(graph.ops) == 1
    assert graph.ops[0].flops == pytest.approx(5 * 7 * 1000, rel=0.01)
    assert graph.ops[0].workspace_bytes == pytest.approx(2 * 4000, rel=0.01)


@settings(max_examples=40)
@given(
    start=st.integers(-5, 20),
    stop=st.integers(-5, 20),
    step=st.integers(1, 4),
    down=st.booleans(),
    closed=st.booleans(),
)
def test_while_loops_with_known_counters_have_their_trip_count(
    start: int, stop: int, step: int, down: bool, closed: bool
) -> None:
    def ahead(i: Any) -> Any:
        if down:
            return i >= stop if closed else i > stop
        return stop >= i if closed else i < stop

    trips, i = 0, start
    while ahead(i):
        trips, i = trips + 1, i - step if down else i + step

    def body(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        return carry[0] - step if down else step + carry[0], jnp.sin(carry[1])

    def f(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda carry: ahead(carry[0]), body, (start, x))[1]

    loop = only(from_jax(f, shape(100)), "while")
    assert loop.flops == (trips + 1) + trips * 101


def test_operands_of_scans_as_each_jax_says_them() -> None:
    def f(w: jax.Array, x: jax.Array, ys: jax.Array) -> Any:
        return lax.scan(lambda c, y: ((jnp.sin(c[0] @ w) + y, c[1] + c[0]), None), (x, 2 * x), ys)

    closed = jax.make_jaxpr(f)(jnp.ones((4, 4)), jnp.ones(4), jnp.ones((10, 4)))
    (scan,) = (equation for equation in closed.jaxpr.eqns if equation.primitive.name == "scan")
    assert scan_operands(scan.params) == (1, 2)
    assert scan_operands({"num_consts": 3, "num_carry": 1}) == (3, 1)
    assert scan_operands({"ft_in": SimpleNamespace(unpack=lambda: ("wab", "x", "ys"))}) == (3, 1)


def test_while_loops_with_unknown_ends_count_once() -> None:
    def until_small(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: jnp.max(c) > 1, lambda c: c / 2, x)

    def given_length(x: jax.Array, n: jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, c: jnp.sin(c), x)

    assert only(from_jax(until_small, shape(100)), "while").flops == 100 + 1 + 100
    assert only(from_jax(given_length, shape(100), shape(dtype=jnp.int32)), "while").flops == 1 + 1 + 100


def test_a_bound_that_reaches_a_loop_through_a_jit_is_known() -> None:
    @jax.jit
    def repeat(x: jax.Array, n: int) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, c: jnp.sin(c), x)

    graph = from_jax(lambda x: repeat(x, 6), shape(100))
    assert only(graph, "while").flops == 7 + 6 * 101


def test_cond_costs_its_most_expensive_branch_and_needs_its_temporaries() -> None:
    def f(flag: jax.Array, x: jax.Array) -> jax.Array:
        return lax.cond(flag, lambda: jnp.sin(jnp.cos(x)), lambda: 2 * x)

    cond = only(from_jax(f, shape(dtype=jnp.bool_), shape(100), chip=TOY), "cond")
    assert cond.flops == 200
    assert cond.runtime == 1600
    assert cond.workspace_bytes == 400  # cos(x); the result is the op's own output
    assert from_jax(f, True, shape(100)).ops == from_jax(f, np.bool_(True), shape(100)).ops


def test_scans_of_no_steps_cost_nothing() -> None:
    ops = from_jax(jax.grad(scanned), WEIGHTS[:0], X).ops
    assert all(op.runtime == op.flops == 0 for op in ops if op.type == "scan")


@pytest.mark.skipif(not hasattr(jax.config, "jax_remat3"), reason="jax before 0.10.2 has no jax_remat3")
def test_checkpoints_of_jax_s_new_implementation_cost_what_they_compute() -> None:
    graph = from_jax(checkpointed, WEIGHTS, X)
    jax.config.update("jax_remat3", True)
    try:
        other = from_jax(checkpointed, WEIGHTS, X)
    finally:
        jax.config.update("jax_remat3", False)
    assert sum(op.flops for op in other.ops) == sum(op.flops for op in graph.ops) > 0
    assert [op.type for op in other.ops] == [op.type for op in graph.ops]


def test_a_high_level_primitive_is_what_it_stands_for() -> None:
    class Cube(HIGH_LEVEL):
        """x ** 3 by two products."""

        def __init__(self, aval: object) -> None:
            self.in_avals, self.out_aval = (aval,), aval
            self.params: dict[str, Hashable] = {}
            super().__init__()

        def expand(self, x: jax.Array) -> jax.Array:
            """See jax."""
            return x @ x @ x

    graph = from_jax(lambda x: jnp.sin(Cube(jax.typeof(x))(x)), jnp.ones((8, 8)))
    assert [op.type for op in graph.ops] == ["dot_general", "dot_general", "sin"]
