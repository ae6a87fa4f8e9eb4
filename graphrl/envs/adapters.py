"""Environments as those of other libraries, for one problem instance: gymnax, jumanji, stoa and gymnasium.

The libraries are imported when asked for; none is needed otherwise. What each has its own way of:

| | instance | key of a step | end of an episode | after it |
|---|---|---|---|---|
| gymnax | its `params`, this one by default | an argument | terminated, truncated | resets itself |
| jumanji | fixed | of the state, split | step type LAST, discount 0 or 1 | its wrappers reset |
| stoa | its `env_params`, this one by default | of the state, split | TERMINATED or TRUNCATED | its wrappers reset |
| gymnasium | fixed | of the environment, split | terminated, truncated | the caller resets |

Observations stay what they are for gymnax and jumanji; stoa and gymnasium have spaces of dictionaries, so that named
tuples become those. gymnasium's are NumPy arrays, and its environment compiles reset and step; the others are pure.
"""

import importlib
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.base import Environment, TimeStep
from graphrl.envs.specs import ArraySpec, floats
from graphrl.errors import GraphrlError


class _Keyed(NamedTuple):
    """A state that holds the key of the steps to come: jumanji asks for that name."""

    key: jax.Array
    state: Any


class _RngKeyed(NamedTuple):
    """The same as stoa asks for it."""

    rng_key: jax.Array
    state: Any


class _Flagged(NamedTuple):
    """A state that says whether the episode was cut: gymnax asks the state."""

    state: Any
    truncated: jax.Array


def to_gymnax(env: Environment[Any, Any, Any], params: Any) -> Any:
    """As a gymnax 1.0 environment: `reset(key, params)` and `step(key, state, action, params)`, which resets itself.

    Raises:
      GraphrlError: gymnax is not installed.
    """
    base = _needed("gymnax.environments.environment", "gymnax")
    spaces = _needed("gymnax.environments.spaces", "gymnax")

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
            return _tree(env.action_spec(params), lambda name, spec: _gymnax_space(spaces, spec), spaces.Dict)

        def observation_space(self, params: Any = params) -> Any:
            return _tree(env.observation_spec(params), lambda name, spec: _gymnax_space(spaces, spec), spaces.Dict)

    return Gymnax()


def to_jumanji(env: Environment[Any, Any, Any], params: Any) -> Any:
    """As a jumanji environment: `reset(key)` and `step(state, action)`.

    Raises:
      GraphrlError: jumanji is not installed.
    """
    base, types = _needed("jumanji.env", "jumanji"), _needed("jumanji.types", "jumanji")
    specs = _needed("jumanji.specs", "jumanji")

    def answer(timestep: TimeStep[Any], kind: Any) -> Any:
        return types.TimeStep(
            step_type=kind,
            reward=timestep.reward,
            discount=timestep.discount,
            observation=timestep.observation,
            extras=timestep.info,
        )

    class Jumanji(base.Environment):  # type: ignore[name-defined]
        def reset(self, key: jax.Array) -> tuple[Any, Any]:
            key, first = jax.random.split(key)
            state, timestep = env.reset(first, params)
            return _Keyed(key, state), answer(timestep, types.StepType.FIRST)

        def step(self, state: Any, action: Any) -> tuple[Any, Any]:
            key, now = jax.random.split(state.key)
            inner, timestep = env.step(now, state.state, action, params)
            kind = jnp.where(timestep.done, types.StepType.LAST, types.StepType.MID)
            return _Keyed(key, inner), answer(timestep, kind)

        # made here, not when asked for: jumanji's specifications cannot be made inside of jax.jit
        observation_spec = _jumanji_spec(specs, env.observation_spec(params))
        action_spec = _jumanji_spec(specs, env.action_spec(params))
        reward_spec = _jumanji_spec(specs, floats(()), "reward")
        discount_spec = _jumanji_spec(specs, floats((), 0, 1), "discount")

    return Jumanji()


def to_stoa(env: Environment[Any, Any, Any], params: Any) -> Any:
    """As a stoa environment: `reset(key, env_params)` and `step(state, action, env_params)`.

    Raises:
      GraphrlError: stoa is not installed.
    """
    base, types = _needed("stoa.environment", "stoa-env"), _needed("stoa.env_types", "stoa-env")
    spaces = _needed("stoa.spaces", "stoa-env")

    def answer(timestep: TimeStep[Any], kind: Any) -> Any:
        observation = as_dictionaries(timestep.observation)
        return types.TimeStep(kind, timestep.reward, timestep.discount, observation, timestep.info)

    def space(spec: Any) -> Any:
        return _tree(spec, lambda name, one: _stoa_space(spaces, one, name), spaces.DictSpace)

    class Stoa(base.Environment):  # type: ignore[name-defined]
        def reset(self, rng_key: jax.Array, env_params: Any = None) -> tuple[Any, Any]:
            key, first = jax.random.split(rng_key)
            state, timestep = env.reset(first, params if env_params is None else env_params)
            return _RngKeyed(key, state), answer(timestep, types.StepType.FIRST)

        def step(self, state: Any, action: Any, env_params: Any = None) -> tuple[Any, Any]:
            key, now = jax.random.split(state.rng_key)
            inner, timestep = env.step(now, state.state, action, params if env_params is None else env_params)
            ended = jnp.where(timestep.terminated, types.StepType.TERMINATED, types.StepType.TRUNCATED)
            return _RngKeyed(key, inner), answer(timestep, jnp.where(timestep.done, ended, types.StepType.MID))

        def observation_space(self, env_params: Any = None) -> Any:
            return space(env.observation_spec(params if env_params is None else env_params))

        def action_space(self, env_params: Any = None) -> Any:
            return space(env.action_spec(params if env_params is None else env_params))

        def state_space(self, env_params: Any = None) -> Any:
            shapes = jax.eval_shape(env.reset, jax.random.key(0), params if env_params is None else env_params)[0]
            numbers = [x for x in jax.tree.leaves(shapes) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
            return spaces.DictSpace({str(i): spaces.ArraySpace(x.shape, x.dtype) for i, x in enumerate(numbers)})

    return Stoa()


def to_gymnasium(env: Environment[Any, Any, Any], params: Any) -> Any:
    """As a gymnasium environment: NumPy in, NumPy out, one episode at a time.

    Raises:
      GraphrlError: gymnasium is not installed.
    """
    gymnasium = _needed("gymnasium", "gymnasium")

    def space(spec: Any) -> Any:
        return _tree(spec, lambda name, one: _gymnasium_space(gymnasium.spaces, one), gymnasium.spaces.Dict)

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


def as_dictionaries(value: Any) -> Any:
    """Named tuples as dictionaries, without fields that are None; all else as it is."""
    fields = _fields(value)
    if fields is None:
        return value
    return {name: as_dictionaries(part) for name, part in fields.items() if part is not None}


def _fields(value: Any) -> dict[str, Any] | None:
    """The parts of a named tuple or a dictionary."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    return value if isinstance(value, dict) else None


def _tree(spec: Any, leaf: Any, node: Any, name: str = "") -> Any:
    """`node` of dictionaries of `leaf(name, spec)`."""
    fields = _fields(as_dictionaries(spec))
    if fields is None:
        return leaf(name, spec)
    return node({key: _tree(part, leaf, node, key) for key, part in fields.items()})


def _host(value: Any) -> Any:
    """As gymnasium has it: dictionaries of NumPy arrays; flags as int8."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.int8) if x.dtype == np.bool_ else np.asarray(x), as_dictionaries(value)
    )


def _bounds(spec: ArraySpec) -> tuple[float, float]:
    if spec.dtype == np.bool_:
        return 0, 1
    return (-np.inf if spec.minimum is None else spec.minimum), (np.inf if spec.maximum is None else spec.maximum)


def _choices(spec: ArraySpec) -> np.ndarray | None:
    """How many values each element of indices has, `[*shape]` int32; None for what is no array of indices."""
    if not np.issubdtype(spec.dtype, np.integer) or spec.minimum != 0 or spec.maximum is None:
        return None
    return np.full(spec.shape, spec.num_values, np.int32)


def _gymnax_space(spaces: ModuleType, spec: ArraySpec) -> Any:
    if spec.shape == () and _choices(spec) is not None:
        return spaces.Discrete(spec.num_values)
    low, high = _bounds(spec)
    # a Box samples numbers from low to below high and cuts their digits off
    end = high + 1 if np.issubdtype(spec.dtype, np.integer) else high
    return spaces.Box(low, end, spec.shape, jnp.dtype(spec.dtype))


def _jumanji_spec(specs: ModuleType, spec: Any, name: str = "") -> Any:
    fields = _fields(spec)
    if fields is not None:
        parts = {key: part and _jumanji_spec(specs, part, key) for key, part in fields.items()}
        return specs.Spec(type(spec), name or type(spec).__name__, **parts)
    values = _choices(spec)
    if values is not None:
        return (
            specs.MultiDiscreteArray(values, spec.dtype, name)
            if spec.shape
            else specs.DiscreteArray(spec.num_values, spec.dtype, name)
        )
    if spec.minimum is None and spec.maximum is None and spec.dtype != np.bool_:
        return specs.Array(spec.shape, spec.dtype, name)
    low, high = (bool(x) if spec.dtype == np.bool_ else x for x in _bounds(spec))
    return specs.BoundedArray(spec.shape, spec.dtype, low, high, name)


def _stoa_space(spaces: ModuleType, spec: ArraySpec, name: str) -> Any:
    values = _choices(spec)
    if values is not None:
        return (
            spaces.MultiDiscreteSpace(values, spec.dtype, name)
            if spec.shape
            else spaces.DiscreteSpace(spec.num_values, spec.dtype, name)
        )
    if spec.minimum is None and spec.maximum is None and spec.dtype != np.bool_:
        return spaces.ArraySpace(spec.shape, spec.dtype, name)
    low, high = (bool(x) if spec.dtype == np.bool_ else x for x in _bounds(spec))
    return spaces.BoundedArraySpace(spec.shape, spec.dtype, low, high, name)


def _gymnasium_space(spaces: Any, spec: ArraySpec) -> Any:
    if spec.dtype == np.bool_:
        return spaces.MultiBinary(spec.shape) if spec.shape else spaces.Box(0, 1, (), np.int8)
    values = _choices(spec)
    if values is None:
        low, high = _bounds(spec)
        return spaces.Box(low, high, spec.shape, spec.dtype.type)
    return (
        spaces.MultiDiscrete(values, dtype=spec.dtype.type)
        if spec.shape
        else spaces.Discrete(spec.num_values, dtype=spec.dtype.type)
    )


def _one(spec: Any) -> ArraySpec:
    """The specification of an action that is one array.

    Raises:
      GraphrlError: it is several.
    """
    if not isinstance(spec, ArraySpec):
        raise GraphrlError(f"an action of {len(jax.tree.leaves(spec))} arrays has no number of actions")
    return spec


def _needed(module: str, package: str) -> ModuleType:
    """
    Raises:
      GraphrlError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise GraphrlError(f"no {error.name} here: this adapter needs it (pip install {package})") from None
