"""Learning on several devices: each has the parameters and a share of a batch's graphs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.learning.learner import Learner
from graphrl.mesh import AXIS, check_shares


def on_mesh(learner: Learner, mesh: Mesh) -> Learner:
    """The same learner, its functions jitted: states are on every device of the mesh, the graphs of a batch are shared.

    Its `update` donates the state. With a batch that the devices cannot share, functions raise ProblemError.
    """
    copies = NamedSharding(mesh, PartitionSpec())
    return learner._replace(
        init=jax.jit(learner.init, out_shardings=copies),
        update=_shared(learner.update, mesh, donate=True),
        evaluate=_shared(learner.evaluate, mesh),
    )


def _shared(function: Callable[..., Any], mesh: Mesh, *, donate: bool = False) -> Callable[..., Any]:
    """A function of (state, key, batch) for one device's graphs, as one for the whole batch."""
    everywhere, by_graph = PartitionSpec(), PartitionSpec(AXIS)
    compiled = jax.jit(
        jax.shard_map(
            function, mesh=mesh, in_specs=(everywhere, everywhere, by_graph), out_specs=everywhere, check_vma=False
        ),
        donate_argnums=0 if donate else (),
    )

    def run(state: Any, key: jax.Array, batch: Any) -> Any:
        check_shares(jax.tree.leaves(batch)[0].shape[0], mesh.size)
        # where its arguments lie is part of what jit compiles for: a state from a checkpoint must lie there too
        return compiled(jax.device_put(state, NamedSharding(mesh, everywhere)), key, batch)

    return run


def keys(key: jax.Array, graphs: int) -> jax.Array:
    """Keys of this device's graphs `[graphs]`: each from the update's key and the graph's place in the whole batch, so
    that the same seeds give the same parameters, to rounding, on any number of devices and processes.
    """
    place = jax.lax.axis_index(AXIS) * graphs + jnp.arange(graphs)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, place)


def mean(values: jax.Array) -> jax.Array:
    """Of all devices' values: `[]`."""
    return jax.lax.pmean(values.mean(), AXIS)


def extent(name: str, values: jax.Array) -> dict[str, jax.Array]:
    """Mean, least and most of all devices' values, `[]` each: "name", "name_least" and "name_most"."""
    least, most = jax.lax.pmin(values.min(), AXIS), jax.lax.pmax(values.max(), AXIS)
    return {name: mean(values), f"{name}_least": least, f"{name}_most": most}
