"""Topoformer's learner: graphs in, better priorities out. Pure functions bundled with their configuration."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from graphrl.agents.topoformer.config import PROBLEM, TopoformerConfig
from graphrl.agents.topoformer.network import orders
from graphrl.agents.topoformer.policy import Policy
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.device.problem import DeviceProblem
from graphrl.decoding.orders import on_one_device
from graphrl.envs.ordering.instance import OrderingParams
from graphrl.graphs.padding import PaddedGraph
from graphrl.learning import descent, reinforce
from graphrl.learning.spread import Spread

RANDOM = 100  # orders by random priorities, whose best is what a policy is measured by: the paper's "random order"

LOWEST = -1e9  # of a score that is not known yet


class LearnerState(NamedTuple):
    """All that learning changes: a pytree of arrays."""

    params: dict[str, Any]  # "policy"
    optimiser: Any
    step: jax.Array  # [] int32, updates made
    baseline: Any  # the policy whose greedy orders are the baseline; None for "leave-one-out"
    score: jax.Array  # [] float32, of that policy on the held-out graphs


class Learner:
    """REINFORCE (eq. 9) on orders of `Ordering-v0`, from one call of the network a graph and update.

    Deviations from the paper: several orders are drawn of each graph, and they may be one another's baseline; the
    reward is the peak relative to the baseline's, so that graphs of all sizes and units weigh the same, and advantages
    are divided by their root mean square and clipped (`reinforce.policy_term`).

    The graphs of a batch are spread over the devices of a mesh (`Spread`); every device holds the parameters and sums
    the gradients.

    Attributes:
      config: what it was made from.
      score: the metric of `evaluate` that says how good a policy is.
    """

    score = "greedy"

    def __init__(self, config: TopoformerConfig, mesh: Mesh | None = None) -> None:
        self.config = config
        self._spread = Spread(mesh)
        self._optimiser = descent.optimiser(_learning_rate(config), config.gradient_norm)
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
        if self.config.start:
            policy = descent.start_params(Policy, self.config, self._spread, "encoder and sizes")
            state = state._replace(params={"policy": policy})
        return self._with_baseline(state, LOWEST)

    def template(self) -> LearnerState:
        """See `training.learner.Learner`."""
        found: LearnerState = jax.eval_shape(self._init, jax.random.key(0))
        return found

    def update(
        self, state: LearnerState, key: jax.Array, batch: OrderingParams
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One step of gradient descent.

        Args:
          state: of `init` or of this function; it is donated.
          key: `[]` typed key, another for each update.
          batch: of g instances (leading axis g), g a multiple of the mesh's devices.

        Returns:
          The new state, and `[]` float32 each: what `reinforce.policy_term` says of its batch, "peak" (mean over the
          sampled orders, as a part of all bytes that their graph's ops write) and "gradient_norm".

        Raises:
          ProblemError: the mesh's devices cannot share the batch.
        """
        found: tuple[LearnerState, dict[str, jax.Array]] = self._update(state, key, batch)
        return found

    def evaluate(self, params: dict[str, Any], key: jax.Array, batch: OrderingParams) -> dict[str, jax.Array]:
        """How good orders of the policy are: by how many percent their peaks are below the best of 100 orders of random
        priorities (drawn from the key, so that equal keys measure alike).

        Returns:
          `[]` float32 each: "greedy" (mean of the greedy orders; "greedy_least", "greedy_most") and "sampled" (of the
          best of `config.samples` orders).
        """
        found: dict[str, jax.Array] = self._evaluate(params, key, batch)
        return found

    def validated(self, state: LearnerState, values: Mapping[str, float]) -> LearnerState:
        """See `training.learner.Learner`: the baseline's policy becomes this one where this one is better (C.4)."""
        if state.baseline is None or values[self.score] <= float(state.score):
            return state
        return self._with_baseline(state, values[self.score])

    def _with_baseline(self, state: LearnerState, score: float) -> LearnerState:
        """The state whose baseline is its own policy, a copy: `update` gives the policy's memory to its successor."""
        if self.config.baseline == "leave-one-out":
            return state
        baseline = jax.tree.map(jnp.copy, state.params["policy"])
        return state._replace(baseline=baseline, score=jnp.full_like(state.score, score))

    def _init(self, key: jax.Array) -> LearnerState:
        params = {"policy": Policy.initial(self.config, key)}
        none = None if self.config.baseline == "leave-one-out" else jax.tree.map(jnp.zeros_like, params["policy"])
        return LearnerState(params, self._optimiser.init(params), jnp.int32(0), none, jnp.float32(LOWEST))

    def _local_update(
        self, state: LearnerState, key: jax.Array, batch: OrderingParams
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """`update` on one device of the mesh: its graphs."""
        keys = self._spread.keys(key, batch.nodes.shape[0])
        gradient, metrics = jax.grad(self._loss, has_aux=True)(state.params, state.baseline, keys, batch)
        params, optimiser, metrics["gradient_norm"] = descent.descend(
            self._optimiser, gradient, state.optimiser, state.params, self._spread.axis
        )
        return state._replace(params=params, optimiser=optimiser, step=state.step + 1), metrics

    def _loss(
        self, params: dict[str, Any], baseline: Any, keys: jax.Array, batch: OrderingParams
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """REINFORCE's loss of this device's graphs, whose orders are drawn here."""
        graph = batch.graph
        policy = orders(self.config, params["policy"], batch)
        drawn = policy.sample(keys, self.config.samples)
        if baseline is None:
            expected = reinforce.others_mean(drawn.peak)
            usual = drawn.peak.mean(1, keepdims=True)
        else:
            usual = orders(self.config, baseline, batch).greedy().peak[:, None]
            expected = jnp.broadcast_to(usual, drawn.peak.shape)
        usual = jnp.maximum(usual, 1e-30)  # a graph may need no memory
        term, metrics = reinforce.policy_term(
            policy.log_prob(drawn.order),
            -drawn.peak / usual,
            -expected / usual,
            graph.num_ops.astype(jnp.float32),
            self.config.clip,
            self._spread.axis,
        )
        written = jnp.maximum(graph.owned_bytes.sum(1, keepdims=True), 1e-30)
        del metrics["reward"]  # -1, by what it is relative to
        return term, metrics | {"peak": self._spread.mean(drawn.peak / written)}

    def _local_evaluate(self, params: dict[str, Any], key: jax.Array, batch: OrderingParams) -> dict[str, jax.Array]:
        """`evaluate` on one device of the mesh."""
        graph, spread = batch.graph, self._spread
        keys = jax.vmap(jax.random.split)(spread.keys(key, batch.nodes.shape[0]))
        policy = orders(self.config, params["policy"], batch)
        usual = jnp.maximum(_random_peaks(graph, keys[:, 0], RANDOM).min(1), 1e-30)
        first = 100 * (1 - policy.greedy().peak / usual)
        sampled = 100 * (1 - policy.sample(keys[:, 1], self.config.samples).peak.min(1) / usual)
        return {
            "greedy": spread.mean(first),
            "greedy_least": spread.least(first),
            "greedy_most": spread.most(first),
            "sampled": spread.mean(sampled),
        }


def _learning_rate(config: TopoformerConfig) -> optax.Schedule:
    """Of an update by its number: C.1's decay, after a rise."""
    falling = optax.exponential_decay(config.learning_rate, config.epoch, config.decay)
    if not config.warmup:
        return falling
    rising = optax.linear_schedule(0.0, config.learning_rate, config.warmup)
    return optax.join_schedules([rising, falling], [config.warmup])


def _random_peaks(graph: PaddedGraph, keys: jax.Array, count: int) -> jax.Array:
    """Peaks `[g, count]` float32 of orders by independent uniform priorities, each graph's from its key."""
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (graph.sizes.ops, count)))(keys)
    decisions = on_one_device(graph, jnp.moveaxis(drawn, 0, 1))
    return evaluate(graph, decisions, DeviceProblem.of(PROBLEM), makespan=False).peak_memory[0]
