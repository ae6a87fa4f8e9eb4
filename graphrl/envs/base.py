"""What an environment is: two pure functions, `reset` and `step`, of a key, a state and one problem instance.

An environment never vmaps, jits or resets by itself: `jax.jit`, `jax.vmap`, `jax.lax.scan` and sharding are the
caller's, and `wrappers.AutoReset` is what resets. The instance (`params`) is no part of the state, so that nothing
large is selected where an episode ends (facts/anchors.md 2.3: a state that holds it is 2 to 3 times slower).
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
    """The contract of every environment (DESIGN.md 4)."""

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
