"""REGAL's learner: graphs in, better proposals out. Pure functions bundled with their configuration."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import networks
from graphrl.agents.regal.policy import Policy, played, smallest
from graphrl.envs.proposal.env import ProposalEnv, observe
from graphrl.envs.proposal.instance import ProposalParams
from graphrl.learning import descent, reinforce
from graphrl.learning.spread import Spread


class LearnerState(NamedTuple):
    """All that learning changes: a pytree of arrays."""

    params: dict[str, Any]  # "policy" and "baseline"
    optimiser: Any
    step: jax.Array  # [] int32, updates made


class Learner:
    """Contextual-bandit REINFORCE on `Proposal-v0` (`learning/reinforce.py` has the loss).

    The graphs of a batch are spread over the devices of a mesh (`Spread`); every device holds the parameters and sums
    the gradients.

    Attributes:
      config: what it was made from.
      score: the metric of `evaluate` that says how good a policy is.
    """

    score = "improvement"

    def __init__(self, config: RegalConfig, mesh: Mesh | None = None) -> None:
        self.config = config
        self._spread = Spread(mesh)
        self._networks = networks(config)
        self._env = ProposalEnv(config.problem, config.evaluations, config.parameters, config.coding)
        self._optimiser = descent.optimiser(config.learning_rate, config.gradient_norm)
        self._weights = reinforce.Weights(config.baseline, config.entropy, config.baseline_error, config.clip)
        self._first = self._spread.alike(self._init)
        self._update = self._spread.jitted(self._local_update, donate=True)
        self._evaluate = self._spread.jitted(self._local_evaluate)

    def init(self, key: jax.Array) -> LearnerState:
        """Parameters before any update. `key`: `[]` typed key.

        Raises:
          GraphrlError: `config.start` cannot be read.
          ProblemError: it is the policy of another network.
        """
        state: LearnerState = self._first(key)
        if not self.config.start:
            return state
        alike = "encoder, hint, rounds, width, coding, devices"
        policy = descent.start_params(Policy, self.config, self._spread, alike)
        return state._replace(params=state.params | {"policy": policy})

    def template(self) -> LearnerState:
        """See `training.learner.Learner`."""
        found: LearnerState = jax.eval_shape(self._init, jax.random.key(0))
        return found

    def update(
        self, state: LearnerState, key: jax.Array, batch: ProposalParams
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One step of gradient descent.

        Args:
          state: of `init` or of this function; it is donated.
          key: `[]` typed key, another for each update.
          batch: of g instances (leading axis g), g a multiple of the mesh's devices.

        Returns:
          The new state, and `[]` float32 each: what `reinforce.loss` says of its batch, "improvement" (percent by which
          the sampled actions are better than standard BRKGA), "baseline" (mean of the learned one) and "gradient_norm".

        Raises:
          ProblemError: the mesh's devices cannot share the batch.
        """
        found: tuple[LearnerState, dict[str, jax.Array]] = self._update(state, key, batch)
        return found

    def validated(self, state: LearnerState, values: Mapping[str, float]) -> LearnerState:
        """See `training.learner.Learner`: nothing changes."""
        return state

    def evaluate(self, params: dict[str, Any], key: jax.Array, batch: ProposalParams) -> dict[str, jax.Array]:
        """How good proposals of the policy are, as a solver takes them.

        Returns:
          `[]` float32 each: "improvement" over standard BRKGA in percent (the mean, and "improvement_least",
          "improvement_most"), "matched" (the share of graphs at least as good), "entropy" in nats a choice.
        """
        found: dict[str, jax.Array] = self._evaluate(params, key, batch)
        return found

    def _init(self, key: jax.Array) -> LearnerState:
        policy_key, baseline_key = jax.random.split(key)
        observation = observe(smallest(self.config))
        params = {
            "policy": self._networks.policy.init(policy_key, observation),
            "baseline": self._networks.baseline.init(baseline_key, observation),
        }
        return LearnerState(params, self._optimiser.init(params), jnp.int32(0))

    def _local_update(
        self, state: LearnerState, key: jax.Array, batch: ProposalParams
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """`update` on one device of the mesh: its graphs."""
        keys = self._spread.keys(key, batch.nodes.shape[0])
        tried = jax.vmap(functools.partial(self._try, state.params["policy"]))(keys, batch)
        gradient, metrics = jax.grad(self._loss, has_aux=True)(state.params, *tried)
        params, optimiser, metrics["gradient_norm"] = descent.descend(
            self._optimiser, gradient, state.optimiser, state.params, self._spread.axis
        )
        metrics["improvement"] = 100 * (1 + metrics["reward"])
        return LearnerState(params, optimiser, state.step + 1), metrics

    def _try(self, params: Any, key: jax.Array, graph: ProposalParams) -> tuple[Any, jax.Array, jax.Array]:
        """Samples actions for one graph: its observation, actions `[a, n, d + 1, ...]` and rewards `[a]`."""
        reset_key, action_key, step_key = jax.random.split(key, 3)
        state, first = self._env.reset(reset_key, graph)
        logits = self._networks.policy.apply(params, first.observation)
        actions = jax.vmap(reinforce.sample, (0, None))(jax.random.split(action_key, self.config.actions), logits)
        _, last = jax.vmap(self._env.step, (None, None, 0, None))(step_key, state, actions, graph)
        return first.observation, actions, last.reward

    def _loss(
        self, params: dict[str, Any], observation: Any, actions: jax.Array, reward: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        logits = jax.vmap(self._networks.policy.apply, (None, 0))(params["policy"], observation)
        value = jax.vmap(self._networks.baseline.apply, (None, 0))(params["baseline"], observation)
        real = observation.mask
        choices = real.sum(1, dtype=jnp.float32) * float(np.prod(actions.shape[3:]))
        log_prob = jax.vmap(jax.vmap(reinforce.log_prob, (None, 0, None)))(logits, actions, real)
        entropy = jax.vmap(reinforce.entropy)(logits, real)
        batch = reinforce.Batch(log_prob, entropy, choices, value, reward)
        total, metrics = reinforce.loss(batch, self._weights, self._spread.axis)
        return total, metrics | {"baseline": self._spread.mean(value)}

    def _local_evaluate(self, params: dict[str, Any], key: jax.Array, batch: ProposalParams) -> dict[str, jax.Array]:
        """`evaluate` on one device of the mesh."""

        def one(key: jax.Array, graph: ProposalParams) -> tuple[jax.Array, jax.Array]:
            reset_key, action_key, step_key = jax.random.split(key, 3)
            state, first = self._env.reset(reset_key, graph)
            logits = self._networks.policy.apply(params["policy"], first.observation)
            _, last = self._env.step(step_key, state, played(self.config, action_key, logits), graph)
            real = first.observation.mask
            choices = real.sum(dtype=jnp.float32) * float(np.prod(logits.shape[1:-1]))
            return last.reward, reinforce.entropy(logits, real) / choices

        reward, entropy = jax.vmap(one)(self._spread.keys(key, batch.nodes.shape[0]), batch)
        spread = self._spread
        return {
            "improvement": 100 * (1 + spread.mean(reward)),
            "improvement_least": 100 * (1 + spread.least(reward)),
            "improvement_most": 100 * (1 + spread.most(reward)),
            "matched": spread.mean((reward >= -1).astype(jnp.float32)),
            "entropy": spread.mean(entropy),
        }
