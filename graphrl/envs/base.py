"""The contract of environments: two pure functions, `reset` and `step`, of a key, a state and one problem instance.

    env = graphrl.make("Ordering-v0")  # an unknown id lists the known ones
    state, timestep = env.reset(key, params)
    state, timestep = env.step(key, state, action, params)

- `params` is one padded problem instance, a pytree of arrays without a batch axis. It is no part of the state, so that
  nothing large is selected where an episode ends: a state that holds the instance is 2 to 3 times slower (a CPU, one
  segment sum a step, 128 ops and 512 edges to 2,048 and 16,384).
- `key` is a typed key; it decides all that is random. `action` is as `action_spec(params)` says; an observation fits
  `observation_spec(params)` and holds the mask of what may be chosen, as a field `mask` or `action_mask`, which always
  leaves a choice. Specifications are functions of shapes alone.
- A `TimeStep` has observation, reward, terminated, truncated and info. `terminated` says that the episode ended by
  itself and no reward follows, `truncated` that it was cut. `info` has the same keys, shapes and dtypes after a reset
  and after every step.
- An environment never vmaps, jits or resets by itself: `jax.jit`, `jax.vmap`, `jax.lax.scan` and sharding are the
  caller's, and each of `reset` and `step` compiles once. `AutoReset` wraps an environment, with the same contract, and
  resets it; it keeps the observation that an episode ended with in `info["final_observation"]`.
- Padding changes nothing: the same instance, padded to larger sizes, gives the same rewards.
- An id ends in a version, which rises when learning results can change.

`testing.check_env` checks this contract for any environment; `adapters` turns one into a gymnax, jumanji, stoa or
gymnasium environment.
"""

import dataclasses
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp

Observation = TypeVar("Observation")
State = TypeVar("State")
Params = TypeVar("Params")
Instance = TypeVar("Instance", contravariant=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TimeStep(Generic[Observation]):
    """What an environment answers to `reset` and to `step`."""

    observation: Observation
    reward: jax.Array  # [] float32, of the step that led here; 0 after a reset
    terminated: jax.Array  # [] bool, the episode ended by itself: no reward follows
    truncated: jax.Array  # [] bool, the episode was cut: rewards would have followed
    info: dict[str, Any]  # the same keys, shapes and dtypes after a reset and after every step

    @property
    def done(self) -> jax.Array:
        """Whether the episode is over: `[]` bool."""
        return self.terminated | self.truncated

    @property
    def discount(self) -> jax.Array:
        """0 where no reward follows and else 1: `[]` float32. A truncated episode is worth what would have followed."""
        return 1 - self.terminated.astype(jnp.float32)


class Environment(Protocol[State, Observation, Instance]):
    """The contract of every environment: the module says what beside the types it holds."""

    def reset(self, key: jax.Array, params: Instance) -> tuple[State, TimeStep[Observation]]:
        """Starts an episode.

        Args:
          key: `[]` typed key.
          params: one problem instance, without a batch axis.
        """

    def step(
        self, key: jax.Array, state: State, action: jax.Array, params: Instance
    ) -> tuple[State, TimeStep[Observation]]:
        """One step of an episode.

        Args:
          key: `[]` typed key.
          state: of `reset` or of the last `step`.
          action: as `action_spec` says.
          params: the instance that `reset` got.
        """

    def observation_spec(self, params: Instance) -> Any:
        """The observation's structure with a `specs.ArraySpec` for each array; a function of shapes alone."""

    def action_spec(self, params: Instance) -> Any:
        """The same for an action."""


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
