"""Converts environments to stoa's interface."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.adapters.common import Kinds, as_dictionaries, import_library, map_spec
from graphrl.envs.base import Environment, TimeStep


class _KeyedState(NamedTuple):
    """A state with the key of future steps, under the name that stoa requires."""

    rng_key: jax.Array
    state: Any


def to_stoa(env: Environment[Any, Any, Any], instance: Any) -> Any:
    """Converts to a stoa environment: `reset(key, env_params)` and `step(state, action, env_params)`.

    Raises:
      GraphrlError: stoa is not installed.
    """
    base, types = import_library("stoa.environment", "stoa-env"), import_library("stoa.env_types", "stoa-env")
    spaces = import_library("stoa.spaces", "stoa-env")
    kinds = Kinds(spaces.DiscreteSpace, spaces.MultiDiscreteSpace, spaces.ArraySpace, spaces.BoundedArraySpace)

    def to_timestep(timestep: TimeStep[Any], kind: Any) -> Any:
        observation = as_dictionaries(timestep.observation)
        return types.TimeStep(kind, timestep.reward, timestep.discount, observation, timestep.info)

    def space(spec: Any) -> Any:
        return map_spec(spec, kinds.describe, spaces.DictSpace)

    class Stoa(base.Environment):  # type: ignore[name-defined]
        def reset(self, rng_key: jax.Array, env_params: Any = None) -> tuple[Any, Any]:
            key, first = jax.random.split(rng_key)
            state, timestep = env.reset(first, instance if env_params is None else env_params)
            return _KeyedState(key, state), to_timestep(timestep, types.StepType.FIRST)

        def step(self, state: Any, action: Any, env_params: Any = None) -> tuple[Any, Any]:
            key, now = jax.random.split(state.rng_key)
            inner, timestep = env.step(now, state.state, action, instance if env_params is None else env_params)
            ended = jnp.where(timestep.terminated, types.StepType.TERMINATED, types.StepType.TRUNCATED)
            return _KeyedState(key, inner), to_timestep(timestep, jnp.where(timestep.done, ended, types.StepType.MID))

        def observation_space(self, env_params: Any = None) -> Any:
            return space(env.observation_spec(instance if env_params is None else env_params))

        def action_space(self, env_params: Any = None) -> Any:
            return space(env.action_spec(instance if env_params is None else env_params))

        def state_space(self, env_params: Any = None) -> Any:
            shapes = jax.eval_shape(env.reset, jax.random.key(0), instance if env_params is None else env_params)[0]
            numbers = [x for x in jax.tree.leaves(shapes) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
            return spaces.DictSpace({str(i): spaces.ArraySpace(x.shape, x.dtype) for i, x in enumerate(numbers)})

    return Stoa()
