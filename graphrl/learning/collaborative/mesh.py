"""A search on several devices: they share the individuals, the replay, and the transitions of every gradient step.

The program is the same as on one device, and XLA's partitioner cuts it along these arrays: so equal seeds give the same
state on any number of devices, to rounding.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flashbax.buffers.trajectory_buffer import TrajectoryBufferState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.learning import sac
from graphrl.learning.collaborative import search
from graphrl.learning.collaborative.learners import Learners
from graphrl.learning.collaborative.settings import Settings
from graphrl.learning.evolution import Population
from graphrl.learning.rollouts import Domain
from graphrl.mesh import AXIS


def on_mesh(
    settings: Settings, domain: Domain, networks: sac.ActorCritic, mesh: Mesh
) -> tuple[Callable[..., search.State], Callable[..., Any]]:
    """`search.init` (instances, key, policy=None) and `search.generation` (state, key, instances), jitted.

    What the number of devices does not divide is on all of them. States are donated; they may come from a checkpoint.
    """
    copies = NamedSharding(mesh, PartitionSpec())
    places = _places(settings, mesh)
    init = jax.jit(functools.partial(search.init, settings, domain, networks), out_shardings=places)
    spread = functools.partial(_spread, mesh)
    compiled = jax.jit(
        functools.partial(search.generation, settings, domain, networks, spread=spread),
        in_shardings=(places, copies, copies),
        out_shardings=(places, copies, copies),
        donate_argnums=0,
    )

    def generation(state: search.State, key: jax.Array, instances: Any) -> Any:
        return compiled(jax.device_put(state, places), *jax.device_put((key, instances), copies))

    return init, generation


def _places(settings: Settings, mesh: Mesh) -> search.State:
    """Where the parts of a state lie."""
    copies = NamedSharding(mesh, PartitionSpec())

    def cut(count: int, axis: int) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS)) if count % mesh.size == 0 else copies

    networks = cut(settings.networks, 0) if settings.networks else None
    chromosomes: Any = cut(settings.chromosomes, 0) if settings.chromosomes else None
    replay: Any = TrajectoryBufferState(experience=cut(settings.replay, 1), current_index=copies, is_full=copies)
    learners: Any = Learners(copies, copies, replay) if settings.has_learners else None  # type: ignore[arg-type]
    parts: Any = copies
    return search.State(parts, Population(networks, chromosomes), learners, parts, parts, parts)


def _spread(mesh: Mesh, batch: sac.Batch) -> sac.Batch:
    """Along the states, or where all are of one state, along the actions that were tried in it."""
    states, tried = batch.reward.shape
    if (tried if states == 1 else states) % mesh.size:
        return batch
    sharding = NamedSharding(mesh, PartitionSpec(None, AXIS) if states == 1 else PartitionSpec(AXIS))

    def place(part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), part)

    observation = batch.observation if states == 1 else place(batch.observation)
    return sac.Batch(observation, *(place(part) for part in batch[1:]))
