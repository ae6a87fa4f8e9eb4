"""Cases on several devices of the host: shardings, collectives, and arrays that lie elsewhere."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from reproduce.real_programs.cases.compiler import Compiler, N, branches, fates, matrix, named, vector, wide


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()), ("d",))


def _rows(count: int = 4) -> jax.Array:
    """`[count, N]`, a part of the rows on each device."""
    return jax.device_put(jnp.stack([vector(k) for k in range(count)]), NamedSharding(_mesh(), P("d")))


def data_in_parallel(by: Compiler) -> Any:
    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        return jnp.square(jax.vmap(wide)(xs) @ w).mean()

    def step(w: jax.Array, xs: jax.Array) -> Any:
        value, slope = jax.value_and_grad(loss)(w, xs)
        return w - 0.1 * slope, value

    whole = NamedSharding(_mesh(), P())
    jitted, w = by.jit(step, donate_argnums=0), jax.device_put(matrix(), whole)
    for _ in range(3):
        w, value = jitted(w, _rows())
    return w, value


def tensors_in_parallel(by: Compiler) -> Any:
    mesh = _mesh()

    def loss(weights: Any, xs: jax.Array) -> jax.Array:
        hidden = jnp.tanh(jax.vmap(wide)(xs) @ weights[0])
        hidden = lax.with_sharding_constraint(hidden, NamedSharding(mesh, P(None, "d")))
        return jnp.square(hidden @ weights[1]).sum()

    put = [jax.device_put(matrix(k), NamedSharding(mesh, spec)) for k, spec in enumerate((P(None, "d"), P("d")))]
    return by.jit(jax.value_and_grad(loss))(put, jax.device_put(_rows(), NamedSharding(mesh, P())))


def shardings_that_are_declared(by: Compiler) -> Any:
    mesh = _mesh()
    rows, columns = NamedSharding(mesh, P("d")), NamedSharding(mesh, P(None, "d"))
    step = by.jit(lambda xs: jax.vmap(wide)(xs), in_shardings=(rows,), out_shardings=columns)
    return step(_rows()), step(jnp.stack([vector(k) for k in range(4)]))


def collectives(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        y = jnp.tanh(wide(xs[0]))[None]
        ring = [(k, (k + 1) % count) for k in range(count)]
        return (
            lax.psum(y, "d"), lax.all_gather(y, "d", axis=0, tiled=True), lax.ppermute(y, "d", ring),
            lax.all_to_all(y.reshape(count, -1), "d", 0, 0), lax.psum_scatter(y[0], "d", tiled=True)[None],
            lax.axis_index("d")[None], lax.pmax(y, "d"),
        )  # fmt: skip

    return by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(_rows(count))


def collectives_in_branches_that_nothing_orders(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        parts = [lax.psum(jnp.sin(jnp.outer(part, part)), "d").sum(0) for part in branches(xs[0], 8)]
        return sum(parts, jnp.zeros(N))[None]

    step = by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    return [step(_rows(count)) for _ in range(4)]


def collectives_in_loops(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        def body(x: jax.Array, _: None) -> Any:
            x = jnp.tanh(wide(x) + lax.psum(x, "d"))
            return x, lax.all_gather(x.sum(), "d")

        x, sums = lax.scan(body, xs[0], None, length=3)
        return x[None], sums[None]

    return by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(_rows(count))


def callbacks_on_every_device(by: Compiler) -> Any:
    log: list[float] = []
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        for part in branches(xs[0]):
            jax.debug.callback(lambda v: log.append(float(v)), part.sum())
        return wide(xs[0])[None]

    result = by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(_rows(count))
    jax.effects_barrier()
    return result, sorted(log)


def states_on_several_devices(by: Compiler) -> Any:
    def step(state: Any, xs: jax.Array) -> Any:
        y = jax.vmap(wide)(xs)
        return {"w": state["w"] * 0.9 + y.sum(0)[None], "m": state["m"] + y}, y.mean()

    mesh = _mesh()
    state = {"w": jax.device_put(matrix(), NamedSharding(mesh, P("d"))), "m": _rows()}
    jitted, states = by.jit(step, donate_argnums=0), [state]
    for _ in range(3):
        states.append(jitted(states[-1], _rows())[0])
    return states[-1], fates(states)


def random_numbers_on_several_devices(by: Compiler) -> Any:
    rows = NamedSharding(_mesh(), P("d"))

    def program(key: jax.Array, xs: jax.Array) -> Any:
        noise = lax.with_sharding_constraint(jax.random.normal(key, (4, N)), rows)
        return jax.vmap(wide)(xs + noise), noise

    return by.jit(program)(jax.random.key(1), _rows())


def arrays_on_another_device(by: Compiler) -> Any:
    other, step = jax.devices()[1], by.jit(lambda x: (wide(x), x))
    with jax.default_device(other):
        results = [step(vector())]
    return results, step(vector()), step(jax.device_put(vector(1), other))


def decompositions_on_several_devices(by: Compiler) -> Any:
    def local(xs: jax.Array) -> Any:
        m = jnp.eye(64) + 0.1 * jnp.outer(xs[0, :64], xs[0, 64:128])
        return jnp.linalg.svd(m)[1][None], lax.psum(jnp.linalg.inv(m) + wide(xs[0])[:64], "d")[None]

    count = len(jax.devices())
    step = by.jit(jax.shard_map(local, mesh=_mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    return step(jnp.tanh(_rows(count)))


CASES = named(
    data_in_parallel, tensors_in_parallel, shardings_that_are_declared, collectives,
    collectives_in_branches_that_nothing_orders, collectives_in_loops, callbacks_on_every_device,
    states_on_several_devices, random_numbers_on_several_devices, arrays_on_another_device,
    decompositions_on_several_devices,
)  # fmt: skip
