"""REGAL's learner: REINFORCE for the contextual bandit `Proposal-v0`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import choose_action, networks, tiny_instance
from graphrl.envs.proposal import ProposalEnv, ProposalInstance, observe
from graphrl.learning import learner as learning
from graphrl.learning import reinforce
from graphrl.learning.learner import Learner, LearnerState


def learner(config: RegalConfig) -> Learner:
    """Creates the learner of a configuration, from the functions below."""
    return Learner(partial(init, config), partial(update, config), partial(evaluate, config), score="improvement")


def init(config: RegalConfig, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training, with the parameters "policy" and "baseline"; see `Learner`."""
    policy_key, baseline_key = jax.random.split(key)
    observation, both = observe(tiny_instance(config)), networks(config)
    params = {
        "policy": both.policy.init(policy_key, observation) if policy is None else policy,
        "baseline": both.baseline.init(baseline_key, observation),
    }
    return LearnerState(params, _optimiser(config).init(params), jnp.int32(0))


def update(
    config: RegalConfig, state: LearnerState, key: jax.Array, batch: ProposalInstance
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """Takes one gradient step with g instances; see `Learner`.

    Returns:
      The new state, and the metrics of `reinforce.loss`, "improvement" (percent by which the sampled actions are better
      than standard BRKGA), "baseline" (mean of the learned one) and "grad_norm".
    """
    sample = jax.vmap(partial(_act, config, state.params["policy"]))
    observation, actions, reward = sample(learning.keys(key, batch.nodes.shape[0]), batch)
    loss = partial(_loss, config)
    gradient, metrics = jax.grad(loss, has_aux=True)(state.params, observation, actions, reward)
    state, metrics["grad_norm"] = learning.descend(_optimiser(config), state, gradient)
    return state, metrics | {"improvement": 100 * (1 + metrics["return"])}


def evaluate(config: RegalConfig, params: Any, key: jax.Array, batch: ProposalInstance) -> dict[str, jax.Array]:
    """Evaluates the policy's proposals, chosen as in a solver, by BRKGA runs; see `Learner`.

    Returns:
      "improvement" over standard BRKGA in percent (the mean, and "improvement_min", "improvement_max"), "not_worse"
      (the share of graphs at least as good), "entropy" in nats per choice.
    """

    def one(key: jax.Array, graph: ProposalInstance) -> tuple[jax.Array, jax.Array]:
        reset_key, action_key, step_key = jax.random.split(key, 3)
        env = _env(config)
        state, first = env.reset(reset_key, graph)
        logits = networks(config).policy.apply(params["policy"], first.observation)
        _, last = env.step(step_key, state, choose_action(config, action_key, logits), graph)
        learned, real = logits[:, config.fixed_genes :], first.observation.mask
        return last.reward, reinforce.entropy(learned, real) / _choices(learned[..., 0], real)

    reward, entropy = jax.vmap(one)(learning.keys(key, batch.nodes.shape[0]), batch)
    not_worse = learning.mean((reward >= -1).astype(jnp.float32))
    relative = learning.mean_min_max("improvement", reward)
    improvement = {name: 100 * (1 + value) for name, value in relative.items()}
    return improvement | {"not_worse": not_worse, "entropy": learning.mean(entropy)}


def _act(config: RegalConfig, params: Any, key: jax.Array, graph: ProposalInstance) -> tuple[Any, jax.Array, jax.Array]:
    """Samples actions for one graph; returns its observation, actions `[a, n, d + 1, ...]` and rewards `[a]`."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    env = _env(config)
    state, first = env.reset(reset_key, graph)
    logits = networks(config).policy.apply(params, first.observation)
    actions = jax.vmap(reinforce.sample, (0, None))(jax.random.split(action_key, config.actions), logits)
    _, last = jax.vmap(env.step, (None, None, 0, None))(step_key, state, actions, graph)
    return first.observation, actions, last.reward


def _loss(
    config: RegalConfig, params: dict[str, Any], observation: Any, actions: jax.Array, reward: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes REINFORCE's loss on this device's graphs: actions `[g, a, n, d + 1, ...]`, rewards `[g, a]`."""
    both, real = networks(config), observation.mask
    logits = jax.vmap(both.policy.apply, (None, 0))(params["policy"], observation)[:, :, config.fixed_genes :]
    actions = actions[:, :, :, config.fixed_genes :]
    value = jax.vmap(both.baseline.apply, (None, 0))(params["baseline"], observation)
    log_prob = jax.vmap(jax.vmap(reinforce.log_prob, (None, 0, None)))(logits, actions, real)
    entropy = jax.vmap(reinforce.entropy)(logits, real)
    choices = jax.vmap(_choices)(logits[..., 0], real)
    batch = reinforce.Batch(log_prob, entropy, choices, value, reward)
    coefficients = config.entropy_coefficient, config.value_coefficient
    weights = reinforce.Weights(config.baseline, *coefficients, config.clip)
    total, metrics = reinforce.loss(batch, weights)
    return total, metrics | {"baseline": learning.mean(value)}


def _choices(learned: jax.Array, real: jax.Array) -> jax.Array:
    """Counts the learned choices of a graph, `[]` float32: elements of `learned` `[n, ...]` for real ops `[n]` bool."""
    return real.sum(dtype=jnp.float32) * float(np.prod(learned.shape[1:]))


def _env(config: RegalConfig) -> ProposalEnv:
    return ProposalEnv(config.problem, config.evaluations, config.parameters, config.coding)


def _optimiser(config: RegalConfig) -> optax.GradientTransformation:
    return learning.optimiser(config.learning_rate, config.max_grad_norm)
