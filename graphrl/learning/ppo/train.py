"""Training loop of PPO for instances that stay the same: environments continue from the last roll-out's end."""

import functools
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.envs.base import Environment
from graphrl.learning import learner as spread
from graphrl.learning.learner import LearnerState, Metrics
from graphrl.learning.ppo.rollout import PolicyValue, Runner, begin, rollout
from graphrl.learning.ppo.settings import PpoSettings
from graphrl.learning.ppo.update import improve, init
from graphrl.mesh import AXIS, check_shares, make_mesh, most_that_share


class Training(NamedTuple):
    """All that training changes: with it, it goes on to the same numbers."""

    learner: LearnerState
    runner: Runner


def train(
    settings: PpoSettings,
    env: Environment[Any, Any, Any],
    networks: PolicyValue,
    instances: Any,
    key: jax.Array,
    updates: int,
    *,
    training: Training | None = None,
    mesh: Mesh | None = None,
) -> tuple[Training, Metrics]:
    """Updates, in one compiled program for each number of them.

    Args:
      settings, env, networks: what learns what.
      instances: `[g, ...]` each, of one size: problem instances, as `env.step` takes one.
      key: of everything random. To go on, give another.
      updates: how many.
      training: what to go on with; it is donated. None begins anew.
      mesh: devices that share the instances; None is as many as divide them.

    Returns:
      What training changed, and the metrics of `improve`, `[updates]` each.

    Raises:
      ProblemError: the devices of the mesh do not divide the instances.
    """
    graphs = jax.tree.leaves(instances)[0].shape[0]
    if mesh is None:
        mesh = make_mesh(graphs, jax.devices()[: most_that_share(graphs, jax.device_count())])
    check_shares(graphs, mesh.size)
    by_graph, copies = (NamedSharding(mesh, spec) for spec in (PartitionSpec(AXIS), PartitionSpec()))
    instances = jax.device_put(instances, by_graph)
    begin_key, train_key = jax.random.split(key)
    if training is None:
        training = _begin(settings, env, networks, mesh, jax.device_put(begin_key, copies), instances)
    return _train(settings, env, networks, mesh, updates, training, jax.device_put(train_key, copies), instances)


_PLACES = Training(PartitionSpec(), PartitionSpec(AXIS))  # type: ignore[arg-type]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _begin(
    settings: PpoSettings, env: Any, networks: PolicyValue, mesh: Mesh, key: jax.Array, instances: Any
) -> Training:
    def one(key: jax.Array, instances: Any) -> Training:
        reset_key, init_key = jax.random.split(key)
        runner = begin(env, spread.keys(reset_key, jax.tree.leaves(instances)[0].shape[0]), instances, settings)
        first = jax.tree.map(lambda leaf: leaf[0, 0], runner.observation)
        return Training(init(settings, networks, init_key, first), runner)

    specs = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=_PLACES, check_vma=False)(key, instances)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), donate_argnums=5)
def _train(
    settings: PpoSettings,
    env: Any,
    networks: PolicyValue,
    mesh: Mesh,
    updates: int,
    training: Training,
    key: jax.Array,
    instances: Any,
) -> tuple[Training, Metrics]:
    def all_updates(training: Training, key: jax.Array, instances: Any) -> tuple[Training, Metrics]:
        graphs = jax.tree.leaves(instances)[0].shape[0]

        def one(training: Training, key: jax.Array) -> tuple[Training, Metrics]:
            play_key, learn_key = jax.random.split(key)
            params, keys = training.learner.params, spread.keys(play_key, graphs)
            runner, happened = rollout(env, networks, params, training.runner, keys, instances, settings)
            state, metrics = improve(settings, networks, training.learner, spread.keys(learn_key, graphs), happened)
            return Training(state, runner), metrics

        return jax.lax.scan(one, training, jax.random.split(key, updates))

    specs = _PLACES, PartitionSpec(), PartitionSpec(AXIS)
    run = jax.shard_map(all_updates, mesh=mesh, in_specs=specs, out_specs=(_PLACES, PartitionSpec()), check_vma=False)
    return run(training, key, instances)
