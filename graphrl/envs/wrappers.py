"""Environments around environments, of the same contract."""

import dataclasses
from typing import Any, Generic

import jax
import jax.numpy as jnp

from graphrl.envs.base import Environment, Instance, Observation, State, TimeStep

FINAL = "final_observation"


@dataclasses.dataclass(frozen=True)
class AutoReset(Generic[State, Observation, Instance]):
    """Resets where an episode is over, within the `step` that ends it.

    The step then has the state and the observation of the next episode's reset; reward, flags and info are those of the
    step that ended the last. `info["final_observation"]` is the observation that the step itself led to, whether the
    episode is over or not (after a reset: that of the reset), so that its structure never changes. The instance stays:
    nothing of `params` is selected.

    Both sides of the selection are computed: every step costs a reset more.
    """

    env: Environment[State, Observation, Instance]

    def reset(self, key: jax.Array, params: Instance) -> tuple[State, TimeStep[Observation]]:
        """See `Environment`."""
        state, timestep = self.env.reset(key, params)
        return state, _with_final(timestep, timestep.observation)

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Instance
    ) -> tuple[State, TimeStep[Observation]]:
        """See `Environment`. The key is split: a part steps, the other resets."""
        key_step, key_reset = jax.random.split(key)
        state, timestep = self.env.step(key_step, state, action, params)
        first_state, first = self.env.reset(key_reset, params)
        last = timestep.observation
        state, observation = jax.tree.map(
            lambda new, old: jnp.where(timestep.done, new, old), (first_state, first.observation), (state, last)
        )
        return state, _with_final(dataclasses.replace(timestep, observation=observation), last)

    def observation_spec(self, params: Instance) -> Any:
        """See `Environment`."""
        return self.env.observation_spec(params)

    def action_spec(self, params: Instance) -> Any:
        """See `Environment`."""
        return self.env.action_spec(params)


def _with_final(timestep: TimeStep[Observation], final: Observation) -> TimeStep[Observation]:
    return dataclasses.replace(timestep, info={**timestep.info, FINAL: final})
