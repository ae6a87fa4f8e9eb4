"""Search for the order of least temporary memory, and the bytes that no order needs less than."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.planning.temp_search import least_temp, temp_bound
from graphrl.xla.settings import PROBLEM

SIDE = 64
ARRAY = 4 * SIDE * SIDE  # bytes


def squashed(x: jax.Array, w: jax.Array) -> jax.Array:
    """A value with a buffer of its own."""
    return jnp.tanh(x @ w)


def repeated(x: jax.Array, w: jax.Array, body: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return lax.fori_loop(0, 9, lambda _, carry: body(carry), squashed(x, w))


# Where a prediction is easily wrong, or a bound too high: results written in place, and buffers that hold nothing for a
# while in a loop.
PROGRAMS: dict[str, Callable[[jax.Array, jax.Array], Any]] = {
    "update in place": lambda x, w: lax.dynamic_update_slice(squashed(x, w), x[:1] * 2, (3, 0)),
    "scatter": lambda x, w: squashed(x, w).at[jnp.array([1, 2])].add(1.0),
    "result of a loop": lambda x, w: repeated(x, w, lambda a: jnp.tanh(a @ a)),
    "carry that waits": lambda x, w: repeated(x, w, lambda a: jnp.tanh(((a @ w) @ w) @ w)).sum(),
    "results of a scan": lambda x, w: lax.scan(lambda c, _: (squashed(c, w), c @ w), squashed(x, w), None, length=5),
    "swap": lambda x, w: lax.fori_loop(0, 9, lambda _, ab: (ab[1], ab[0] + 1), (squashed(x, w), squashed(w, x))),
    "branches": lambda x, w: lax.cond(
        x[0, 0] > 0, lambda a: ((a @ w) @ w)[:5], lambda a: jnp.sin(a)[:5], squashed(x, w)
    ),
    "over what calls give": lambda x, w: [jnp.sort(lax.rng_uniform(0.0, 1.0, x.shape) + a).sum() for a in (x, w)],
    "one result twice": lambda x, w: (squashed(x, w),) * 2,
    "parameters and constants": lambda x, w: (x, squashed(x, w) @ w, jnp.ones((SIDE, SIDE))),
}


def compiled(function: Callable[[jax.Array, jax.Array], Any]) -> tuple[HloModule, int]:
    """A program's module, and the bytes of temporaries that XLA gives it."""
    array = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    executable = jax.jit(function).lower(array, array).compile()
    memory = executable.memory_analysis()
    assert memory is not None
    return parse_module(executable), int(memory.temp_size_in_bytes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_prediction_is_xla_s_figure_and_the_bound_is_no_more(name: str) -> None:
    module, temp = compiled(PROGRAMS[name])
    order = module.order(module.entry)
    assert temp_bound(read_hlo(module), order) <= temp == TempPredictor(module)(order)


def test_a_result_written_in_place_is_in_neither_bound_nor_temporaries() -> None:
    module, temp = compiled(lambda x, w: squashed(x, w).at[:3].add(x.sum()))
    assert temp_bound(read_hlo(module), module.order(module.entry)) <= temp < ARRAY


def test_the_search_ends_where_there_is_one_order() -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(3):
            x = squashed(x, w)
        return x

    module, _ = compiled(chain)
    program = read_hlo(module)
    plan = least_temp(Task(program.graph, PROBLEM, Budget(50)), program, TempPredictor(module), ())
    assert plan.evaluations < 50
    assert np.array_equal(plan.decisions(program.graph)[1], program.schedule)


def wide(x: jax.Array, w: jax.Array) -> jax.Array:
    """Many orders, and no bound that shows which is best."""
    parts = [jnp.sort(squashed(x + k, w) @ w, axis=k % 2) for k in range(6)]
    return jnp.stack([parts[k] @ parts[k - 1] for k in range(6)])


def test_the_search_ends_where_an_order_is_near_the_bound_or_nothing_is_gained_any_more() -> None:
    module, _ = compiled(wide)
    program = read_hlo(module)

    def searched(bound: float) -> Plan:
        return least_temp(Task(program.graph, PROBLEM, Budget(None, 5.0)), program, TempPredictor(module), (), bound)

    assert searched(1e9).evaluations == 1  # XLA's own
    plan = searched(0.0)
    assert plan.evaluations > 1
    assert plan.seconds < 4
