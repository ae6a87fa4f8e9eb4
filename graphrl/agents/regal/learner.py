"""REGAL's learner: REINFORCE for the contextual bandit `Proposal-v0`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance, tiny_instance
from graphrl.agents.regal.network import baseline
from graphrl.agents.regal.proposers import proposer
from graphrl.envs.proposal import ProposalEnv, observe
from graphrl.learning import learner as learning
from graphrl.learning import reinforce
from graphrl.learning.learner import Learner, LearnerState


def learner(config: RegalConfig) -> Learner:
    """Creates the learner of a configuration, from the functions below."""
    functions = partial(init, config), partial(update, config), partial(evaluate, config)
    return Learner(*functions, score="improvement", unit="%")


def init(config: RegalConfig, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training, with the parameters "policy" and "baseline"; see `Learner`."""
    policy_key, baseline_key = jax.random.split(key)
    tiny = tiny_instance(config)
    params = {
        "policy": proposer(config).init(policy_key, tiny) if policy is None else policy,
        "baseline": baseline(config).init(baseline_key, observe(tiny.proposal)),
    }
    return LearnerState(params, _optimiser(config).init(params), jnp.int32(0))


def update(
    config: RegalConfig, state: LearnerState, key: jax.Array, batch: RegalInstance
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """Takes one gradient step with g instances; see `Learner`.

    Returns:
      The new state, and the metrics of `reinforce.loss`, "improvement" (percent by which the sampled actions are better
      than standard BRKGA), "baseline" (mean of the learned one) and "grad_norm".
    """
    sample = jax.vmap(partial(_act, config, state.params["policy"]))
    choices, reward = sample(learning.keys(key, batch.proposal.nodes.shape[0]), batch)
    gradient, metrics = jax.grad(partial(_loss, config), has_aux=True)(state.params, batch, choices, reward)
    state, metrics["grad_norm"] = learning.descend(_optimiser(config), state, gradient)
    return state, metrics | {"improvement": 100 * (1 + metrics["return"])}


def evaluate(config: RegalConfig, params: Any, key: jax.Array, batch: RegalInstance) -> dict[str, jax.Array]:
    """Evaluates the policy's proposals, chosen as in a solver, by BRKGA runs; see `Learner`.

    Returns:
      "improvement" over standard BRKGA in percent (the mean, and "improvement_min", "improvement_max"), "not_worse"
      (the share of graphs at least as good), "entropy" in nats per choice.
    """

    def one(key: jax.Array, graph: RegalInstance) -> tuple[jax.Array, jax.Array]:
        reset_key, action_key, step_key = jax.random.split(key, 3)
        env, policy = _env(config), proposer(config)
        state, _ = env.reset(reset_key, graph.proposal)
        best = policy.best(params["policy"], action_key, graph)
        _, last = env.step(step_key, state, best.action, graph.proposal)
        chosen = policy.log_prob(params["policy"], graph, jax.tree.map(lambda x: x[None], best.choices))
        return last.reward, chosen.entropy / chosen.choices

    reward, entropy = jax.vmap(one)(learning.keys(key, batch.proposal.nodes.shape[0]), batch)
    not_worse = learning.mean((reward >= -1).astype(jnp.float32))
    relative = learning.mean_min_max("improvement", reward)
    improvement = {name: 100 * (1 + value) for name, value in relative.items()}
    return improvement | {"not_worse": not_worse, "entropy": learning.mean(entropy)}


def _act(config: RegalConfig, params: Any, key: jax.Array, graph: RegalInstance) -> tuple[Any, jax.Array]:
    """Samples actions for one graph; returns the choices behind them (leading axis a) and the rewards `[a]`."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    env, policy = _env(config), proposer(config)
    state, _ = env.reset(reset_key, graph.proposal)
    sampled = jax.vmap(policy.sample, (None, 0, None))(params, jax.random.split(action_key, config.actions), graph)
    _, last = jax.vmap(env.step, (None, None, 0, None))(step_key, state, sampled.action, graph.proposal)
    return sampled.choices, last.reward


def _loss(
    config: RegalConfig, params: dict[str, Any], batch: RegalInstance, choices: Any, reward: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes REINFORCE's loss on this device's graphs: choices `[g, a, ...]`, rewards `[g, a]`."""
    value = jax.vmap(baseline(config).apply, (None, 0))(params["baseline"], jax.vmap(observe)(batch.proposal))
    chosen = jax.vmap(proposer(config).log_prob, (None, 0, 0))(params["policy"], batch, choices)
    coefficients = config.entropy_coefficient, config.value_coefficient
    weights = reinforce.Weights(config.baseline, *coefficients, config.clip)
    total, metrics = reinforce.loss(reinforce.Batch(*chosen, value, reward), weights)
    return total, metrics | {"baseline": learning.mean(value)}


def _env(config: RegalConfig) -> ProposalEnv:
    return ProposalEnv(config.problem, config.evaluations, config.parameters, config.coding, config.transfer_keys)


def _optimiser(config: RegalConfig) -> optax.GradientTransformation:
    return learning.optimiser(config.learning_rate, config.max_grad_norm, config.decay_steps)
