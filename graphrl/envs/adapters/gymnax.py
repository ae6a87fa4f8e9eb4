"""Environments as gymnax has them."""

from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.adapters.common import bounds, choices, needed, tree
from graphrl.envs.base import Environment
from graphrl.envs.specs import ArraySpec
from graphrl.errors import GraphrlError


class _Flagged(NamedTuple):
    """A state that says whether the episode was cut: gymnax asks the state."""

    state: Any
    truncated: jax.Array


def to_gymnax(env: Environment[Any, Any, Any], params: Any) -> Any:
    """As a gymnax 1.0 environment: `reset(key, params)` and `step(key, state, action, params)`, which resets itself.

    Raises:
      GraphrlError: gymnax is not installed.
    """
    base = needed("gymnax.environments.environment", "gymnax")
    spaces = needed("gymnax.environments.spaces", "gymnax")

    def space(spec: Any) -> Any:
        return tree(spec, lambda name, one: _space(spaces, one), spaces.Dict)

    class Gymnax(base.Environment):  # type: ignore[name-defined]
        @property
        def default_params(self) -> Any:
            return params

        @property
        def name(self) -> str:
            return type(env).__name__

        @property
        def num_actions(self) -> int:
            return _one(env.action_spec(params)).num_values

        def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
            state, timestep = env.reset(key, params)
            return timestep.observation, _Flagged(state, timestep.truncated)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
            inner, timestep = env.step(key, state.state, action, params)
            flagged = _Flagged(inner, timestep.truncated)
            return timestep.observation, flagged, timestep.reward, timestep.terminated, timestep.info

        def is_truncated(self, state: Any, params: Any) -> jax.Array:
            return state.truncated

        def action_space(self, params: Any = params) -> Any:
            return space(env.action_spec(params))

        def observation_space(self, params: Any = params) -> Any:
            return space(env.observation_spec(params))

    return Gymnax()


def _space(spaces: ModuleType, spec: ArraySpec) -> Any:
    if spec.shape == () and choices(spec) is not None:
        return spaces.Discrete(spec.num_values)
    low, high = bounds(spec)
    # a Box samples numbers from low to below high and cuts their digits off
    end = high + 1 if np.issubdtype(spec.dtype, np.integer) else high
    return spaces.Box(low, end, spec.shape, jnp.dtype(spec.dtype))


def _one(spec: Any) -> ArraySpec:
    """The specification of an action that is one array.

    Raises:
      GraphrlError: it is several.
    """
    if not isinstance(spec, ArraySpec):
        raise GraphrlError(f"an action of {len(jax.tree.leaves(spec))} arrays has no number of actions")
    return spec
