"""Converts environments to gymnasium's interface."""

import copy
from typing import Any

import jax
import numpy as np

from graphrl.envs.adapters.common import as_dictionaries, bounds, choices, import_library, map_spec
from graphrl.envs.base import Environment
from graphrl.envs.specs import ArraySpec, SpecError, validate


def to_gymnasium(env: Environment[Any, Any, Any], params: Any) -> Any:
    """Converts an environment with one instance to a gymnasium environment: NumPy in, NumPy out, one episode at a time.

    It can be pickled and copied at any time: the copy continues independently from the same state and shares the
    compiled functions. Before the first `reset` and after the end of an episode, `step` raises gymnasium's
    `ResetNeeded`. It raises a `SpecError` for an action that does not fit `action_space`.

    Raises:
      GraphrlError: gymnasium is not installed.
    """
    gymnasium = import_library("gymnasium", "gymnasium")

    def space(spec: Any) -> Any:
        return map_spec(spec, lambda name, one: _space(gymnasium.spaces, one), gymnasium.spaces.Dict)

    compiled_reset, compiled_step = jax.jit(env.reset), jax.jit(env.step)
    action_spec = env.action_spec(params)

    class Gymnasium(gymnasium.Env):  # type: ignore[name-defined]
        metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (gymnasium's name and type)

        def __init__(self) -> None:
            self.observation_space, self.action_space = space(env.observation_spec(params)), space(action_spec)
            self._state: Any = None  # state of the current episode

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            super().reset(seed=seed)
            self._key, first = jax.random.split(jax.random.key(int(self.np_random.integers(2**32))))
            self._state, timestep = compiled_reset(first, params)
            return _host(timestep.observation), _host(timestep.info)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
            if self._state is None:
                raise gymnasium.error.ResetNeeded("no episode has started: call reset first, also after the end of one")
            chosen = _action(action_spec, action)
            self._key, now = jax.random.split(self._key)
            state, timestep = compiled_step(now, self._state, chosen, params)
            ended, cut = bool(timestep.terminated), bool(timestep.truncated)
            self._state = None if ended or cut else state
            return _host(timestep.observation), float(timestep.reward), ended, cut, _host(timestep.info)

        def __reduce__(self) -> Any:
            return to_gymnasium, (env, params), self.__dict__

        def __copy__(self) -> Any:
            copied = type(self)()
            copied.__dict__.update(copy.deepcopy(self.__dict__))
            return copied

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return copy.copy(self)

    return Gymnasium()


def _action(spec: Any, action: Any) -> Any:
    """Converts an action to arrays of the specification's dtypes; rejects fractions as indices.

    Raises:
      SpecError: the action does not fit the specification.
    """

    def cast(one: ArraySpec, x: Any) -> np.ndarray:  # gymnasium's flags are int8
        array = np.asarray(x)
        chosen = array.astype(one.dtype, casting="unsafe" if one.dtype == np.bool_ else "same_kind")
        if array.dtype.kind in "biu" and (chosen != array).any():  # rejects overflow: as int32, 2^32 would become 0
            raise OverflowError
        return chosen

    try:
        chosen = jax.tree.map(cast, spec, action)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f"the action is {str(action)[:60]!r}: must be one of action_space") from None
    validate(spec, chosen, "the action")
    return chosen


def _host(value: Any) -> Any:
    """Converts values to gymnasium's form: dictionaries of NumPy arrays; flags as int8."""
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
