"""Learning on several devices: each has the parameters and a share of a batch's graphs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.errors import ProblemError

AXIS = "graphs"


class Spread:
    """The devices that share the graphs of a batch, and functions on them.

    Attributes:
      mesh: one axis of devices, "graphs"; by default all devices of all processes.
    """

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = _all_devices() if mesh is None else mesh
        self.copies = NamedSharding(self.mesh, PartitionSpec())

    @property
    def axis(self) -> str:
        """The name to give to `jax.lax.psum` and its like."""
        return self.mesh.axis_names[0]

    def alike(self, make: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
        """The function of a key, jitted: what it makes is on every device."""
        return jax.jit(make, out_shardings=self.copies)

    def jitted(self, local: Callable[[Any, jax.Array, Any], Any], *, donate: bool = False) -> Callable[..., Any]:
        """A function of (state, key, batch), for one device's share of the batch, as one for the whole batch.

        Args:
          local: the state and the key are the same on every device, and so must be what it gives; of the batch
            (leading axis g) it gets the device's own graphs.
          donate: whether the state may be overwritten.

        The function raises:
          ProblemError: the mesh's devices cannot share the batch.
        """
        everywhere, by_graph = PartitionSpec(), PartitionSpec(self.axis)
        shared = jax.shard_map(
            local, mesh=self.mesh, in_specs=(everywhere, everywhere, by_graph), out_specs=everywhere, check_vma=False
        )
        compiled = jax.jit(shared, donate_argnums=0 if donate else ())

        def run(state: Any, key: jax.Array, batch: Any) -> Any:
            self._check(batch)
            # where its arguments lie is part of what jit compiles for: a state from a checkpoint must lie there too
            return compiled(jax.device_put(state, self.copies), key, batch)

        return run

    def keys(self, key: jax.Array, graphs: int) -> jax.Array:
        """Keys of this device's graphs `[graphs]`: each from the update's key and the graph's place in the whole batch,
        so that the same seeds give the same parameters, to rounding, on any number of devices and processes.
        """
        place = jax.lax.axis_index(self.axis) * graphs + jnp.arange(graphs)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, place)

    def mean(self, values: jax.Array) -> jax.Array:
        """Of all devices' values: `[]`."""
        return jax.lax.pmean(values.mean(), self.axis)

    def least(self, values: jax.Array) -> jax.Array:
        """Of all devices' values: `[]`."""
        return jax.lax.pmin(values.min(), self.axis)

    def most(self, values: jax.Array) -> jax.Array:
        """Of all devices' values: `[]`."""
        return jax.lax.pmax(values.max(), self.axis)

    def _check(self, batch: Any) -> None:
        graphs = jax.tree.leaves(batch)[0].shape[0]
        if graphs % self.mesh.size:
            raise ProblemError(f"{graphs} graphs a batch: must be a multiple of the {self.mesh.size} devices")


def _all_devices() -> Mesh:
    # not the default axis type: gathers on an array that is spread over an explicit axis are errors
    return jax.make_mesh((len(jax.devices()),), (AXIS,), (jax.sharding.AxisType.Auto,))
