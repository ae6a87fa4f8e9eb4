"""Values moved to the host: copies and waits of the traced gradient, and equal results."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core.primitives import name_p

import graphrl
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.plans import plan_of
from graphrl.xla.checkpoint.primitives import join_gradients, send_to_host, wait_for
from graphrl.xla.checkpoint.program import CheckpointPlan, Program, Region, checkpointed, program_of
from graphrl.xla.checkpoint.rewrite import evaluate
from graphrl.xla.checkpoint.solvers.choice import RECOMPUTE, Pricing, State
from graphrl.xla.checkpoint.solvers.level import MOVED, RECOMPUTED

POLICY = jax.checkpoint_policies.save_only_these_names("h")
WEIGHTS = jnp.linspace(-1, 1, 16).reshape(4, 4)
X = jnp.linspace(0, 1, 12).reshape(3, 4)


def layer(w: jax.Array, x: jax.Array, moves: bool) -> jax.Array:
    if not moves:
        return jnp.tanh(name_p.bind(jnp.sin(x @ w), name="h") @ w) @ w
    w, x = join_gradients([w, x])
    h = jnp.sin(x @ w)
    h, copy = send_to_host(h, "h")
    return jnp.tanh(wait_for(h @ w, [copy])) @ w


def loss(w: jax.Array, x: jax.Array, moves: bool) -> jax.Array:
    for _ in range(2):
        x = checkpointed(lambda w, x: layer(w, x, moves), w, x, policy=POLICY)
    return (x**2).sum()


def equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of all that it calls, in order."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def kinds(function: Callable[..., Any], *args: Any) -> list[str]:
    """Copies, waits, products and the barriers where the backward pass starts to recompute, in order."""
    names = []
    for eqn in equations(jax.make_jaxpr(function)(*args).jaxpr):
        name = eqn.primitive.name
        if name == "device_put":
            names.append("out" if eqn.outvars[0].aval.memory_space == jax.memory.Space.Host else "back")
        elif name in ("dot_general", "remat2", "checkpoint") or (name == "after" and eqn.params["waits"]):
            names.append(name)
    return names


TRANSFORMATIONS: dict[str, Callable[[Callable[[jax.Array], jax.Array]], Any]] = {
    "under jit": lambda f: jax.jit(jax.grad(f))(WEIGHTS),
    "forward over reverse": lambda f: jax.jvp(jax.grad(f), (WEIGHTS,), (jnp.cos(WEIGHTS),)),
    "of many": lambda f: jax.vmap(jax.grad(f))(jnp.stack([WEIGHTS, 2 * WEIGHTS])),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_moving_computes_the_same(name: str) -> None:
    transformed = TRANSFORMATIONS[name]
    kept, own = transformed(lambda w: loss(w, X, False)), transformed(lambda w: loss(w, X, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), own, kept)


def test_a_gradient_copies_out_then_waits_then_copies_back() -> None:
    order = kinds(jax.grad(lambda w: loss(w, X, True)), WEIGHTS)
    assert order[:5] == ["dot_general", "out", "dot_general", "after", "dot_general"]
    assert [order.count(kind) for kind in ("out", "after", "back")] == [2, 2, 2]
    assert order.index("back") > max(place for place, kind in enumerate(order) if kind == "after")


def test_without_a_gradient_nothing_is_copied() -> None:
    text = str(jax.jit(lambda w: loss(w, X, True)).lower(WEIGHTS).compile().as_text())
    assert "MoveTo" not in text
    assert "S(5)" not in text
    assert "after" not in kinds(lambda w: loss(w, X, True), WEIGHTS)


def chain() -> Program:
    """Four products with sines after them."""

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.sin(x @ w)
        return x.sum()

    return program_of(jax.make_jaxpr(run)(WEIGHTS, X))


@pytest.mark.parametrize("end", [2, 6])
def test_a_copy_may_end_in_a_later_region(end: int) -> None:
    program = chain()
    plan = CheckpointPlan((Region(0, 4, moved=((0, 0),), ends=(end,)), Region(4, 8)))
    plain = jax.value_and_grad(lambda w: evaluate(program, CheckpointPlan(), [w, X])[0])(WEIGHTS)
    function = jax.value_and_grad(lambda w: evaluate(program, plan, [w, X])[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), function(WEIGHTS), plain)
    order = kinds(function, WEIGHTS)
    products = order[: order.index("after")].count("dot_general")
    assert products == end // 2 + 1
    assert [order.count(kind) for kind in ("out", "after", "back")] == [1, 1, 1]


def wide(w: jax.Array, x: jax.Array) -> jax.Array:
    for _ in range(6):
        x = x + jnp.tanh(x @ w) @ w.T
    return (x**2).sum()


def test_choices_become_plans_that_copy_and_wait() -> None:
    """All products' results are moved, layer by layer; one for which no later product can wait is kept."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 4096), (8192, 1024))]
    program = program_of(jax.make_jaxpr(wide)(*shapes))
    named = gradient_of(program, [True, True], find_chip("h200"))
    pricing, (level,) = Pricing(named.gradient), named.gradient.levels
    products = [place for place, eqn in enumerate(program.equations) if eqn.primitive.name == "dot_general"]
    state = State.plain(named.gradient)
    state.keep[0][:] = np.where(level.heavy & level.named, MOVED, RECOMPUTED)
    state.starts[0][[0, *products[2::2]]] = RECOMPUTE
    state.changed(0)
    price, plan = pricing(state.choice()), plan_of(named, state.choice(), pricing)
    ends = [(name, end) for region in plan.regions for name, end in zip(region.moved, region.ends, strict=True)]
    assert all(end in products and end > name[0] for name, end in ends)
    assert 0 < price.moved <= sum(level.bytes[level.heavy & level.named])
    order = kinds(jax.grad(lambda w, x: evaluate(program, plan, [w, x])[0], (0, 1)), *shapes)
    assert order.count("out") == order.count("back") == len(ends)
    assert order.count("after") == len({end for _, end in ends})
    w, x = jnp.linspace(-0.1, 0.1, 64 * 64).reshape(64, 64), jnp.linspace(0, 1, 128 * 64).reshape(128, 64)
    small = program_of(jax.make_jaxpr(wide)(w, x))
    own = jax.value_and_grad(lambda w: evaluate(small, plan, [w, x])[0])(w)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), own, jax.value_and_grad(wide)(w, x)
    )


def test_offloaded_plans_compute_the_same() -> None:
    function = graphrl.checkpoint(wide, slowdown=0.2, chip="h200", offload=True, seconds=1, cache=False)
    w, x = jnp.linspace(-0.1, 0.1, 64 * 64).reshape(64, 64), jnp.linspace(0, 1, 128 * 64).reshape(128, 64)
    own, plain = (jax.jit(jax.value_and_grad(f))(w, x) for f in (function, wide))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), own, plain)
