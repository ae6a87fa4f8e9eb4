"""REGAL's learner: graphs in, better proposals out. Pure functions bundled with their configuration."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.agents import reinforce
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import networks
from graphrl.agents.regal.policy import fits, load, smallest
from graphrl.envs.proposal.env import ProposalEnv, observe
from graphrl.envs.proposal.instance import ProposalParams
from graphrl.errors import ProblemError

AXIS = "graphs"
# Adam's: gradients that cancel to rounding errors (below 1e-7; a gradient's elements are some 1e-4) must not become
# steps of full length, which another order of summation, on other devices, would turn round.
EPSILON = 1e-6


class LearnerState(NamedTuple):
    """All that learning changes: a pytree of arrays."""

    params: dict[str, Any]  # "policy" and "baseline"
    optimiser: Any
    step: jax.Array  # [] int32, updates made


class Learner:
    """Contextual-bandit REINFORCE on `Proposal-v0` (`agents/reinforce.py` has the loss).

    The graphs of a batch are spread over the devices of a mesh; every device holds the parameters and sums the
    gradients. A graph's random numbers come from the update's key and the graph's place in the whole batch, so that the
    same seeds give the same parameters, to rounding, on any number of devices and processes.

    Attributes:
      config: what it was made from.
      mesh: one axis of devices, "graphs"; by default all devices of all processes.
      score: the metric of `evaluate` that says how good a policy is.
    """

    score = "improvement"

    def __init__(self, config: RegalConfig, mesh: Mesh | None = None) -> None:
        self.config = config
        self.mesh = _all_devices() if mesh is None else mesh
        self._networks = networks(config)
        self._env = ProposalEnv(config.problem, config.evaluations, config.parameters, config.coding)
        self._optimiser = optax.chain(
            optax.clip_by_global_norm(config.gradient_norm), optax.adam(config.learning_rate, eps=EPSILON)
        )
        self._weights = reinforce.Weights(config.baseline, config.entropy, config.baseline_error, config.clip)
        everywhere, by_graph = PartitionSpec(), PartitionSpec(self.mesh.axis_names[0])
        spread = functools.partial(
            jax.shard_map, mesh=self.mesh, in_specs=(everywhere, everywhere, by_graph), check_vma=False
        )
        self._copies = NamedSharding(self.mesh, everywhere)
        self._first = jax.jit(self._init, out_shardings=self._copies)
        self._update = jax.jit(spread(self._local_update, out_specs=everywhere), donate_argnums=0)
        self._evaluate = jax.jit(spread(self._local_evaluate, out_specs=everywhere))

    def init(self, key: jax.Array) -> LearnerState:
        """Parameters before any update. `key`: `[]` typed key.

        Raises:
          GraphrlError: `config.start` cannot be read.
          ProblemError: it is the policy of another network.
        """
        state, start = self._first(key), self.config.start
        if not start:
            return state
        policy = load(start).params
        if not fits(policy, self.config):
            raise ProblemError(f"agent.start={start} has another network: rounds, width, coding, devices must be equal")
        return state._replace(params=state.params | {"policy": jax.device_put(policy, self._copies)})

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
        self._check(batch)
        # where its arguments lie is part of what jit compiles for: a state from a checkpoint must lie there too
        return self._update(jax.device_put(state, self._copies), key, batch)

    def evaluate(self, params: dict[str, Any], key: jax.Array, batch: ProposalParams) -> dict[str, jax.Array]:
        """How good proposals of the policy are: one sample for each graph, as a solver takes.

        Returns:
          `[]` float32 each: "improvement" over standard BRKGA in percent (the mean, and "improvement_least",
          "improvement_most"), "matched" (the share of graphs at least as good), "entropy" in nats a choice.
        """
        self._check(batch)
        return self._evaluate(jax.device_put(params, self._copies), key, batch)

    def _init(self, key: jax.Array) -> LearnerState:
        policy_key, baseline_key = jax.random.split(key)
        observation = observe(smallest())
        params = {
            "policy": self._networks.policy.init(policy_key, observation),
            "baseline": self._networks.baseline.init(baseline_key, observation),
        }
        return LearnerState(params, self._optimiser.init(params), jnp.int32(0))

    def _local_update(
        self, state: LearnerState, key: jax.Array, batch: ProposalParams
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """`update` on one device of the mesh: its graphs."""
        keys = self._keys(key, batch)
        tried = jax.vmap(functools.partial(self._try, state.params["policy"]))(keys, batch)
        gradient, metrics = jax.grad(self._loss, has_aux=True)(state.params, *tried)
        gradient = jax.lax.psum(gradient, self._axis)
        with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to the power of its integer count
            updates, optimiser = self._optimiser.update(gradient, state.optimiser, state.params)
        metrics["improvement"] = 100 * (1 + metrics["reward"])
        metrics["gradient_norm"] = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
        return LearnerState(optax.apply_updates(state.params, updates), optimiser, state.step + 1), metrics

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
        total, metrics = reinforce.loss(batch, self._weights, self._axis)
        return total, metrics | {"baseline": jax.lax.pmean(value.mean(), self._axis)}

    def _local_evaluate(self, params: dict[str, Any], key: jax.Array, batch: ProposalParams) -> dict[str, jax.Array]:
        """`evaluate` on one device of the mesh."""

        def one(key: jax.Array, graph: ProposalParams) -> tuple[jax.Array, jax.Array]:
            reset_key, action_key, step_key = jax.random.split(key, 3)
            state, first = self._env.reset(reset_key, graph)
            logits = self._networks.policy.apply(params["policy"], first.observation)
            _, last = self._env.step(step_key, state, reinforce.sample(action_key, logits), graph)
            real = first.observation.mask
            choices = real.sum(dtype=jnp.float32) * float(np.prod(logits.shape[1:-1]))
            return last.reward, reinforce.entropy(logits, real) / choices

        reward, entropy = jax.vmap(one)(self._keys(key, batch), batch)
        axis = self._axis
        return {
            "improvement": jax.lax.pmean(100 * (1 + reward.mean()), axis),
            "improvement_least": jax.lax.pmin(100 * (1 + reward.min()), axis),
            "improvement_most": jax.lax.pmax(100 * (1 + reward.max()), axis),
            "matched": jax.lax.pmean((reward >= -1).mean(dtype=jnp.float32), axis),
            "entropy": jax.lax.pmean(entropy.mean(), axis),
        }

    @property
    def _axis(self) -> str:
        return self.mesh.axis_names[0]

    def _keys(self, key: jax.Array, batch: ProposalParams) -> jax.Array:
        """A key for each of this device's graphs, by its place in the whole batch: `[g]`."""
        count = batch.nodes.shape[0]
        place = jax.lax.axis_index(self._axis) * count + jnp.arange(count)
        return jax.vmap(jax.random.fold_in, (None, 0))(key, place)

    def _check(self, batch: ProposalParams) -> None:
        graphs = batch.nodes.shape[0]
        if graphs % self.mesh.size:
            raise ProblemError(f"{graphs} graphs a batch: must be a multiple of the {self.mesh.size} devices")


def _all_devices() -> Mesh:
    # not the default axis type: gathers on an array that is spread over an explicit axis are errors
    return jax.make_mesh((len(jax.devices()),), (AXIS,), (jax.sharding.AxisType.Auto,))
