"""The interface of environments: two pure functions, `reset` and `step`, of a key, a state and an instance.

    env = graphrl.make("Ordering-v0")  # an unknown id lists the known ones
    state, timestep = env.reset(key, instance)
    state, timestep = env.step(key, state, action, instance)

- `instance` is one padded instance of the problem, a pytree of arrays without a batch axis. It is not part of the
  state, so that automatic resets select no large arrays: with the instance in the state, steps are 2 to 3 times slower
  (a CPU, one segment sum per step, 128 ops and 512 edges to 2,048 and 16,384).
- `key` is a typed key, the only source of randomness. `action` fits `action_spec(instance)`. An observation fits
  `observation_spec(instance)`. Its field `action_mask`, if it has one, has the structure of the action and `[..., o]`
  bool for each array `[...]` of choices: the legal ones of o options. It always leaves a choice. Specifications are
  functions of shapes alone.
- A `TimeStep` has observation, reward, terminated, truncated and info. `terminated` means that the episode ended and no
  reward follows, `truncated` that it was cut off. `info` has the same keys, shapes and dtypes after a reset and after
  every step.
- An environment never vmaps, jits or resets itself: `jax.jit`, `jax.vmap`, `jax.lax.scan` and sharding are up to the
  caller, and each of `reset` and `step` compiles once. `AutoReset` wraps an environment, with the same interface, and
  resets it; it stores the last observation of an episode in `info["final_observation"]`.
- Padding has no effect: the same instance, padded to larger sizes, gives the same rewards.
- An id ends in a version, which increases when learning results can change.

`sample_action` draws a random legal action. The environments make their instances and plans themselves, see
`graph_environment`. `testing.check_env` checks any environment against this interface; `adapters`
converts an environment to gymnax, jumanji, stoa or gymnasium.
"""

import dataclasses
from typing import Any, Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp

from graphrl.envs import specs

Observation = TypeVar("Observation")
State = TypeVar("State")
Instance = TypeVar("Instance", contravariant=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TimeStep(Generic[Observation]):
    """Result of an environment's `reset` or `step`."""

    observation: Observation
    reward: jax.Array  # [] float32, reward of the last step; 0 after a reset
    terminated: jax.Array  # [] bool, the episode ended: no reward follows
    truncated: jax.Array  # [] bool, the episode was cut off: rewards would have followed
    info: dict[str, Any]  # the same keys, shapes and dtypes after a reset and after every step

    @property
    def done(self) -> jax.Array:
        """True if the episode is over: `[]` bool."""
        return self.terminated | self.truncated

    @property
    def discount(self) -> jax.Array:
        """Factor of the next state's value: 0 if the episode terminated, else 1, even if truncated: `[]` float32."""
        return 1 - self.terminated.astype(jnp.float32)


class Environment(Protocol[State, Observation, Instance]):
    """Interface of every environment; the module's docstring specifies its behaviour."""

    def reset(self, key: jax.Array, instance: Instance) -> tuple[State, TimeStep[Observation]]:
        """Starts an episode.

        Args:
          key: `[]` typed key.
          instance: one instance, without a batch axis.
        """

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: Instance
    ) -> tuple[State, TimeStep[Observation]]:
        """Runs one step of an episode.

        Args:
          key: `[]` typed key.
          state: state from `reset` or the last `step`.
          action: an action that fits `action_spec`.
          instance: the instance that `reset` received.
        """

    def observation_spec(self, instance: Instance) -> Any:
        """Returns the observation's structure with a `specs.ArraySpec` for each array; depends on shapes only."""

    def action_spec(self, instance: Instance) -> Any:
        """Returns the action's structure with a `specs.ArraySpec` for each array; depends on shapes only."""


def sample_action(key: jax.Array, env: Environment[Any, Any, Any], timestep: TimeStep[Any], instance: Any) -> Any:
    """Draws a random action: uniform among those that the observation's `action_mask` allows, or, if it has none,
    anything that fits `action_spec`. Environments on graphs also have it as a method, for `jax.vmap`:
    `env.sample_action(key, observation)`.
    """
    mask = getattr(timestep.observation, "action_mask", None)
    return specs.sample(env.action_spec(instance), key) if mask is None else specs.sample_masked(mask, key)


def validate_timestep(env: Environment[Any, Any, Any], timestep: TimeStep[Any], instance: Any) -> None:
    """Checks a timestep against the specifications; inside `jax.jit`, its structure, shapes and dtypes.

    Raises:
      SpecError: a part does not fit; the message names the first one.
    """
    specs.validate(env.observation_spec(instance), timestep.observation, "observation")
    specs.validate(specs.floats(()), timestep.reward, "reward")
    for name in ("terminated", "truncated"):
        specs.validate(specs.booleans(()), getattr(timestep, name), name)
    mask = getattr(timestep.observation, "action_mask", None)
    if mask is not None:
        options = jax.tree.map(lambda one: specs.booleans((*one.shape, one.num_values)), env.action_spec(instance))
        specs.validate(options, mask, "action_mask")


FINAL = "final_observation"


@dataclasses.dataclass(frozen=True)
class AutoReset(Generic[State, Observation, Instance]):
    """Wraps an environment so that the `step` that ends an episode also resets it.

    The step then returns the state and the observation of the next episode's reset; reward, flags and info are those of
    the last step of the old episode. `info["final_observation"]` is the observation before any reset, also within an
    episode (after `reset`: that of the reset), so that its structure never changes. The instance stays the same: no
    array of the instance is selected. The last state of an episode is not kept: for plans of it, as `env.plan` makes
    them, step the environment itself.

    Both sides of the selection are computed: every step also costs a reset.
    """

    env: Environment[State, Observation, Instance]

    def reset(self, key: jax.Array, instance: Instance) -> tuple[State, TimeStep[Observation]]:
        """See `Environment`."""
        state, timestep = self.env.reset(key, instance)
        return state, _with_final(timestep, timestep.observation)

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: Instance
    ) -> tuple[State, TimeStep[Observation]]:
        """See `Environment`. The key is split for the step and the reset."""
        key_step, key_reset = jax.random.split(key)
        state, timestep = self.env.step(key_step, state, action, instance)
        first_state, first = self.env.reset(key_reset, instance)
        last = timestep.observation
        state, observation = jax.tree.map(
            lambda new, old: old if new is old else jnp.where(timestep.done, new, old),  # the same: the instance's
            (first_state, first.observation),
            (state, last),
        )
        return state, _with_final(dataclasses.replace(timestep, observation=observation), last)

    def observation_spec(self, instance: Instance) -> Any:
        """See `Environment`."""
        return self.env.observation_spec(instance)

    def action_spec(self, instance: Instance) -> Any:
        """See `Environment`."""
        return self.env.action_spec(instance)

    def __getattr__(self, name: str) -> Any:
        """Looks up all else in the environment: `instance`, `sample_action`, its options."""
        if name == "env" or name.startswith("__"):  # while it is copied or unpickled, it has no environment yet
            raise AttributeError(name)
        return getattr(self.env, name)


def _with_final(timestep: TimeStep[Observation], final: Observation) -> TimeStep[Observation]:
    return dataclasses.replace(timestep, info={**timestep.info, FINAL: final})
