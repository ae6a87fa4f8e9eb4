"""Predicted temporary memory equals XLA's report to the byte; its lower bound; and the search for less."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from recompute_programs import random_order

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule, parse_module
from graphrl.graphs.readers.hlo.reader import read_hlo
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.xla import hook
from graphrl.xla.assignment import TempPredictor
from graphrl.xla.assignment.heap import Block, heap_size
from graphrl.xla.callback import Answer, rescheduled
from graphrl.xla.donation import preserve_donation
from graphrl.xla.planning.temp_search import least_temp, temp_bound
from graphrl.xla.settings import PROBLEM


def _array(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def _step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    loss, gradient = jax.value_and_grad(_loss)(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, gradient, strict=True)], loss


def _convolutions(filters: list[jax.Array], x: jax.Array) -> Any:
    def loss(filters: list[jax.Array]) -> jax.Array:
        h = x
        for f in filters:
            h = jax.lax.conv_general_dilated(h, f, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            h = jax.nn.relu(h - jnp.mean(h, axis=(0, 1, 2), keepdims=True))
        pooled = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(pooled**2)

    return jax.value_and_grad(loss)(filters)


def _recurrent(w: jax.Array, xs: jax.Array) -> Any:
    def loss(w: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ w + x)
            return h, h

        return jnp.sum(jax.lax.scan(cell, jnp.zeros_like(xs[0]), xs)[1] ** 2)

    return jax.value_and_grad(loss)(w)


_WEIGHTS = [_array(64, 48), _array(48, 100), _array(100, 20)]
# function, arguments, options of jit
_PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "gradient": (jax.value_and_grad(_loss), (_WEIGHTS, _array(32, 64)), {}),
    "donated step": (_step, (_WEIGHTS, _array(32, 64)), {"donate_argnums": 0}),
    "convolutions": (_convolutions, ([_array(3, 3, 3, 8), _array(3, 3, 8, 8)], _array(2, 16, 16, 3)), {}),
    "scan": (_recurrent, (_array(24, 24), _array(10, 8, 24)), {}),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_the_prediction_is_exact_for_xlas_schedules(name: str) -> None:
    function, arguments, options = _PROGRAMS[name]
    lowered = jax.jit(function, **options).lower(*arguments)
    compiled = lowered.compile()
    module = parse_module(compiled)
    assert TempPredictor(module)(module.order(module.entry)) == _temp(compiled)


@pytest.mark.skipif(hook.why_unavailable() is not None, reason="this jaxlib has no hook for schedules")
@pytest.mark.parametrize("name", ["gradient", "convolutions", "scan", "donated step"])
def test_the_prediction_is_exact_for_other_schedules(name: str) -> None:
    function, arguments, options = _PROGRAMS[name]
    lowered = jax.jit(function, **options).lower(*arguments)
    donation = preserve_donation(hook.captured(lowered))
    program = read_hlo(donation.module)
    order = program.sequence(np.array(random_order(program, 1)))
    predicted = TempPredictor(donation.module)(order)
    answer = Answer(rescheduled(donation.module, {donation.module.entry.name: order}), aliases=donation.aliases)
    assert predicted == _temp(hook.compile_by(lowered, lambda _: answer))


def _temp(compiled: jax.stages.Compiled) -> int:
    memory = compiled.memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


_CHAIN = """HloModule chain, is_scheduled=true
ENTRY main {
  p = f32[100]{0} parameter(0)
  a = f32[100]{0} reverse(p), dimensions={0}
  b = f32[100]{0} negate(a)
  c = f32[100]{0} reverse(b), dimensions={0}
  d = f32[50]{0} slice(c), slice={[0:50]}
  e = f32[50]{0} reverse(d), dimensions={0}
  ROOT r = f32[50]{0} exponential(e)
}
"""


def test_a_chain_by_hand() -> None:
    # b shares a's buffer; c needs another 400 bytes. The result's 200 bytes hold e, which exp overwrites; d takes
    # the place of a and b: 400 bytes, rounded up to 448, and 400.
    module = parse_module(_CHAIN)
    assert TempPredictor(module)([*"pabcder"]) == 848


def test_a_predictor_serves_many_schedules() -> None:
    module = parse_module("""HloModule wide, is_scheduled=true
ENTRY main {
  p = f32[64]{0} parameter(0)
  z = f32[] constant(0)
  a = f32[1024]{0} pad(p, z), padding=0_960
  b = f32[1024]{0} pad(p, z), padding=960_0
  x = f32[96]{0} slice(a), slice={[0:96]}
  y = f32[96]{0} slice(b), slice={[0:96]}
  s = f32[96]{0} add(x, y)
  ROOT r = f32[32]{0} slice(s), slice={[0:32]}
}""")
    predict = TempPredictor(module)
    wide, deep = [*"pzabxysr"], [*"pzaxbysr"]
    # Both long arrays and x are live together, or one of them, x and y (one of which s overwrites); 384 bytes are 6 x
    # 64.
    assert predict(wide) == 2 * 4096 + 384
    assert predict(deep) == 4096 + 2 * 384
    assert predict(wide) == 2 * 4096 + 384


def test_an_output_s_buffer_holds_earlier_temporaries() -> None:
    module = parse_module("""HloModule outputs, is_scheduled=true
ENTRY main {
  p = f32[100]{0} parameter(0)
  a = f32[100]{0} reverse(p), dimensions={0}
  b = f32[100]{0} reverse(a), dimensions={0}
  ROOT r = f32[100]{0} reverse(b), dimensions={0}
}""")
    assert TempPredictor(module)([*"pabr"]) == 400  # b; a takes the result's buffer


@pytest.mark.parametrize(
    ("sequence", "message"),
    [("pabcde", "6 instructions .* each of the 7"), ("pabcdee", "once"), ("pbacder", "'b' before 'a'")],
)
def test_a_wrong_schedule_is_refused(sequence: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        TempPredictor(parse_module(_CHAIN))([*sequence])


def test_heaps_by_hand() -> None:
    large, small = Block(0, 256, [(0, 2)]), Block(1, 128, [(0, 1)])
    assert heap_size([large, small], 64) == 384
    assert heap_size([], 64) == 0
    # `late` fits into the place of `small`, above `large`, which stays.
    assert heap_size([Block(0, 256, [(0, 9)]), small, Block(2, 64, [(2, 4)])], 64) == 384
    # Addresses are aligned.
    assert heap_size([Block(0, 100, [(0, 3)]), Block(1, 100, [(1, 2)])], 64) == 228
    # By size: 256 and 128 side by side, then 192 above 256: 448. By time: 128, 256 above it, 192 above that: 576.
    assert heap_size([Block(0, 256, [(3, 4)]), Block(1, 128, [(4, 6)]), Block(2, 192, [(2, 3)])], 64) == 448
    # By time the longest is lowest: 448. By size it is above 256 and 192, and its equal of later above it: 512.
    blocks = [Block(0, 256, [(0, 2)]), Block(1, 128, [(0, 6)]), Block(2, 128, [(5, 6)]), Block(3, 192, [(5, 7)])]
    assert heap_size(blocks, 64) == 448
    # Values in one place keep it free between them.
    shared = Block(0, 64, [(0, 1), (6, 7)])
    assert heap_size([shared, Block(1, 64, [(3, 4)])], 64) == 64
    assert heap_size([shared, Block(1, 64, [(3, 6)])], 64) == 128


# The bound, and the search for an order of least temporary memory

SIDE = 64
ARRAY = 4 * SIDE * SIDE  # bytes


def squashed(x: jax.Array, w: jax.Array) -> jax.Array:
    """A value with its own buffer."""
    return jnp.tanh(x @ w)


def repeated(x: jax.Array, w: jax.Array, body: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return lax.fori_loop(0, 9, lambda _, carry: body(carry), squashed(x, w))


# Programs whose prediction is easily wrong, or whose bound is too high: results written in place, and buffers that are
# empty for a while in a loop.
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


def test_the_search_ends_if_there_is_one_order() -> None:
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
    """Many orders, and no bound that proves the best one."""
    parts = [jnp.sort(squashed(x + k, w) @ w, axis=k % 2) for k in range(6)]
    return jnp.stack([parts[k] @ parts[k - 1] for k in range(6)])


def test_the_search_ends_near_the_bound_or_without_gains() -> None:
    module, _ = compiled(wide)
    program = read_hlo(module)

    def searched(bound: float) -> Plan:
        return least_temp(Task(program.graph, PROBLEM, Budget(None, 5.0)), program, TempPredictor(module), (), bound)

    assert searched(1e9).evaluations == 1  # XLA's own order
    plan = searched(0.0)
    assert plan.evaluations > 1
    assert plan.seconds < 4
