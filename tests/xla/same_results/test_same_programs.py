"""Control flow and transformations, several devices of the host, and donated arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jit_cases import ELSEWHERE, IN_PLACE, Compiler, N, branches, fates, matrix, raised, same, vector, wide
from xla_programs import plans

__all__ = ["plans"]

# Control flow


@same
def test_loops(by: Compiler) -> Any:
    """Loops in reverse, unrolled, of no steps, and by halves."""

    def program(x: jax.Array, xs: jax.Array) -> Any:
        def outer(x: jax.Array, _: None) -> Any:
            inner = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(wide(s[1]))), (0, x))
            return lax.fori_loop(0, 2, lambda k, x: jnp.tanh(wide(x)) + k.astype(jnp.float32), inner[1]), x.sum()

        def body(x: jax.Array, y: jax.Array) -> Any:
            return jnp.tanh(wide(x) + y), {"carry": x, "sum": (x + y).sum()}

        both = [lax.scan(body, x, xs, reverse=reverse, unroll=unroll) for reverse, unroll in ((True, 1), (False, 2))]
        return lax.scan(outer, x, None, length=3), both, lax.scan(body, x, xs[:0]), lax.associative_scan(jnp.add, xs)

    return by.jit(program)(vector(), matrix()[:5])


@same
def test_branches_in_branches(by: Compiler) -> Any:
    def program(x: jax.Array, which: jax.Array) -> Any:
        def inner(x: jax.Array) -> jax.Array:
            return lax.cond(x.sum() > 0, wide, lambda x: wide(x * 2) - 1, x)

        return lax.switch(which, [inner, lambda x: inner(-x), lambda x: x, lambda x: wide(x) * inner(x)], x)

    step = by.jit(program)
    return [step(vector(k), jnp.int32(k - 1)) for k in range(6)]  # indices outside are clamped


@same
def test_checkpoints(by: Compiler) -> Any:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(wide(x) @ w)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        x = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(x, weights[0])
        return lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, weights[1:])[0].sum()

    return by.jit(jax.value_and_grad(loss))(jnp.stack([matrix(k) for k in range(3)]), vector())


@same
def test_its_own_functions_under_transformations(by: Compiler) -> Any:
    planned = by.jit(lambda x: jnp.tanh(wide(x)))
    x = vector()
    outputs, pull = jax.vjp(planned, x)
    linear = jax.linearize(planned, x)[1]
    outer = by.jit(lambda x: jax.grad(lambda y: planned(planned(y)).sum())(x) + planned(x))
    return planned(x), outputs, pull(x), linear(x), jax.vmap(planned)(jnp.stack([x, x])), outer(x), jax.jit(planned)(x)


# Several devices


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()), ("d",))


def _rows(count: int = 4) -> jax.Array:
    """`[count, N]`, with an equal part of the rows on each device."""
    return jax.device_put(jnp.stack([vector(k) for k in range(count)]), NamedSharding(_mesh(), P("d")))


@same
def test_collectives(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        def body(x: jax.Array, _: None) -> Any:
            x = jnp.tanh(wide(x) + lax.psum(x, "d"))
            return x, lax.all_gather(x.sum(), "d")

        y = jnp.tanh(wide(xs[0]))[None]
        ring = [(k, (k + 1) % count) for k in range(count)]
        return (
            lax.psum(y, "d"), lax.all_gather(y, "d", axis=0, tiled=True), lax.ppermute(y, "d", ring),
            lax.all_to_all(y.reshape(count, -1), "d", 0, 0), lax.psum_scatter(y[0], "d", tiled=True)[None],
            lax.axis_index("d")[None], lax.pmax(y, "d"), lax.scan(body, xs[0], None, length=3)[1][None],
        )  # fmt: skip

    return by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(_rows(count))


@same
def test_collectives_in_branches_that_nothing_orders(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        parts = [lax.psum(jnp.sin(jnp.outer(part, part)), "d").sum(0) for part in branches(xs[0], 8)]
        return sum(parts, jnp.zeros(N))[None]

    step = by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    return [step(_rows(count)) for _ in range(4)]


@same
def test_callbacks_on_every_device(by: Compiler) -> Any:
    log: list[float] = []
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        for part in branches(xs[0]):
            jax.debug.callback(lambda v: log.append(float(v)), part.sum())
        return wide(xs[0])[None]

    result = by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(_rows(count))
    jax.effects_barrier()
    return result, sorted(log)


@same
def test_states_on_several_devices(by: Compiler) -> Any:
    def step(state: Any, xs: jax.Array) -> Any:
        y = jax.vmap(wide)(xs)
        return {"w": state["w"] * 0.9 + y.sum(0)[None], "m": state["m"] + y}, y.mean()

    mesh = _mesh()
    state = {"w": jax.device_put(matrix(), NamedSharding(mesh, P("d"))), "m": _rows()}
    jitted, states = by.jit(step, donate_argnums=0), [state]
    for _ in range(3):
        states.append(jitted(states[-1], _rows())[0])
    return states[-1], fates(states)


# Donated arguments: their state after the call, and that of other references to their buffers


def _trained(by: Compiler, step: Any, state: Any, steps: int = 3) -> Any:
    """The last of some states, the state of each donated array, and a flag that the buffers are those of the first."""
    step, states = by.jit(step, donate_argnums=0), [state]
    places = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)}
    for _ in range(steps):
        states.append(step(states[-1], vector()))
    stay = places == {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(states[-1])}
    return states[-1], fates(states), IN_PLACE if stay else ELSEWHERE


@same
def test_states_in_loops(by: Compiler) -> Any:
    def step(state: jax.Array, x: jax.Array) -> jax.Array:
        y = wide(x)
        return jax.lax.fori_loop(0, 4, lambda k, s: s.at[k].add(jnp.tanh(wide(s[k])) + y), state)

    return _trained(by, step, matrix())


@same
def test_states_and_libraries(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        parts = [jnp.eye(64) + 0.1 * jnp.outer(p[:64], p[64:128]) / 64 for p in branches(jnp.tanh(x))]
        made = [jnp.linalg.cholesky(m @ m.T + jnp.eye(64)) + jnp.linalg.svd(m)[2] for m in parts]
        waves = jnp.fft.irfft(jnp.fft.rfft(jnp.outer(x, x))) + jax.lax.reduce_window(
            jnp.outer(wide(x), x), -jnp.inf, jax.lax.max, (3, 3), (1, 1), "SAME"
        )
        key, bits = jax.lax.rng_bit_generator(state["key"], (N, N))
        noise = (bits >> 9).astype(jnp.float32) * 1e-7
        return {"key": key, "w": state["w"] * 0.5 + waves + noise, "m": state["m"] + sum(made, jnp.zeros((64, 64)))}

    return _trained(by, step, {"key": jnp.arange(4, dtype=jnp.uint32), "w": matrix(), "m": jnp.zeros((64, 64))})


@same
def test_states_that_change_places(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        a, b, c = state
        return b, c + wide(x)[None], a

    return _trained(by, step, tuple(matrix(k) for k in range(3)), steps=4)


@same
def test_donated_and_kept_in_one_call(by: Compiler) -> Any:
    """The same buffer is donated, and read as another argument."""

    def step(a: jax.Array, b: jax.Array, x: jax.Array) -> Any:
        loop = jax.lax.fori_loop(0, 3, lambda k, s: s.at[k].set(wide(x)), a)
        return loop, (jnp.tanh(b) @ b).sum(0)

    step, same = by.jit(step, donate_argnums=0), matrix(2)
    return step(matrix(), matrix(1), vector()), raised(lambda: step(same, same, vector()))
