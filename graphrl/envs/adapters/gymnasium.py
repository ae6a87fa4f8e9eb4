"""Environments as gymnasium has them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.adapters.common import as_dictionaries, bounds, choices, needed, tree
from graphrl.envs.base import Environment
from graphrl.envs.specs import ArraySpec


def to_gymnasium(env: Environment[Any, Any, Any], params: Any) -> Any:
    """As a gymnasium environment: NumPy in, NumPy out, one episode at a time.

    Raises:
      GraphrlError: gymnasium is not installed.
    """
    gymnasium = needed("gymnasium", "gymnasium")

    def space(spec: Any) -> Any:
        return tree(spec, lambda name, one: _space(gymnasium.spaces, one), gymnasium.spaces.Dict)

    compiled_reset, compiled_step = jax.jit(env.reset), jax.jit(env.step)
    action_spec = env.action_spec(params)

    class Gymnasium(gymnasium.Env):  # type: ignore[name-defined]
        metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (gymnasium's name and type)
        observation_space = space(env.observation_spec(params))
        action_space = space(action_spec)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            super().reset(seed=seed)
            self._key, first = jax.random.split(jax.random.key(int(self.np_random.integers(2**32))))
            self._state, timestep = compiled_reset(first, params)
            return _host(timestep.observation), _host(timestep.info)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
            self._key, now = jax.random.split(self._key)
            wanted = jax.tree.map(lambda spec, x: jnp.asarray(x, spec.dtype), action_spec, action)
            self._state, timestep = compiled_step(now, self._state, wanted, params)
            flags = bool(timestep.terminated), bool(timestep.truncated)
            return _host(timestep.observation), float(timestep.reward), *flags, _host(timestep.info)

    return Gymnasium()


def _host(value: Any) -> Any:
    """As gymnasium has it: dictionaries of NumPy arrays; flags as int8."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.int8) if x.dtype == np.bool_ else np.asarray(x), as_dictionaries(value)
    )


def _space(spaces: Any, spec: ArraySpec) -> Any:
    if spec.dtype == np.bool_:
        return spaces.MultiBinary(spec.shape) if spec.shape else spaces.Box(0, 1, (), np.int8)
    values = choices(spec)
    if values is None:
        low, high = bounds(spec)
        return spaces.Box(low, high, spec.shape, spec.dtype.type)
    return (
        spaces.MultiDiscrete(values, dtype=spec.dtype.type)
        if spec.shape
        else spaces.Discrete(spec.num_values, dtype=spec.dtype.type)
    )
