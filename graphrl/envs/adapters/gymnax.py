"""Adapters to gymnax, and from gymnax, so that graphrl's learners can run on gymnax's environments."""

import contextlib
import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.adapters.common import Flattened, bounds, choices, import_library
from graphrl.envs.base import Environment, TimeStep
from graphrl.envs.specs import ArraySpec
from graphrl.errors import GraphrlError


class _TruncationState(NamedTuple):
    """A state with a truncation flag, which gymnax reads from the state."""

    state: Any
    truncated: jax.Array


def to_gymnax(env: Environment[Any, Any, Any], params: Any, *, flat: bool = False) -> Any:
    """Converts to a gymnax 1.0 environment: `reset(key, params)`, and `step(key, state, action, params)`, which resets
    automatically. The instance `params` is its default.

    Observations stay named tuples, so that their space is a `Tuple` whose `spaces` have the same names. gymnax's
    wrappers for gymnasium can run it, and its values are in the declared spaces. gymnasium's `check_env` rejects those
    wrappers for any environment, because they seed no generator of gymnasium's and return flags of JAX; `to_gymnasium`
    passes. With `flat`, observations are one vector and actions one index or a vector of them (`common.Flattened`), as
    gymnax's `FlattenObservationWrapper` and most of its users' networks need it.

    Raises:
      GraphrlError: gymnax is not installed.
    """
    base = import_library("gymnax.environments.environment", "gymnax")
    spaces = _Spaces(import_library("gymnax.environments.spaces", "gymnax"))
    name_of_env, env = type(env).__name__, Flattened(env) if flat else env

    class Gymnax(base.Environment):  # type: ignore[name-defined]
        @property
        def default_params(self) -> Any:
            return params

        @property
        def name(self) -> str:
            return name_of_env

        @property
        def num_actions(self) -> int:
            return _number_of_actions(env.action_spec(params))

        def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
            state, timestep = env.reset(key, params)
            return timestep.observation, _TruncationState(state, timestep.truncated)

        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple[Any, ...]:
            chosen = jax.tree.map(lambda spec, x: jnp.asarray(x, spec.dtype), env.action_spec(params), action)
            inner, timestep = env.step(key, state.state, chosen, params)
            flagged = _TruncationState(inner, timestep.truncated)
            return timestep.observation, flagged, timestep.reward, timestep.terminated, timestep.info

        def is_truncated(self, state: Any, params: Any) -> jax.Array:
            return state.truncated

        def action_space(self, params: Any = params) -> Any:
            spec = env.action_spec(params)
            is_choice = isinstance(spec, ArraySpec) and spec.shape == () and choices(spec) is not None
            return spaces.module.Discrete(spec.num_values) if is_choice else spaces.of(spec)

        def observation_space(self, params: Any = params) -> Any:
            return spaces.of(env.observation_spec(params))

    return Gymnax()


class _Spaces:
    """Converts specifications to gymnax's spaces."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

        class Whole(module.Box):  # type: ignore[name-defined]
            """Space of integers or flags. It replaces gymnax's box, which never samples its upper bound."""

            def sample(self, key: jax.Array) -> jax.Array:
                return jax.random.randint(key, self.shape, self.low, self.high + 1, jnp.int32).astype(self.dtype)

        class Nothing(module.Box):  # type: ignore[name-defined]
            """Space whose only value is None; described to gymnasium as a flag."""

            def sample(self, key: jax.Array) -> None:
                return None

            def contains(self, x: Any) -> jax.Array:
                return jnp.asarray(x is None)

        class Named(module.Tuple):  # type: ignore[name-defined]
            """Space of named tuples; its `spaces` are a named tuple too."""

            def sample(self, key: jax.Array) -> Any:
                return type(self.spaces)(*super().sample(key))

        self._whole, self._nothing, self._named = Whole, Nothing(0, 1, (), np.bool_), Named

    def of(self, spec: Any) -> Any:
        """Returns the gymnax space of a specification."""
        if spec is None:
            return self._nothing
        if isinstance(spec, dict):
            return self.module.Dict({name: self.of(part) for name, part in spec.items()})
        if isinstance(spec, tuple):
            return self._named(type(spec)(*map(self.of, spec)))
        low, high = bounds(spec)
        is_whole = spec.dtype == np.bool_ or (np.issubdtype(spec.dtype, np.integer) and spec.maximum is not None)
        return (self._whole if is_whole else self.module.Box)(low, high, spec.shape, jnp.dtype(spec.dtype))


def _number_of_actions(spec: Any) -> int:
    """Returns the number of actions if an action is one choice.

    Raises:
      GraphrlError: it is not.
    """
    if not isinstance(spec, ArraySpec) or spec.shape or choices(spec) is None:
        arrays = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(spec)]
        raise GraphrlError(f"an action is {', '.join(arrays)}, not one choice: it has no number of actions")
    return spec.num_values


@dataclasses.dataclass(frozen=True)
class FromGymnax:
    """A gymnax 1.0 environment without automatic resets.

    Its `params` are the problem instances, as in `env.default_params`, with arrays for numbers. Infos are omitted,
    since gymnax has none after a reset. Bounds of numbers are omitted too, since they depend on `params`.
    """

    env: Any

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, TimeStep[Any]]:
        """See `Environment`."""
        no = jnp.asarray(False)
        with _lenient():
            observation, state = self.env.reset_env(key, params)
        return _strong(state), TimeStep(observation, jnp.float32(0), no, no, {})

    def step(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple[Any, TimeStep[Any]]:
        """See `Environment`."""
        with _lenient():
            observation, after, reward, terminated, _ = self.env.step_env(key, state, action, params)
            truncated = self.env.is_truncated(after, params) & ~terminated
        return _strong(after), TimeStep(observation, jnp.asarray(reward, jnp.float32), terminated, truncated, {})

    def observation_spec(self, params: Any) -> Any:
        """See `Environment`."""
        return _spec(self.env.observation_space(params))

    def action_spec(self, params: Any) -> Any:
        """See `Environment`."""
        return _spec(self.env.action_space(params))


def from_gymnax(env: Any) -> FromGymnax:
    """Converts a gymnax 1.0 environment, the first value that `gymnax.make(name)` returns, to one of ours.

    Raises:
      GraphrlError: gymnax is not installed, or `env` is not one of its environments.
    """
    base = import_library("gymnax.environments.environment", "gymnax")
    if not isinstance(env, base.Environment):
        raise GraphrlError(f"{type(env).__name__} is not a gymnax environment: must be the first value of gymnax.make")
    return FromGymnax(env)


def _strong(state: Any) -> Any:
    """Converts a state to arrays with strong types, including Python numbers, so that `step` returns the types that it
    takes.
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def _spec(space: Any) -> Any:
    if hasattr(space, "spaces"):
        kind, parts = type(space).__name__, space.spaces
        return {k: _spec(v) for k, v in parts.items()} if kind == "Dict" else tuple(_spec(part) for part in parts)
    dtype = np.dtype(space.dtype)
    if hasattr(space, "n"):
        return ArraySpec((), np.dtype(np.int32), 0, int(space.n) - 1)
    return ArraySpec(tuple(space.shape), dtype)


@contextlib.contextmanager
def _lenient() -> Iterator[None]:
    """Allows the promotion of dtypes and ranks, on which gymnax relies."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
