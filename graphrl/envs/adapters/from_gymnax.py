"""Environments of gymnax as ours, so that what learns here learns there too."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.adapters.common import needed
from graphrl.envs.base import TimeStep
from graphrl.envs.specs import ArraySpec
from graphrl.errors import GraphrlError


@dataclasses.dataclass(frozen=True)
class FromGymnax:
    """An environment of gymnax 1.0 that does not reset itself.

    Its `params` are the problem instances, as in `env.default_params`, with arrays for numbers. Infos are left out, for
    gymnax has none after a reset; and bounds of numbers, for they depend on `params`.
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
    """An environment of gymnax 1.0, as `gymnax.make(name)` gives it first, as one of ours.

    Raises:
      GraphrlError: gymnax is not installed, or it is none of its environments.
    """
    base = needed("gymnax.environments.environment", "gymnax")
    if not isinstance(env, base.Environment):
        raise GraphrlError(f"{type(env).__name__} is no gymnax environment: give the first that gymnax.make returns")
    return FromGymnax(env)


def _strong(state: Any) -> Any:
    """Arrays of types of their own, also where Python's numbers stood: what a step gives is what it takes."""
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
    """Gymnax relies on JAX's promotion of dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
