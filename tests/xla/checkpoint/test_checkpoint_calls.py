"""Calls of `graphrl.checkpoint`: options of any number, static arguments, and calls that trigger no compilation."""

import fractions
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_programs import WEIGHTS, X, assert_same, mlp, nested

import graphrl
from graphrl.errors import GraphrlError, ProblemError
from graphrl.xla.checkpoint.settings import Settings

quick = functools.partial(graphrl.checkpoint, budget=0.6, seconds=0.1, cache=False)


@pytest.mark.parametrize("half", [np.float32(0.5), np.array(0.5), jnp.bfloat16(0.5), fractions.Fraction(1, 2)])
def test_limits_are_numbers_of_any_library(half: Any) -> None:
    assert Settings(budget=half) == Settings(budget=0.5)
    assert Settings(slowdown=half) == Settings(slowdown=0.5)
    assert type(Settings(budget=half).budget) is float


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("checkpoint needs one limit: budget=0.5", {}),
        ("checkpoint needs one limit: budget=0.5", {"budget": 0.5, "slowdown": 0.1}),
        ("budget is 1.5: must be a part from 0 to 1, or bytes", {"budget": 1.5}),
        ("budget is True: must be a part", {"budget": True}),
        (r"budget is .*\[0\.5\].*: must be a part from 0 to 1, or bytes", {"budget": np.array([0.5])}),
        ("'much' is not bytes: write for example 4096, 512MiB", {"budget": "much"}),
        ("slowdown is 2: must be a part of the step's time, from -1 ", {"slowdown": 2}),
        ("slowdown is nan: must be", {"slowdown": float("nan")}),
        ("unknown chip 'abacus': the nearest of 24 known are", {"budget": 0.5, "chip": "abacus"}),
        ("seconds is -1: must be a finite number above 0", {"budget": 0.5, "seconds": -1}),
        ("seed is -1: must be an integer from 0", {"budget": 0.5, "seed": -1}),
        ("offload is 'yes': must be True or False", {"budget": 0.5, "offload": "yes"}),
        ("verify is 3: must be True, False or a function that compiles", {"budget": 0.5, "verify": 3}),
        ("static_argnums is True: must be an integer", {"budget": 0.5, "static_argnums": True}),
        ("static_argnames is 3: must be a name or names", {"budget": 0.5, "static_argnames": 3}),
    ],
)
def test_options_at_fault_are_refused_in_one_line(message: str, given: dict[str, Any]) -> None:
    with pytest.raises(GraphrlError, match=message) as refusal:
        graphrl.checkpoint(mlp, **given)
    assert "\n" not in str(refusal.value)


def test_limits_that_are_traced_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"budget is .*: must be a part"):
        jax.jit(lambda part, x: graphrl.checkpoint(jnp.sin, budget=part)(x))(0.5, X)


def powers(weights: Any, exponent: int, x: Any, kind: str = "mean", *, sign: bool = True) -> Any:
    """Python code branches on an argument that is not an array."""
    total = jnp.square(mlp(weights, x**exponent))
    assert kind in ("mean", "sum")
    return total * (1.0 if sign else -1.0) * (X.size if kind == "sum" else 1)


def test_static_arguments_by_place_and_by_name() -> None:
    def taken(fn: Callable[..., Any]) -> Any:
        return [
            jax.grad(fn, (0, 2))(WEIGHTS, 2, X),
            jax.grad(fn)(WEIGHTS, 3, X, kind="sum", sign=False),
            jax.jit(lambda w: jax.value_and_grad(fn)(w, 2, X, sign=False))(WEIGHTS),
            jax.vmap(lambda x: fn(WEIGHTS, 2, x, kind="sum"))(X),
        ]

    assert_same(taken(quick(powers, static_argnums=(1,), static_argnames=["kind", "sign"])), taken(powers))
    for number in ([1], -2):
        assert_same(quick(powers, static_argnums=number)(WEIGHTS, 2, X), powers(WEIGHTS, 2, X))
    shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (WEIGHTS, X))
    named = quick(powers, static_argnums=1, static_argnames="kind")
    weights, x = shapes
    assert named.report(weights, 2, x, kind="mean").argument_bytes == WEIGHTS.nbytes + X.nbytes
    options: dict[str, Any] = {"static_argnums": 1, "static_argnames": "kind", "seconds": 0.1, "cache": False}
    curve = graphrl.checkpoint_curve(powers, weights, 2, x, slowdowns=[0.1], kind="sum", **options)
    assert curve.function == "powers"


def test_static_arguments_of_equal_values_and_other_types_differ() -> None:
    traced: list[Any] = []

    def loss(x: Any, what: Any) -> Any:
        traced.append(what)
        return (x * 2.0).sum()

    fn = quick(loss, static_argnums=1)
    for what in (1, 1.0, True, [1], [1]):  # lists have no hash: they are traced each time
        fn(X, what)
        fn(X, what)
    assert [type(what) for what in traced] == [int, float, bool, list, list, list, list]
    with pytest.raises(ProblemError, match="static_argnums has 1: the call has 1 positional arguments"):
        fn(X)


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """A list that grows with each program that XLA compiles."""
    names: list[str] = []

    def listen(event: str, duration_secs: float, **more: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_later_calls_without_jit_compile_nothing(compilations: list[str]) -> None:
    fn = quick(nested)
    functions: list[Callable[..., Any]] = [fn, jax.value_and_grad(fn, (0, 1)), jax.vmap(fn, (None, 0))]
    rows = X[:, None]
    first = [function(WEIGHTS, rows if function is functions[2] else X) for function in functions]
    assert compilations
    compilations.clear()
    for function, result in zip(functions, first, strict=True):
        assert_same(function(WEIGHTS, rows if function is functions[2] else X), result, bits=True)
    assert not compilations
    fn(WEIGHTS, X[:8])
    assert compilations


def test_closed_over_values_are_traced_once_as_in_jax() -> None:
    traces: list[int] = []

    def loss(x: jax.Array) -> jax.Array:
        traces.append(1)
        return jnp.sin(jnp.sin(x * WEIGHTS[0, 0, 0])).sum()

    fn = quick(loss)
    for _ in range(3):
        jax.grad(fn)(X)
        fn(X)
        jax.jit(jax.grad(fn))(X)
    assert len(traces) == 1
    fn(X[:2])
    assert len(traces) == 2


def test_functions_that_close_over_other_tracers_at_each_call() -> None:
    box: dict[str, Any] = {}
    fn = quick(lambda x: mlp(box["weights"], x))

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        box["weights"] = weights
        return fn(x)

    expected = jax.grad(mlp)(WEIGHTS, X)
    for _ in range(2):
        for got, own in zip(jax.tree.leaves(jax.grad(loss)(WEIGHTS, X)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(got, own, rtol=1e-5)


@jax.tree_util.register_pytree_node_class
class Checked:
    """A result that accepts arrays alone."""

    def __init__(self, value: Any) -> None:
        assert isinstance(value, jax.Array)
        self.value = value

    def tree_flatten(self) -> tuple[tuple[jax.Array], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple[Any]) -> "Checked":
        return cls(*leaves)


def test_results_are_made_of_arrays_alone() -> None:
    fn = graphrl.checkpoint(lambda x: Checked(jnp.sin(jnp.sin(x)).sum()), budget=0.6, seconds=0.1)
    gradient = jax.grad(lambda x: fn(x).value)(X)
    np.testing.assert_array_equal(gradient, jax.grad(lambda x: jnp.sin(jnp.sin(x)).sum())(X))
