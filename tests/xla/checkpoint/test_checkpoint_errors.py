"""Errors about a function under `graphrl.checkpoint` and `graphrl.jit`: they name it, its line and its arguments."""

import fractions
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphrl
from graphrl.errors import ArgumentError, GraphrlError

X = jnp.linspace(0.1, 1.0, 3)
quick = functools.partial(graphrl.checkpoint, budget=0.5, seconds=0.1, cache=False)
planned = functools.partial(graphrl.jit, seconds=0.1, cache=False)
DECORATORS = pytest.mark.parametrize("decorate", [quick, planned])


class Plain:
    """A class that is not a pytree."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Branches on a traced value."""
        return x.sum() if x[0] > 0 else -x.sum()

    def loss(self, x: jax.Array) -> jax.Array:
        """A method."""
        return x.sum()

    decorated = quick(loss)


def loss(params: Any, x: Any = X, *rest: Any, flag: Any = 1.0, **more: Any) -> Any:
    """Computes with its second argument alone."""
    return jnp.sin(x).sum()


def curve(*args: Any, **kwargs: Any) -> Any:
    return graphrl.checkpoint_curve(loss, *args, slowdowns=(0.1,), seconds=0.1, cache=False, **kwargs)


NUMBER = "must be an array or a number, or static"
REFUSED = [
    (f"x is 'relu', of type str: {NUMBER}, with 1 in static_argnums", (X, "relu"), {}),
    (f"x is 'relu', of type str: {NUMBER}, with 'x' in static_argnames", (X,), {"x": "relu"}),
    (f"rest[1] is b'a', of type bytes: {NUMBER}, with 3 in static_argnums", (X, X, 1, b"a"), {}),
    (f"gate is 'on', of type str: {NUMBER}, with 'gate' in static_argnames", (X,), {"gate": "on"}),
    (f"params is of type function: {NUMBER}, with 0 in static_argnums", (loss,), {}),
    (f"params['a'][1]['b'] is 'text', of type str: {NUMBER} as an argument of", ({"a": [1.0, {"b": "text"}]},), {}),
    (
        "params[0] is of type Fraction: must be a pytree, as by jax.tree_util.register_dataclass, or static as an",
        ([fractions.Fraction(1, 2)],),
        {},
    ),
    ("params is an array of <U1: must be a jax or numpy array of numbers", (np.array(["x"]),), {}),
    (f"params is {2**70}, of type int: must be an array of a type that can hold it", (2**70,), {}),
]


@pytest.mark.parametrize(("message", "args", "kwargs"), REFUSED)
def test_arguments_that_are_no_arrays_are_named(message: str, args: Any, kwargs: Any) -> None:
    fn = quick(loss)
    for call in (fn, fn.report, curve, jax.jit(lambda: fn(*args, **kwargs))):
        given: tuple[Any, Any] = ((), {}) if call not in (fn, fn.report, curve) else (args, kwargs)
        with pytest.raises(ArgumentError) as refusal:
            call(*given[0], **given[1])
        assert str(refusal.value).startswith(f"loss: argument {message}")
        assert "\n" not in str(refusal.value)
    assert issubclass(ArgumentError, TypeError)
    assert issubclass(ArgumentError, GraphrlError)


def test_shapes_are_for_reports() -> None:
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    with pytest.raises(
        ArgumentError, match="argument x is of type ShapeDtypeStruct: must be a jax or numpy array of numbers"
    ):
        quick(loss)(1.0, shape)
    assert quick(loss).report(1.0, shape).function == "loss"


def test_a_plain_object_as_self_is_named() -> None:
    message = (
        "loss: argument self is of type Plain: must be a pytree, as by jax.tree_util.register_dataclass, or static, "
        "with 0 in static_argnums"
    )
    with pytest.raises(ArgumentError) as refusal:
        Plain().decorated(X)
    assert str(refusal.value) == message


def test_results_that_are_no_arrays_are_named() -> None:
    with pytest.raises(ArgumentError) as refusal:
        quick(lambda x: {"a": [x, "text"]})(X)
    assert str(refusal.value) == "<lambda>: its result['a'][1] is 'text', of type str: must be an array or a number"


def looks(params: Any, x: Any, *rest: Any, flag: Any = True, kind: str = "", **more: Any) -> Any:
    """Branches on a value that a static argument selects."""
    assert {
        "params": lambda: params["w"][0] > 0,
        "x": lambda: x > 0,
        "rest": lambda: rest[1],
        "flag": lambda: flag,
        "more": lambda: more["gate"],
    }[kind]()
    return x


@DECORATORS
def test_values_that_are_looked_at_are_named_as_in_the_function(decorate: Callable[..., Any]) -> None:
    fn = decorate(looks, static_argnames="kind")
    for name in ("params['w'][0]", "x", "rest[1]", "flag", "more['gate']"):
        with pytest.raises(jax.errors.TracerBoolConversionError) as refusal:
            fn({"w": [1.0]}, 1.0, 2.0, 3.0, flag=True, kind=name.partition("[")[0], gate=1)
        assert f"the function looks at {__file__}:{looks.__code__.co_firstlineno}" in str(refusal.value)
        assert f"the value of the argument {name}." in str(refusal.value)


def looked_at(x: jax.Array) -> Any:
    return x if x.sum() > 0 else -x


@DECORATORS
def test_functions_of_all_sorts_are_named(decorate: Callable[..., Any]) -> None:
    call = Plain.__call__.__code__.co_firstlineno
    for fn, name in (
        (looked_at, "looked_at"),
        (functools.partial(Plain()), "__call__"),
        (quick(looked_at), "looked_at"),
    ):
        line = call if name == "__call__" else looked_at.__code__.co_firstlineno
        with pytest.raises(jax.errors.TracerBoolConversionError) as refusal:
            decorate(fn)(X)
        assert f"the function {name} at {__file__}:{line} for" in str(refusal.value)


@pytest.mark.parametrize("convert", [np.asarray, lambda x: jnp.zeros(int(x)), lambda x: range(3)[x]])
def test_other_conversions_are_named(convert: Callable[[Any], Any]) -> None:
    def size(number: Any) -> Any:
        return convert(number)

    with pytest.raises((TypeError, jax.errors.JAXTypeError)) as refusal:
        quick(size)(3)
    assert f"the function size at {__file__}" in str(refusal.value)
    assert "argument number" in str(refusal.value)


def test_leaked_tracers_are_named() -> None:
    leaked: list[Any] = []

    def leaks(x: jax.Array) -> jax.Array:
        leaked.append(x * 2.0)
        return x.sum()

    quick(leaks)(X)
    with pytest.raises(jax.errors.UnexpectedTracerError) as refusal:
        quick(lambda x: x * leaked[0])(X)
    assert f"was leaks at {__file__}" in str(refusal.value)
    assert "graphrl/xla" not in str(refusal.value)


def test_reports_of_modules_with_functions() -> None:
    mlp = eqx.nn.MLP(3, 3, 3, 1, key=jax.random.key(0))
    fn = quick(lambda model, x: model(x).sum())
    assert fn.report(mlp, jax.ShapeDtypeStruct((3,), jnp.float32)).argument_bytes == (2 * 12 + 3) * 4


@pytest.mark.parametrize(
    ("message", "args", "kwargs"),
    [
        ("missing 1 required positional argument: 'params'", (), {"x": X}),
        ("missing 1 required positional argument: 'x'", (X,), {"flag": 1.0}),
        ("got multiple values for argument 'x'", (X, X), {"x": X}),
    ],
)
def test_calls_that_do_not_fit_are_the_functions_errors(message: str, args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError, match=message) as refusal:
        quick(looks)(*args, **kwargs)
    assert str(refusal.value).startswith("looks()")


@pytest.mark.parametrize("take", [lambda fn: fn, jax.grad])
def test_arrays_on_several_devices_are_named(take: Callable[..., Any]) -> None:
    first, second = (jax.device_put(X, device) for device in jax.devices()[:2])
    fn = quick(lambda params, *, x: (params["w"] * jnp.sin(x)).sum())
    with pytest.raises(ValueError, match=r"Got argument (params\['w'\]|x) of .*<lambda> with shape"):
        take(fn)({"w": first}, x=second)


def test_programs_have_the_functions_name() -> None:
    assert "name=loss" in str(jax.make_jaxpr(quick(loss))(1.0, X))
    assert quick(functools.partial(loss, 1.0)).__name__ == "loss"


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def scaled(scale: Any, x: jax.Array) -> jax.Array:
    """A custom rule with a non-differentiable argument."""
    return scale * jnp.sin(x)


@scaled.defjvp
def _scaled_jvp(scale: Any, primals: Any, tangents: Any) -> Any:
    return scaled(scale, *primals), scale * jnp.cos(primals[0]) * tangents[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def applied(fn: Callable[..., Any], x: jax.Array) -> jax.Array:
    """A custom rule, whose non-differentiable argument may close over a tracer."""
    return fn(x)


applied.defvjp(lambda fn, x: (fn(x), x), lambda fn, x, cotangent: (fn(x) * cotangent,))


@jax.custom_vjp
def without(x: jax.Array) -> jax.Array:
    """A function whose custom rule raises."""
    return jnp.sin(x)


def _refuse(x: jax.Array) -> Any:
    raise RuntimeError("no gradient")


without.defvjp(_refuse, lambda residuals, cotangent: (cotangent,))

FORWARD = [
    lambda x, s: scaled(s, jnp.sin(x)).sum(),
    lambda x, s: jax.vmap(lambda y: scaled(y, jnp.sin(y)))(x).sum() * s,
    lambda x, s: applied(lambda y: y * s, jnp.sin(x)).sum(),
    lambda x, s: without(jnp.sin(x)).sum() * s,
]


@pytest.mark.parametrize("fn", FORWARD)
def test_forward_passes_whose_rules_close_over_tracers(fn: Callable[..., Any]) -> None:
    for run in (lambda f: jax.jit(f)(X, 2.0), lambda f: jax.vmap(f, (None, 0))(X, X)):
        np.testing.assert_allclose(run(quick(fn)), run(jax.checkpoint(fn)), rtol=1e-6)


def test_gradients_by_rules_with_arguments_from_outside() -> None:
    def gradient(decorate: Callable[..., Any]) -> Any:
        return jax.grad(lambda x: decorate(lambda y: FORWARD[2](y, 2.0))(x))(X)

    np.testing.assert_allclose(gradient(quick), gradient(jax.checkpoint), rtol=1e-6)


@pytest.mark.parametrize("fn", [FORWARD[1], lambda x, s: jnp.cumsum(FORWARD[0](x, x.mean()) + jnp.cos(x)).sum() * s])
@pytest.mark.parametrize("take", [jax.grad, lambda fn: jax.jit(jax.grad(lambda x, s: fn(x, s) ** 2))])
def test_gradients_by_rules_that_close_over_tracers(take: Callable[..., Any], fn: Callable[..., Any]) -> None:
    decorated = quick(fn)
    for _ in range(2):  # the second call knows that the function has no plan
        np.testing.assert_allclose(take(decorated)(X, 2.0), take(fn)(X, 2.0), rtol=1e-6)
    assert decorated.report().as_written
    assert "not planned" in str(decorated.report())


def test_rules_that_take_no_tracers_get_the_arguments_as_they_are() -> None:
    def loss(x: jax.Array, scale: Any) -> jax.Array:
        return applied_by(scale, jnp.sin(x)).sum()

    with pytest.raises(jax.errors.UnexpectedTracerError, match="nondiff_argnums"):
        jax.jit(quick(loss))(X, 2.0)  # as under jax.jit alone
    np.testing.assert_allclose(
        jax.grad(quick(loss))(X, jnp.float32(2.0)), jax.grad(loss)(X, jnp.float32(2.0)), rtol=1e-6
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def applied_by(scale: Any, x: jax.Array) -> jax.Array:
    """A custom rule that accepts arrays, but no tracers, as its first argument."""
    return scale * x


applied_by.defvjp(lambda scale, x: (scale * x, None), lambda scale, _, cotangent: (scale * cotangent,))
