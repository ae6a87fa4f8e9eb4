"""Several devices of the host: shardings and collectives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jit_cases import Compiler, N, branches, fates, matrix, same, vector, wide
from xla_programs import plans

__all__ = ["plans"]


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()), ("d",))


def _rows(count: int = 4) -> jax.Array:
    """`[count, N]`, a part of the rows on each device."""
    return jax.device_put(jnp.stack([vector(k) for k in range(count)]), NamedSharding(_mesh(), P("d")))


@same
def test_collectives(by: Compiler) -> Any:
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


@same
def test_collectives_in_branches_that_nothing_orders(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        parts = [lax.psum(jnp.sin(jnp.outer(part, part)), "d").sum(0) for part in branches(xs[0], 8)]
        return sum(parts, jnp.zeros(N))[None]

    step = by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    return [step(_rows(count)) for _ in range(4)]


@same
def test_collectives_in_loops(by: Compiler) -> Any:
    mesh, count = _mesh(), len(jax.devices())

    def local(xs: jax.Array) -> Any:
        def body(x: jax.Array, _: None) -> Any:
            x = jnp.tanh(wide(x) + lax.psum(x, "d"))
            return x, lax.all_gather(x.sum(), "d")

        x, sums = lax.scan(body, xs[0], None, length=3)
        return x[None], sums[None]

    return by.jit(jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(_rows(count))


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
