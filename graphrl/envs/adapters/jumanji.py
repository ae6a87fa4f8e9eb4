"""Converts environments to jumanji's interface."""

import collections
import functools
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.adapters.common import Kinds, fields, import_library
from graphrl.envs.base import Environment, TimeStep
from graphrl.envs.specs import floats


class _KeyedState(NamedTuple):
    """A state with the key of future steps, under the name that jumanji requires."""

    key: jax.Array
    state: Any


def to_jumanji(env: Environment[Any, Any, Any], instance: Any) -> Any:
    """Converts an environment with one instance to a jumanji environment: `reset(key)` and `step(state, action)`.

    Raises:
      GraphrlError: jumanji is not installed.
    """
    base, types = import_library("jumanji.env", "jumanji"), import_library("jumanji.types", "jumanji")
    specs = import_library("jumanji.specs", "jumanji")

    def to_timestep(timestep: TimeStep[Any], kind: Any) -> Any:
        return types.TimeStep(
            step_type=kind,
            reward=timestep.reward,
            discount=timestep.discount,
            observation=_without_none(timestep.observation),
            extras=timestep.info,
        )

    class Jumanji(base.Environment):  # type: ignore[name-defined]
        def reset(self, key: jax.Array) -> tuple[Any, Any]:
            key, first = jax.random.split(key)
            state, timestep = env.reset(first, instance)
            return _KeyedState(key, state), to_timestep(timestep, types.StepType.FIRST)

        def step(self, state: Any, action: Any) -> tuple[Any, Any]:
            key, now = jax.random.split(state.key)
            inner, timestep = env.step(now, state.state, action, instance)
            kind = jnp.where(timestep.done, types.StepType.LAST, types.StepType.MID)
            return _KeyedState(key, inner), to_timestep(timestep, kind)

        # created eagerly: jumanji's specifications cannot be created inside jax.jit
        observation_spec = _spec(specs, _without_none(env.observation_spec(instance)))
        action_spec = _spec(specs, env.action_spec(instance))
        reward_spec = _spec(specs, floats(()), "reward")
        discount_spec = _spec(specs, floats((), 0, 1), "discount")

    return Jumanji()


def _spec(specs: ModuleType, spec: Any, name: str = "") -> Any:
    """Converts a specification to jumanji's, which rebuilds named tuples from their parts."""
    parts = fields(spec)
    if parts is None:
        kinds = Kinds(specs.DiscreteArray, specs.MultiDiscreteArray, specs.Array, specs.BoundedArray)
        return kinds.describe(name, spec)
    members = {key: _spec(specs, part, key) for key, part in parts.items()}
    return specs.Spec(type(spec), name or type(spec).__name__, **members)


def _without_none(value: Any) -> Any:
    """Removes fields that are None from named tuples, since jumanji's wrappers do not accept them; other values are
    unchanged.
    """
    parts = fields(value)
    if parts is None:
        return value
    present = {key: _without_none(part) for key, part in parts.items() if part is not None}
    kind = type(value) if len(present) == len(parts) else _named(type(value).__name__, tuple(present))
    return kind(**present)


@functools.cache
def _named(name: str, names: tuple[str, ...]) -> Any:
    """Creates a named-tuple class, cached by name and fields, because JAX compares classes by identity."""
    return collections.namedtuple(name, names)
