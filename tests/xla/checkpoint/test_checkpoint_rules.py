"""Rules and barriers: gradients that wait for one another, and zeros that are written late; results stay the same."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

import graphrl
from graphrl.xla.checkpoint.primitives import NAME, finish_forward, join_gradients
from graphrl.xla.checkpoint.program import CheckpointPlan, Region, program_of
from graphrl.xla.checkpoint.rewrite import evaluate, gathered, is_from_sums, product, rule_of, scattered

Function = Callable[..., Any]

LARGE, SMALL = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in enumerate([(8, 5), (5, 3)]))
ROWS = jnp.array([2, 0, 2, 9])  # the last one is out of bounds
TRANSFORMATIONS: list[Callable[[Function], Function]] = [
    lambda f: jax.jit(jax.value_and_grad(f, (0, 1))),
    lambda f: lambda a, b: jax.jvp(f, (a, b), (b.sum() * a, a.sum() * b)),
    lambda f: lambda a, b: jax.grad(jax.checkpoint(f), (0, 1))(a, b),
    lambda f: lambda a, b: jax.vmap(lambda k: jax.grad(f, (0, 1))(k * a, b))(jnp.arange(1.0, 4.0)),
    lambda f: lambda a, b: jax.grad(lambda a: jax.jvp(lambda a: f(a, b), (a,), (a,))[1])(a),
]


def with_last_replaced(function: Function, name: str, rule: Callable[..., Any]) -> Function:
    """A function in which `rule` computes the equations named `name`."""

    def run(*args: Any) -> Any:
        closed = jax.make_jaxpr(function)(*args)
        jaxpr = closed.jaxpr
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            own = rule(eqn, *operands) if eqn.primitive.name == name else eqn.primitive.bind(*operands, **eqn.params)
            values.update(zip(eqn.outvars, own if eqn.primitive.multiple_results else [own], strict=True))
        return read(jaxpr.outvars[0])

    return run


def by_size(eqn: Any, left: Any, right: Any) -> Any:
    """A product in the form of a rule."""
    return product(eqn, 0 if left.size < right.size else 1, left, right)


def multiplied(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.sin(jax.lax.dot(a, b)).sum()


def convolved(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.sin(jax.lax.conv(a[None, None], b[None, None], (1, 1), "SAME")).sum()


def taken(a: jax.Array, b: jax.Array) -> jax.Array:
    how = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    outside = jax.lax.GatherScatterMode.FILL_OR_DROP
    rows = jax.lax.gather(a, ROWS[:, None], how, (1, a.shape[1]), mode=outside, fill_value=5.0)
    return jnp.sin(rows).sum() * b.sum()


def added(a: jax.Array, b: jax.Array) -> jax.Array:
    into = jax.lax.full((9, 5), 0.0)
    how = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return jnp.sin(jax.lax.scatter_add(into, ROWS[:, None], a[:4], how)).sum() * b.sum()


def scattered_zeros(eqn: Any, *operands: Any) -> Any:
    return scattered(0.0, eqn, *operands)


CASES = [
    (multiplied, "dot_general", by_size),
    (convolved, "conv_general_dilated", by_size),
    (taken, "gather", gathered),
    (added, "scatter-add", scattered_zeros),
]


@pytest.mark.parametrize("transformed", TRANSFORMATIONS)
@pytest.mark.parametrize(("function", "name", "rule"), CASES)
def test_all_is_the_same(transformed: Callable[[Function], Function], function: Function, name: str, rule: Any) -> None:
    expected = transformed(function)(LARGE, SMALL)
    result = transformed(with_last_replaced(function, name, rule))(LARGE, SMALL)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), result, expected)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_gradient_of_the_smaller_operand_comes_first_and_the_other_waits_for_it(swapped: bool) -> None:
    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        return multiplied(b.T, a.T) if swapped else multiplied(a, b)

    gradient = jax.grad(with_last_replaced(function, "dot_general", by_size), (0, 1))
    eqns = jax.make_jaxpr(gradient)(LARGE, SMALL).jaxpr.eqns
    forward, first, second = (k for k, eqn in enumerate(eqns) if eqn.primitive.name == "dot_general")
    assert eqns[first].outvars[0].aval.size == SMALL.size
    assert eqns[second].outvars[0].aval.size == LARGE.size
    (tie,) = (k for k, eqn in enumerate(eqns) if eqn.primitive.name == NAME and eqn.params["barrier"])
    assert first < tie < second
    assert eqns[tie].outvars[0] in eqns[second].invars  # the second equation's operand waits for the first
    assert forward < first


WIDE = jnp.arange(4.0)[None, :, None]


def of_states(x: jax.Array, w: jax.Array) -> jax.Array:
    """Outputs of a state space model, as Mamba's."""
    return (jax.nn.silu(x) * jnp.exp(x[:, None] * WIDE).sum(1)) @ w


def normed(x: jax.Array, w: jax.Array) -> jax.Array:
    """A row has a single sum."""
    return (x / jnp.exp(x[:, None] * WIDE).sum((1, 2), keepdims=True)[:, 0]) @ w


@pytest.mark.parametrize(
    ("function", "expected"),
    [(of_states, True), (normed, False), (jnp.dot, False)],
)
def test_no_gradient_waits_for_sums_over_much_more(function: Function, expected: bool) -> None:
    x, w = LARGE, SMALL
    program = program_of(jax.make_jaxpr(function)(x, w))
    (last,) = (eqn for eqn in program.equations if eqn.primitive.name == "dot_general")
    assert is_from_sums(program, last) == expected
    assert (rule_of(program, last) is None) == expected


@pytest.mark.parametrize(("function", "name", "rule"), CASES[2:])
def test_zeros_wait_for_the_scattered_values(function: Function, name: str, rule: Any) -> None:
    def filled(function: Function) -> Any:
        eqns = jax.make_jaxpr(jax.grad(function))(LARGE, SMALL).jaxpr.eqns
        by_result = {var: eqn for eqn in eqns for var in eqn.outvars}
        (scatter,) = (eqn for eqn in eqns if eqn.primitive.name == "scatter-add")
        return by_result[scatter.invars[0]].invars[0]

    assert isinstance(filled(function), core.Literal)
    assert not isinstance(filled(with_last_replaced(function, name, rule)), core.Literal)


def test_zeros_stay_zeros_where_nothing_is_a_number() -> None:
    broken = LARGE.at[0, 0].set(jnp.nan).at[1, 1].set(jnp.inf)
    how = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def rows(a: jax.Array) -> jax.Array:
        return jax.lax.scatter_add(jax.lax.full((9, 5), 0.0), ROWS[:, None], a[:4], how)

    np.testing.assert_array_equal(with_last_replaced(rows, "scatter-add", scattered_zeros)(broken), rows(broken))


def no_rows(x: jax.Array) -> jax.Array:
    how = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    return jnp.sin(x).sum() + jax.lax.gather(x, jnp.zeros((0, 1), int), how, (1, x.shape[1])).sum()


def into_a_number(x: jax.Array) -> jax.Array:
    return jnp.sin(jnp.zeros(()).at[()].add(x[0, 0] * 2)) + jax.ops.segment_sum(x, jnp.array([1, 0, 1]), 2)[1].sum()


def by_itself(x: jax.Array) -> jax.Array:
    y = jnp.sin(x)
    return jnp.sin(jax.lax.dot(y, y)).sum()


def by_a_number(x: jax.Array) -> jax.Array:
    return jax.lax.dot_general(jnp.sin(x), jnp.ones((3, 2), jnp.bfloat16), (((1,), (0,)), ((), ()))).sum()


@pytest.mark.parametrize("function", [no_rows, into_a_number, by_itself, by_a_number])
def test_plans_take_odd_equations(function: Function) -> None:
    x = SMALL[:3, :3]
    program = program_of(jax.make_jaxpr(function)(x))
    plan = CheckpointPlan((Region(0, len(program.equations)),))

    def planned(x: jax.Array) -> Any:
        return evaluate(program, plan, [x])[0]

    for transformed in (jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (x,))):
        result, expected = transformed(planned)(x), transformed(function)(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), result, expected)


def test_products_keep_their_names_and_devices() -> None:
    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        with jax.named_scope("attention"):
            return multiplied(a, b)

    gradient = jax.make_jaxpr(jax.grad(with_last_replaced(function, "dot_general", by_size), (0, 1)))(LARGE, SMALL)
    names = [str(eqn.source_info.name_stack) for eqn in gradient.jaxpr.eqns if eqn.primitive.name == "dot_general"]
    assert len(names) == 3
    assert all("attention" in name for name in names)


Y, W = jnp.linspace(0.1, 1.0, 6).reshape(2, 3), jnp.linspace(-1.0, 1.0, 9).reshape(3, 3)


def plain(w: jax.Array, x: jax.Array, power: int) -> jax.Array:
    return (jnp.sin(x @ w) ** power).sum()


def with_barriers(w: jax.Array, x: jax.Array, power: int) -> jax.Array:
    w, x, power = join_gradients([w, x, power])
    value, _ = finish_forward([(jnp.sin(x @ w) ** power).sum(), power])
    return value


def barriers(function: Any, *args: Any) -> list[Any]:
    """The equations of barriers, in order."""
    return [eqn for eqn in jax.make_jaxpr(function)(*args).jaxpr.eqns if eqn.primitive.name == NAME]


def test_gradients_are_released_together_after_the_result() -> None:
    (begin, end) = barriers(jax.value_and_grad(with_barriers, (0, 1)), W, Y, 2)
    assert [begin.params["barrier"], end.params["barrier"]] == [True, True]
    assert len(begin.outvars) == 1  # the loss's cotangent
    assert begin.invars[1].aval.shape == ()  # waits for the loss
    assert [var.aval.shape for var in end.outvars] == [(3, 3), (2, 3)]
    (alone,) = barriers(jax.value_and_grad(with_barriers), W, Y, 2)  # a gradient alone waits for nothing
    assert alone.outvars[0].aval.shape == ()


def test_values_without_a_gradient_are_not_waited_for() -> None:
    def scaled(w: jax.Array, x: jax.Array, gain: jax.Array) -> jax.Array:
        w, x, gain = join_gradients([w, x, gain])
        return (x @ w * gain).sum()

    (end,) = barriers(jax.grad(scaled, (0, 2)), W, Y, jnp.ones(3)[None])
    assert [var.aval.shape for var in end.outvars] == [(3, 3), (1, 3)]
    assert join_gradients([]) == finish_forward([]) == []


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: jax.jit(jax.grad(f, 1), static_argnums=2),
        lambda f: jax.grad(jax.checkpoint(f, static_argnums=2)),
        lambda f: lambda w, x, p: jax.grad(lambda w: jax.jvp(lambda w: f(w, x, p), (w,), (w,))[1])(w),
        lambda f: lambda w, x, p: jax.vmap(lambda row: jax.grad(f)(w, row[None], p))(x),
    ],
)  # fmt: skip
def test_derivatives_are_the_same(transformed: Any) -> None:
    np.testing.assert_allclose(transformed(with_barriers)(W, Y, 2), transformed(plain)(W, Y, 2), rtol=1e-6)


def test_gradients_of_the_users_own_checkpoints_wait_with_nothing_else_computed_again() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for k in range(3):
            x = jax.checkpoint(lambda x, k=k: jnp.tanh(x @ w[k]))(x)
        return x.sum()

    args = jax.random.normal(jax.random.key(0), (3, 4, 4)), jnp.ones((2, 4))
    own = graphrl.checkpoint(loss, budget=1.0, seconds=0.1, cache=False)
    plain, waiting = (jax.make_jaxpr(jax.grad(function))(*args) for function in (loss, own))
    assert str(waiting).count("dot_general") == str(plain).count("dot_general")
    joined = re.findall(rf"{NAME}\[\s*barrier=True\s+count=(\d)", str(waiting))
    assert joined == ["1", "2", "2"]  # the loss's cotangent; a layer's two gradients, except those of arguments alone
    assert own.report().slowdown == 0
    np.testing.assert_allclose(jax.grad(own)(*args), jax.grad(loss)(*args), rtol=1e-6)


def test_segments_of_a_plan_have_barriers_and_other_functions_none() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(jnp.sin(x @ w))
        return x.sum()

    kept = graphrl.checkpoint(loss, budget=1.0, seconds=0.1, cache=False)
    less = graphrl.checkpoint(loss, budget=0.4, seconds=0.5, cache=False)
    x = jnp.ones((3, 3))
    assert NAME not in str(jax.make_jaxpr(jax.value_and_grad(kept))(W, x))
    assert NAME in str(jax.make_jaxpr(jax.value_and_grad(less))(W, x))
