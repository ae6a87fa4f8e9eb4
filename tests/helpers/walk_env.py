"""A tiny environment, a walk along a line to its end, to test wrappers and adapters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs import specs
from graphrl.envs.base import TimeStep


class View(NamedTuple):
    position: jax.Array  # [] int32
    seen: jax.Array  # [n] float32, 1 up to the position
    action_mask: jax.Array  # [2] bool, actions 0 (back) and 1 (forward)


class State(NamedTuple):
    position: jax.Array  # [] int32
    steps: jax.Array  # [] int32


class Walk:
    """Starts at 0 or 1; ends (terminated) at the last place, or is cut (truncated) after `limit` steps.

    The parameters are the line: `[n]` float32 rewards for entering each place.
    """

    def __init__(self, limit: int = 6) -> None:
        self.limit = limit

    def reset(self, key: jax.Array, instance: jax.Array) -> tuple[State, TimeStep[View]]:
        state = State(jax.random.randint(key, (), 0, 2), jnp.int32(0))
        no = jnp.asarray(False)
        return state, TimeStep(_view(state, instance), jnp.float32(0), no, no, {"steps": state.steps})

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: jax.Array
    ) -> tuple[State, TimeStep[View]]:
        place = jnp.clip(state.position + 2 * action - 1, 0, instance.shape[0] - 1)
        state = State(place, state.steps + 1)
        ended, cut = place == instance.shape[0] - 1, state.steps >= self.limit
        return state, TimeStep(_view(state, instance), instance[place], ended, cut, {"steps": state.steps})

    def observation_spec(self, instance: jax.Array) -> Any:
        n = instance.shape[0]
        return View(specs.integers((), 0, n - 1), specs.floats((n,), 0, 1), specs.booleans((2,)))  # type: ignore[arg-type]

    def action_spec(self, instance: jax.Array) -> specs.ArraySpec:
        return specs.choices((), 2)


def _view(state: State, instance: jax.Array) -> View:
    places = jnp.arange(instance.shape[0], dtype=jnp.int32)
    seen = (places <= state.position).astype(jnp.float32)
    return View(state.position, seen, jnp.stack([state.position > 0, jnp.asarray(True)]))
