"""An environment and networks as a user writes them, from scratch, and faulty ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.ordering import OrderingEnv
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning import ppo
from graphrl.networks.base import Network, network


class Instance(NamedTuple):
    runtime: Any  # [n] float32, share of each op in the run time of all
    num_ops: Any  # [] int32


class View(NamedTuple):
    runtime: jax.Array  # [] float32, of the next op
    load: jax.Array  # [2] float32


class State(NamedTuple):
    op: jax.Array  # [] int32, the next op
    load: jax.Array  # [2] float32


class Balance:
    """One op after another goes to one of two devices; the reward at the end is minus the larger share of the work."""

    def make_instances(self, graphs: Sequence[ComputationGraph], to: Sizes) -> Instance:
        runtime = np.zeros((len(graphs), to.ops), np.float32)
        for row, graph in zip(runtime, graphs, strict=True):
            row[: len(graph.ops)] = graph.arrays.runtime / graph.arrays.runtime.sum()
        return Instance(runtime, np.array([len(graph.ops) for graph in graphs], np.int32))

    def reset(self, key: jax.Array, instance: Instance) -> tuple[State, TimeStep[View]]:
        state = State(jnp.int32(0), jnp.zeros(2))
        return state, self._observe(state, instance)

    def step(self, key: jax.Array, state: State, action: jax.Array, instance: Instance) -> tuple[State, TimeStep[View]]:
        state = State(state.op + 1, state.load.at[action].add(instance.runtime[state.op]))
        return state, self._observe(state, instance)

    def observation_spec(self, instance: Instance) -> Any:
        return View(specs.floats((), 0, 1), specs.floats((2,), 0, 1.001))  # type: ignore[arg-type]

    def action_spec(self, instance: Instance) -> specs.ArraySpec:
        return specs.choices((), 2)

    def _observe(self, state: State, instance: Instance) -> TimeStep[View]:
        over = state.op >= instance.num_ops
        view = View(instance.runtime[state.op], state.load)
        return TimeStep(view, jnp.where(over, -state.load.max(), 0.0), over, jnp.asarray(False), {})


class Perceptron(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, view: View) -> jax.Array:
        x = nn.tanh(nn.Dense(32)(jnp.append(view.load, view.runtime)))
        x = nn.Dense(self.outputs)(x)
        return x if self.outputs > 1 else x[0]


def networks(env: Any) -> ppo.PolicyValue:
    return ppo.PolicyValue(network(Perceptron(2)), network(Perceptron(1)))


class Bandit(Balance):
    """Ends after the first op; the reward is higher for the second device."""

    def _observe(self, state: State, instance: Instance) -> TimeStep[View]:
        timestep = super()._observe(state, instance)
        return dataclasses.replace(timestep, reward=state.load[1], terminated=state.op > 0)


@dataclasses.dataclass(frozen=True)
class LivePeaks(OrderingEnv):
    """`Ordering-v0` with a reward in every step: minus the growth of the peak."""

    def step(self, key: jax.Array, state: Any, action: jax.Array, instance: Any) -> Any:
        after, timestep = super().step(key, state, action, instance)
        growth = (after.memory.peak - state.memory.peak) / state.unit
        return after, dataclasses.replace(timestep, reward=jnp.where(after.step > state.step, -growth, timestep.reward))


# Faults

NUMBER = 5


def three_options(env: Any) -> ppo.PolicyValue:
    return ppo.PolicyValue(network(Perceptron(3)), network(Perceptron(1)))


def three_fixed(env: Any) -> ppo.PolicyValue:
    fixed: Any = Network(lambda key, view: {}, lambda params, view: jnp.zeros(3))
    return ppo.PolicyValue(fixed, network(Perceptron(1)))


def two_values(env: Any) -> ppo.PolicyValue:
    return ppo.PolicyValue(network(Perceptron(2)), network(Perceptron(2)))


def only_policy(env: Any) -> Any:
    return network(Perceptron(2))


def failing(env: Any) -> ppo.PolicyValue:
    raise RuntimeError("no weights\nin this folder")


class NoInstances:
    reset, step, observation_spec, action_spec = Balance.reset, Balance.step, Balance.observation_spec, NUMBER


class NoLeadingAxis(Balance):
    def make_instances(self, graphs: Sequence[ComputationGraph], to: Sizes) -> Instance:
        return super().make_instances(graphs, to)._replace(num_ops=np.int32(3))


class OtherView(Balance):
    def observation_spec(self, instance: Instance) -> Any:
        return View(specs.floats((), 0, 1), specs.floats((3,), 0, 1))  # type: ignore[arg-type]


class Deep(Balance):
    """Fails two calls deep in `step`."""

    def step(self, key: jax.Array, state: State, action: jax.Array, instance: Instance) -> tuple[State, TimeStep[View]]:
        self._look_up("b")
        return super().step(key, state, action, instance)

    def _look_up(self, name: str) -> int:
        return {"a": 1}[name]


class OtherState(Balance):
    def step(self, key: jax.Array, state: State, action: jax.Array, instance: Instance) -> tuple[State, TimeStep[View]]:
        state, timestep = super().step(key, state, action, instance)
        return state._replace(op=state.op.astype(jnp.float32)), timestep


class FromOne(Balance):
    def action_spec(self, instance: Instance) -> specs.ArraySpec:
        return specs.integers((), 1, 2)


class Continuous(Balance):
    def action_spec(self, instance: Instance) -> specs.ArraySpec:
        return specs.floats((2,))


class Endless(Balance):
    def _observe(self, state: State, instance: Instance) -> TimeStep[View]:
        return dataclasses.replace(super()._observe(state, instance), terminated=jnp.asarray(False))
