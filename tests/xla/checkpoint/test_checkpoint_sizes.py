"""`graphrl.checkpoint` where dimensions are symbolic: exported functions compute the same at every size."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checkpoint_programs import WEIGHTS, WIDTH, X, assert_same, mlp, scanned
from jax import lax
from jax.export import SymbolicScope, export, symbolic_shape

import graphrl
from graphrl.errors import GraphError, GraphrlError, ProblemError
from graphrl.xla.checkpoint.sizes import LEAST, sizes_of

quick = functools.partial(graphrl.checkpoint, budget=0.5, seconds=0.1, cache=False)
Loss = Callable[..., Any]


def rows(shape: str = f"b, {WIDTH}", constraints: Sequence[str] = ()) -> jax.ShapeDtypeStruct:
    """Rows whose number is a symbolic dimension."""
    return jax.ShapeDtypeStruct(symbolic_shape(shape, constraints=constraints), jnp.float32)


def attention(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Products with the batch as the larger or the smaller side, a softmax over it, rows by their order."""
    query, key, value = (x @ w for w in weights[:3])
    mixed = jax.nn.softmax(query @ key.T, axis=-1) @ value
    return jnp.tanh(mixed[jnp.argsort(x[:, 0])] @ weights[3]).std()


def parts(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Twice the batch, half of it, and one row less."""
    h = jnp.concatenate([x, jnp.sin(x @ weights[0])])
    half = x.shape[0] // 2
    pairs = jnp.tanh(h[: 2 * half].reshape(half, 2, WIDTH) @ weights[1])
    return pairs.max(axis=1).sum() + jnp.cos(jnp.sin(x[:-1]) @ weights[2]).mean()


def by_rows(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A loop over the batch."""

    def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h @ weights[0] + row)
        return h, jnp.sin(h).sum()

    h, sums = lax.scan(step, jnp.zeros(WIDTH), x)
    return h.sum() + sums.mean()


LOSSES: dict[str, Loss] = {
    "scanned layers": scanned,
    "attention": attention,
    "parts of a batch": parts,
    "a loop over the batch": by_rows,
}


@pytest.mark.parametrize("name", LOSSES)
def test_exported_values_and_gradients_are_the_same_at_all_sizes(name: str) -> None:
    loss = LOSSES[name]
    fn = quick(loss)
    exported = export(jax.jit(jax.value_and_grad(fn, (0, 1))))(WEIGHTS, rows())
    for size in (2, 5):
        assert_same(exported.call(WEIGHTS, X[:size]), jax.jit(jax.value_and_grad(loss, (0, 1)))(WEIGHTS, X[:size]))
    assert fn.report().sizes == {"b": LEAST}


@pytest.mark.parametrize("limit", [{"budget": 0.5}, {"budget": "230KiB"}, {"slowdown": 0.1, "verify": True}])
def test_plans_are_those_for_the_sizes_of_the_dimensions(limit: dict[str, Any]) -> None:
    constraints = ["b <= 512"]
    fn = graphrl.checkpoint(scanned, seconds=0.2, cache=False, method="regular", **limit)
    symbolic = fn.report(WEIGHTS, rows(constraints=constraints))
    concrete = fn.report(WEIGHTS, jax.ShapeDtypeStruct((512, WIDTH), jnp.float32))
    assert symbolic.sizes == {"b": 512}
    assert concrete.sizes == {}
    for name in ("argument_bytes", "result_bytes", "compiled_bytes", "segments"):
        assert getattr(symbolic, name) == getattr(concrete, name)
    assert symbolic.planned.peak_bytes == concrete.planned.peak_bytes
    assert "b = 512" in str(symbolic)
    assert "symbolic" not in str(concrete)


@pytest.mark.parametrize(
    ("shape", "constraints", "sizes"),
    [
        ("2*b + 1, t", [], {"b": 128, "t": 128}),
        ("b", ["b >= 130", "mod(b, 8) == 0"], {"b": 136}),
        ("b", ["b <= 1000", "mod(b, 7) == 0"], {"b": 994}),
        ("b, t", ["b == 2*t", "t <= 30"], {"t": 30}),
        ("b, d", ["floordiv(b, 8) == d"], {"b": 128, "d": 16}),
        ("b^2, max(b, 3)", ["b == 5"], {}),
        ("in, 2*None", ["in >= 2*None"], {"in": 256, "None": 128}),
        ("größe", ["mod(größe, 100) == 0"], {"größe": 200}),
    ],
)
def test_sizes_keep_the_constraints(shape: str, constraints: list[str], sizes: dict[str, int]) -> None:
    dimensions = symbolic_shape(shape, scope=SymbolicScope(constraints))
    given = jax.ShapeDtypeStruct(dimensions, jnp.float32)
    assert sizes_of(jax.make_jaxpr(jnp.sin)(given).jaxpr).by_name == sizes


def test_budgets_of_bytes_need_a_bound() -> None:
    fn = graphrl.checkpoint(mlp, budget="1MiB", seconds=0.1, cache=False)
    for constraints in ([], ["b >= 4"]):
        with pytest.raises(ProblemError, match=r"^budget is 1MiB: .* of .*b.*; bound .* by constraints"):
            fn.report(WEIGHTS, rows(constraints=constraints))
    assert fn.report(WEIGHTS, rows(constraints=["b <= 1000"])).total_bytes <= 2**20
    above = ["b <= 1000", "mod(b, 7) >= 1", "mod(b, 7) <= 2"]  # at most 996, which jax does not know
    with pytest.raises(ProblemError, match="such as b <= 996, or"):
        fn.report(WEIGHTS, rows(constraints=above))
    assert fn.report(WEIGHTS, rows(constraints=[*above, "b <= 996"])).sizes == {"b": 996}


def test_plans_on_disk_are_for_their_sizes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for bound, known in (("b <= 64", False), ("b <= 32", False), ("b <= 64", True)):
        report = quick(mlp, cache=True).report(WEIGHTS, rows(constraints=[bound]))
        assert report.from_cache == known
        assert f"b = {bound[5:]}" in str(report)
    with pytest.raises(ProblemError, match="bound"):
        graphrl.checkpoint(mlp, budget="1MiB", seconds=0.1).report(WEIGHTS, rows(constraints=["b >= 4"]))


def test_under_transformations_and_exported_again() -> None:
    def penalty(fn: Loss) -> Loss:
        return jax.grad(lambda weights, x: jnp.square(jax.grad(fn)(weights, x)).sum())

    def mapped(fn: Loss) -> Loss:
        return jax.grad(lambda weights, x: jax.vmap(lambda row: fn(weights, row[None]))(x).sum())

    def closed(fn: Loss) -> Loss:
        return lambda weights, x: jax.grad(lambda weights: fn(weights, x * x.shape[0]))(weights)

    def again(fn: Loss) -> Loss:
        return jax.grad(lambda weights, x: quick(lambda x: jnp.sin(fn(weights, x)))(x))

    for take in (penalty, mapped, closed, again):
        exported = export(jax.jit(take(quick(mlp))))(WEIGHTS, rows())
        twice = export(jax.jit(exported.call))(WEIGHTS, rows())
        assert_same(twice.call(WEIGHTS, X), take(mlp)(WEIGHTS, X))


def test_shapes_and_curves_and_static_arguments() -> None:
    def loss(weights: jax.Array, x: jax.Array, count: Any) -> jax.Array:
        return mlp(weights, x * jnp.ones((count, WIDTH)))

    fn = quick(loss, static_argnums=2)
    exported = export(jax.jit(lambda weights, x: jax.grad(fn)(weights, x, x.shape[0])))(WEIGHTS, rows())
    assert_same(exported.call(WEIGHTS, X), jax.grad(mlp)(WEIGHTS, X))
    x = rows("2*b + t, 8")
    assert jax.eval_shape(quick(mlp), WEIGHTS, x).shape == ()
    curve = graphrl.checkpoint_curve(mlp, WEIGHTS, x, slowdowns=(0.1,), seconds=0.1, cache=False)
    assert curve.sizes == {"b": LEAST, "t": LEAST}
    assert f"b = {LEAST}, t = {LEAST}" in str(curve)


def test_impossible_dimensions_are_one_line() -> None:
    with pytest.raises(GraphrlError, match=r"^no sizes were found for the symbolic dimensions b within .*1998"):
        quick(mlp).report(WEIGHTS, rows(constraints=["mod(b, 1999) == 1998", "mod(b, 1997) == 1"]))
    with pytest.raises(GraphrlError, match=r"^symbolic dimensions b have several scopes"):
        quick(lambda x, y: x.sum() + y.sum()).report(rows(), rows())
    with pytest.raises(GraphError, match="symbolic"):
        graphrl.from_jax(jax.grad(quick(mlp)), WEIGHTS, rows())
    with pytest.raises(ProblemError, match=r"^an argument of shape \(b, 8\) has a symbolic dimension"):
        graphrl.compile(mlp, WEIGHTS, rows())
