"""Adapter to stoa."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.adapters.common import Kinds, as_dictionaries, needed, tree
from graphrl.envs.base import Environment, TimeStep


class _Keyed(NamedTuple):
    """A state with the key of future steps, under the name that stoa requires."""

    rng_key: jax.Array
    state: Any


def to_stoa(env: Environment[Any, Any, Any], params: Any) -> Any:
    """Converts to a stoa environment: `reset(key, env_params)` and `step(state, action, env_params)`.

    Raises:
      GraphrlError: stoa is not installed.
    """
    base, types = needed("stoa.environment", "stoa-env"), needed("stoa.env_types", "stoa-env")
    spaces = needed("stoa.spaces", "stoa-env")
    kinds = Kinds(spaces.DiscreteSpace, spaces.MultiDiscreteSpace, spaces.ArraySpace, spaces.BoundedArraySpace)

    def answer(timestep: TimeStep[Any], kind: Any) -> Any:
        observation = as_dictionaries(timestep.observation)
        return types.TimeStep(kind, timestep.reward, timestep.discount, observation, timestep.info)

    def space(spec: Any) -> Any:
        return tree(spec, kinds.describe, spaces.DictSpace)

    class Stoa(base.Environment):  # type: ignore[name-defined]
        def reset(self, rng_key: jax.Array, env_params: Any = None) -> tuple[Any, Any]:
            key, first = jax.random.split(rng_key)
            state, timestep = env.reset(first, params if env_params is None else env_params)
            return _Keyed(key, state), answer(timestep, types.StepType.FIRST)

        def step(self, state: Any, action: Any, env_params: Any = None) -> tuple[Any, Any]:
            key, now = jax.random.split(state.rng_key)
            inner, timestep = env.step(now, state.state, action, params if env_params is None else env_params)
            ended = jnp.where(timestep.terminated, types.StepType.TERMINATED, types.StepType.TRUNCATED)
            return _Keyed(key, inner), answer(timestep, jnp.where(timestep.done, ended, types.StepType.MID))

        def observation_space(self, env_params: Any = None) -> Any:
            return space(env.observation_spec(params if env_params is None else env_params))

        def action_space(self, env_params: Any = None) -> Any:
            return space(env.action_spec(params if env_params is None else env_params))

        def state_space(self, env_params: Any = None) -> Any:
            shapes = jax.eval_shape(env.reset, jax.random.key(0), params if env_params is None else env_params)[0]
            numbers = [x for x in jax.tree.leaves(shapes) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
            return spaces.DictSpace({str(i): spaces.ArraySpace(x.shape, x.dtype) for i, x in enumerate(numbers)})

    return Stoa()
