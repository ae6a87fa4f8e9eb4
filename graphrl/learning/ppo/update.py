"""PPO's updates, with generalised advantage estimation (Schulman et al. 2016), and its training loop.

`train` is the loop for fixed instances: environments continue from the last roll-out's end. `update` is one step with a
batch of fresh ones, `improve` the gradient steps on a roll-out.

For episodes of one step with the same initial state, all environments of an instance share one call of the networks:
`sample_actions` samples actions, `learn` trains on them. GO's network takes longer than its environment, so such an
update is nearly as fast with many environments as with one. Otherwise it is the same as `update`.

Advantages distinguish terminated from truncated episodes. All functions except `train` receive one device's share of
the instances, see `learning.learner`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.envs.base import Environment
from graphrl.learning import learner
from graphrl.learning.learner import LearnerState, Metrics
from graphrl.learning.ppo.rollout import PolicyValue, Runner, Trajectory, reset_all, rollout
from graphrl.learning.ppo.settings import PpoSettings, choice_count, entropy, log_probs, sample, total
from graphrl.mesh import AXIS, check_shares, make_mesh, most_that_share


class Training(NamedTuple):
    """The complete state of training, from which it continues reproducibly."""

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
    """Runs a number of updates in one program, compiled once per number of updates.

    Supports `jit`, and `vmap` over keys, instances and the numbers in settings, as here over learning rates (values in
    arrays are not checked):

        def trained(rate):
            return ppo.train(dataclasses.replace(settings, learning_rate=rate), env, networks, instances, key, 100)

        training, metrics = jax.vmap(trained)(jnp.array([1e-3, 1e-4]))

    Args:
      settings: settings of PPO; those of type float may be `[]` float32 arrays.
      env, networks: the environment and the networks.
      instances: `[g, ...]` each, of one size: instances, as `env.step` takes one.
      key: key of all random numbers. A continued training needs a new one.
      updates: number of updates.
      training: the state to continue from; None starts from scratch.
      mesh: devices that share the instances; None uses the largest number that divides them, or, under `jit` or `vmap`,
        the caller's device.

    Returns:
      The state of training, and the metrics of `improve`, `[updates]` each.

    Raises:
      ProblemError: the number of devices does not divide the number of instances.
    """
    graphs = jax.tree.leaves(instances)[0].shape[0]
    settings, arrays = _without_arrays(settings)
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arrays, instances, key, training)))
    if mesh is None and not is_traced:
        mesh = make_mesh(graphs, jax.devices()[: most_that_share(graphs, jax.device_count())])
    if mesh is not None:
        check_shares(graphs, mesh.size)
        instances = jax.device_put(instances, NamedSharding(mesh, PartitionSpec(AXIS)))
        key = jax.device_put(key, NamedSharding(mesh, PartitionSpec()))
    begin_key, train_key = jax.random.split(key)
    if training is None:
        training = _begin(settings, env, networks, mesh, begin_key, instances)
    return _train(settings, env, networks, mesh, updates, training, arrays, train_key, instances)


def _without_arrays(settings: PpoSettings) -> tuple[PpoSettings, dict[str, jax.Array]]:
    """Returns hashable settings, with defaults in place of arrays, and the arrays by name."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    arrays = {name: value for name, value in values.items() if isinstance(value, jax.Array)}
    return dataclasses.replace(settings, **{name: getattr(PpoSettings, name) for name in arrays}), arrays


_NO_AXIS, _BY_GRAPH = PartitionSpec(), PartitionSpec(AXIS)
_PLACES = Training(_NO_AXIS, _BY_GRAPH)  # type: ignore[arg-type]


def _by_device(function: Callable[..., Any], mesh: Mesh | None, arguments: Any, results: Any) -> Callable[..., Any]:
    """Runs a function on the shares of every device of the mesh; unchanged without a mesh."""
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=arguments, out_specs=results, check_vma=False)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _begin(
    settings: PpoSettings, env: Any, networks: PolicyValue, mesh: Mesh | None, key: jax.Array, instances: Any
) -> Training:
    def one(key: jax.Array, instances: Any) -> Training:
        reset_key, init_key = jax.random.split(key)
        runner = reset_all(env, learner.keys(reset_key, jax.tree.leaves(instances)[0].shape[0]), instances, settings)
        first = jax.tree.map(lambda leaf: leaf[0, 0], runner.observation)
        return Training(init(settings, networks, init_key, first), runner)

    return _by_device(one, mesh, (_NO_AXIS, _BY_GRAPH), _PLACES)(key, instances)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _train(
    settings: PpoSettings,
    env: Any,
    networks: PolicyValue,
    mesh: Mesh | None,
    updates: int,
    training: Training,
    arrays: dict[str, jax.Array],
    key: jax.Array,
    instances: Any,
) -> tuple[Training, Metrics]:
    def all_updates(training: Training, arrays: Any, key: jax.Array, instances: Any) -> tuple[Training, Metrics]:
        graphs, chosen = jax.tree.leaves(instances)[0].shape[0], dataclasses.replace(settings, **arrays)

        def one(training: Training, key: jax.Array) -> tuple[Training, Metrics]:
            play_key, learn_key = jax.random.split(key)
            params, keys = training.learner.params, learner.keys(play_key, graphs)
            runner, trajectory = rollout(env, networks, params, training.runner, keys, instances, chosen)
            state, metrics = improve(chosen, networks, training.learner, learner.keys(learn_key, graphs), trajectory)
            return Training(state, runner), metrics

        return jax.lax.scan(one, training, jax.random.split(key, updates))

    run = _by_device(all_updates, mesh, (_PLACES, _NO_AXIS, _NO_AXIS, _BY_GRAPH), (_PLACES, _NO_AXIS))
    return run(training, arrays, key, instances)


def init(
    settings: PpoSettings, networks: PolicyValue, key: jax.Array, observation: Any, policy: Any = None
) -> LearnerState:
    """Creates the state before training, with parameters "policy" and "value" for observations of these shapes.

    Args:
      settings, networks: settings of PPO and the networks.
      key: key of new parameters.
      observation: one observation, of any instance.
      policy: initial parameters of the policy; None for new ones.
    """
    policy_key, value_key = jax.random.split(key)
    params = {
        "policy": networks.policy.init(policy_key, observation) if policy is None else policy,
        "value": networks.value.init(value_key, observation),
    }
    return LearnerState(params, optimiser(settings).init(params), jnp.int32(0))


def update(
    settings: PpoSettings,
    env: Environment[Any, Any, Any],
    networks: PolicyValue,
    state: LearnerState,
    key: jax.Array,
    instances: Any,
) -> tuple[LearnerState, Metrics]:
    """Runs a roll-out from new episodes, and the gradient steps on it; see `Learner` and `improve`."""
    begin_key, play_key, learn_key = jax.random.split(key, 3)
    graphs = jax.tree.leaves(instances)[0].shape[0]
    runner = reset_all(env, learner.keys(begin_key, graphs), instances, settings)
    keys = learner.keys(play_key, graphs)
    _, trajectory = rollout(env, networks, state.params, runner, keys, instances, settings)
    return improve(settings, networks, state, learner.keys(learn_key, graphs), trajectory)


def improve(
    settings: PpoSettings, networks: PolicyValue, state: LearnerState, keys: jax.Array, trajectory: Trajectory
) -> tuple[LearnerState, Metrics]:
    """Takes the gradient steps on a roll-out: `settings.epochs` passes over its minibatches.

    Args:
      settings, networks: settings of PPO and the networks.
      state: its `step` counts gradient steps.
      keys: `[g]` typed keys of this device's instances, for shuffling the steps.
      trajectory: the result of `rollout`.

    Returns:
      The state; and means over all devices: "step_reward", "return" of the episodes that ended (0 if no episode ended)
      and "ended", their share of the steps; "explained_variance" of the returns by the values; over the gradient steps
      "entropy" in nats per choice with more than one option, "value_error" (root mean square), "clip_fraction" (of
      ratios), "approx_kl" (estimate of the Kullback-Leibler divergence of an action's distribution from the roll-out's,
      in nats) and "grad_norm" before clipping; and "env_steps", the number of steps.
    """
    advantage = advantages(trajectory, settings.discount, settings.gae_lambda)
    target = advantage + trajectory.value
    explained = learner.explained_variance(trajectory.value, target)
    if settings.normalize_advantage:
        advantage = normalised(advantage)
    actions = trajectory.action, trajectory.log_prob
    steps = _LossInputs(trajectory.observation, trajectory.choices, *actions, advantage, target)
    rows = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:]), steps)

    def terms(params: dict[str, Any], places: jax.Array) -> Metrics:
        chosen = _gather(rows, places)
        actions = jax.tree.map(lambda leaf: leaf[:, :, None], tuple(chosen[2:]))
        single = _LossInputs(chosen.observation, chosen.choices, *actions)
        return jax.vmap(jax.vmap(functools.partial(_terms, settings, networks, params)))(single)

    state, means = _optimise(settings, state, keys, terms)
    return state, _return_metrics(trajectory) | means | {"explained_variance": explained}


class Samples(NamedTuple):
    """Sampled actions and their rewards: a actions for each of g instances."""

    observation: Any  # [g, ...]
    choices: jax.Array  # [g] float32, number of choices with more than one option
    action: Any  # [g, a, ...]
    log_prob: Any  # [g, a, ...], log-probability of each choice under the policy that sampled it
    value: jax.Array  # [g] float32, value of the observation
    reward: jax.Array  # [g, a] float32
    advantage: Any = None  # [g, a, ...] float32 for each choice of an array of choices; None: reward less value


def sample_actions(
    settings: PpoSettings,
    env: Environment[Any, Any, Any],
    networks: PolicyValue,
    params: dict[str, Any],
    keys: jax.Array,
    instances: Any,
) -> Samples:
    """Samples actions, each as the first step of its own episode.

    Args:
      settings: `environments` is the number of actions.
      env: environment of one instance; its initial state must not be random.
      networks, params: policy and value.
      keys: `[g]` typed keys.
      instances: `[g, ...]` each.
    """

    def one(key: jax.Array, instance: Any) -> Samples:
        reset_key, action_key, step_key = jax.random.split(key, 3)
        state, first = env.reset(reset_key, instance)

        def reward_of(action: Any) -> jax.Array:
            return env.step(step_key, state, action, instance)[1].reward

        return sample_rewards(settings, networks, params, action_key, first.observation, reward_of)

    return jax.vmap(one)(keys, instances)


def sample_rewards(
    settings: PpoSettings,
    networks: PolicyValue,
    params: dict[str, Any],
    key: jax.Array,
    observation: Any,
    reward_of: Callable[[Any], jax.Array],
) -> Samples:
    """Samples actions for one instance and evaluates them; results lack the axis g. `reward_of` returns an action's
    reward, `[]` float32.
    """
    logits = networks.policy.apply(params["policy"], observation)
    action = jax.vmap(sample, (0, None))(jax.random.split(key, settings.environments), logits)
    log_prob = jax.vmap(log_probs, (None, 0))(logits, action)
    value = networks.value.apply(params["value"], observation)
    return Samples(observation, choice_count(logits), action, log_prob, value, jax.vmap(reward_of)(action))


def learn(
    settings: PpoSettings, networks: PolicyValue, state: LearnerState, keys: jax.Array, actions: Samples
) -> tuple[LearnerState, Metrics]:
    """Takes the gradient steps on sampled actions, shuffled by `keys` `[g]`. The metrics are those of `improve`,
    without "step_reward" and "ended". Advantages of choices, if there are any, are used as they are.

    Raises:
      ValueError: episodes have more than one step.
    """
    if settings.steps != 1:
        raise ValueError(f"steps is {settings.steps}: must be 1")
    advantage = actions.advantage
    if advantage is None:
        advantage = actions.reward - actions.value[:, None]
        if settings.normalize_advantage:
            advantage = normalised(advantage[None])[0]

    def terms(params: dict[str, Any], places: jax.Array) -> Metrics:
        chosen = _gather((actions.action, actions.log_prob, advantage, actions.reward), places)
        rows = _LossInputs(actions.observation, actions.choices, *chosen)
        return jax.vmap(functools.partial(_terms, settings, networks, params))(rows)

    state, means = _optimise(settings, state, keys, terms)
    value = jnp.broadcast_to(actions.value[:, None], actions.reward.shape)
    return state, means | {
        "return": learner.mean(actions.reward),
        "explained_variance": learner.explained_variance(value, actions.reward),
        "env_steps": learner.count(actions.reward),
    }


def advantages(trajectory: Trajectory, discount: float, gae_lambda: float) -> jax.Array:
    """Computes generalised advantage estimates of the actions: `[t, g, a]` float32.

    A_t = d_t + discount * gae_lambda * A_(t+1), d_t = r_t + discount * V(s_(t+1)) - V(s_t). At the end of an episode
    A_(t+1) is 0. V(s_(t+1)) is 0 if the episode terminated; if it was truncated, it is the value of its last state.
    """
    delta = trajectory.reward + discount * trajectory.next_value - trajectory.value
    decay = discount * gae_lambda * (1 - trajectory.done.astype(jnp.float32))

    def back(later: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        now = step[0] + step[1] * later
        return now, now

    return jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)[1]


def normalised(advantage: jax.Array) -> jax.Array:
    """Standardises `[t, g, a]` to mean 0 and deviation 1 over the steps of each instance."""
    centred = advantage - advantage.mean((0, 2), keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).mean((0, 2), keepdims=True))
    return centred / jnp.maximum(deviation, 1e-6)


class _LossInputs(NamedTuple):
    """Inputs of the loss for one observation and its actions `[a, ...]`; batches have additional leading axes."""

    observation: Any
    choices: jax.Array  # []
    action: Any
    log_prob: Any  # log-probability of each choice under the policy that sampled it
    advantage: jax.Array  # [a], or [a, ...] of each choice
    target: jax.Array  # [a], regression target of the value


def _gather(rows: Any, places: jax.Array) -> Any:
    """Selects from rows `[g, b, ...]`, for each instance, those at its indices `places` `[g, k]`."""
    return jax.vmap(lambda one, place: jax.tree.map(lambda leaf: leaf[place], one))(rows, places)


def _optimise(
    settings: PpoSettings,
    state: LearnerState,
    keys: jax.Array,
    terms: Callable[[dict[str, Any], jax.Array], Metrics],
) -> tuple[LearnerState, Metrics]:
    """Takes the gradient steps of all epochs: `terms` computes `_terms` from parameters and row indices `[g, b]`.

    Gradients are summed over the devices: each loss is one device's part.
    """

    def loss(params: dict[str, Any], places: jax.Array) -> tuple[jax.Array, Metrics]:
        each = terms(params, places)
        bonus = settings.entropy_coefficient * each.pop("action_entropy")
        loss = settings.value_coefficient * each["value_error"] - each.pop("gain") - bonus
        return loss.mean() / learner.device_count(), {name: learner.mean(values) for name, values in each.items()}

    def step(state: LearnerState, places: jax.Array) -> tuple[LearnerState, Metrics]:
        gradient, metrics = jax.grad(loss, has_aux=True)(state.params, places)
        state, metrics["grad_norm"] = learner.descend(optimiser(settings), state, gradient)
        return state, metrics

    state, metrics = jax.lax.scan(step, state, minibatches(settings, keys))
    means = {name: values.mean() for name, values in metrics.items()}
    means["value_error"] = jnp.sqrt(means["value_error"])
    return state, means


def _terms(settings: PpoSettings, networks: PolicyValue, params: dict[str, Any], samples: _LossInputs) -> Metrics:
    """Computes the terms of the loss for one observation: means over its actions, `[]` each."""
    logits = networks.policy.apply(params["policy"], samples.observation)

    def of_action(action: Any, log_prob: Any, advantage: jax.Array) -> Metrics:
        log_ratio = jax.tree.map(jnp.subtract, log_probs(logits, action), log_prob)
        if settings.ratio == "joint":
            log_ratio = total(log_ratio)
        epsilon = settings.clip_epsilon
        return {"gain": clipped_gain(epsilon, log_ratio, advantage), **ratio_metrics(epsilon, log_ratio)}

    of_actions = jax.vmap(of_action)(samples.action, samples.log_prob, samples.advantage)
    error = jnp.square(networks.value.apply(params["value"], samples.observation) - samples.target).mean()
    means = {name: values.mean() for name, values in of_actions.items()}
    whole = entropy(logits)
    each = jax.lax.stop_gradient(whole) / jnp.maximum(samples.choices, 1.0)
    return means | {"value_error": error, "action_entropy": whole, "entropy": each}


def minibatches(settings: PpoSettings, keys: jax.Array) -> jax.Array:
    """Draws the steps of each minibatch: `[epochs * minibatches, g, b]` int32 indices of each instance's steps."""
    count = settings.steps * settings.environments

    def epoch(number: jax.Array) -> jax.Array:
        shuffled = jax.vmap(lambda key: jax.random.permutation(jax.random.fold_in(key, number), count))(keys)
        return jnp.moveaxis(shuffled.reshape(keys.shape[0], settings.minibatches, -1), 1, 0)

    places = jax.vmap(epoch)(jnp.arange(settings.epochs))
    return places.reshape(-1, *places.shape[2:])


def clipped_gain(epsilon: float, log_ratio: Any, advantage: jax.Array) -> jax.Array:
    """Computes PPO's clipped surrogate (Schulman et al. 2017, eq. 7) from logarithms of ratios, summed over ratios."""

    def one(log_ratio: jax.Array) -> jax.Array:
        ratio = jnp.exp(log_ratio)
        return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - epsilon, 1 + epsilon) * advantage)

    return total(jax.tree.map(one, log_ratio))


def ratio_metrics(epsilon: float, log_ratio: Any) -> dict[str, jax.Array]:
    """Computes the share of clipped ratios, and the divergence of the policies, from the logarithms of the ratios."""
    outside = [(jnp.abs(jnp.exp(leaf) - 1) > epsilon).astype(jnp.float32) for leaf in jax.tree.leaves(log_ratio)]
    divergence = total(jax.tree.map(lambda leaf: jnp.expm1(leaf) - leaf, log_ratio))
    ratios = sum(leaf.size for leaf in outside)
    return {"clip_fraction": total(outside) / ratios, "approx_kl": jax.lax.stop_gradient(divergence)}


def _return_metrics(trajectory: Trajectory) -> Metrics:
    done = trajectory.done.astype(jnp.float32)
    ended, returns = learner.mean(done), learner.mean(done * trajectory.episode_return)
    return {
        "step_reward": learner.mean(trajectory.reward),
        "return": returns / jnp.maximum(ended, 1e-9),
        "ended": ended,
        "env_steps": learner.count(trajectory.reward),
    }


def optimiser(settings: PpoSettings) -> optax.GradientTransformation:
    return learner.optimiser(settings.learning_rate, settings.max_grad_norm, settings.decay_steps)
