"""Checks that environments conform to their interface: `check_env`. Needs chex (`pip install graphrl[test]`)."""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs import specs
from graphrl.envs.base import FINAL, AutoReset, Environment, TimeStep, sample_action, validate_timestep
from graphrl.errors import GraphrlError


class EnvError(GraphrlError):
    """An environment violates the interface."""


def check_env(
    env: Environment[Any, Any, Any],
    instance: Any,
    *,
    wider: Any = None,
    steps: int = 3,
    copies: int = 3,
    seed: int = 0,
    tolerance: float = 1e-6,
) -> None:
    """Checks an environment against the interface of `base.py`, with random actions, legal ones and any.

    Observations fit their specification, inside and outside of `jax.jit`; masks have the action's structure and leave a
    choice; rewards and observations are finite; states and timesteps keep their structure and types; reset and step
    compile once; their `jax.vmap` equals a loop; the key determines all results; padding has no effect; `AutoReset`
    keeps the final observation.

    Args:
      env: the environment.
      instance: an instance, of JAX's or NumPy's arrays.
      wider: the same instance, padded to larger sizes; None skips the check of padding. Actions may grow or not.
      steps: maximum number of steps of an episode.
      copies: number of environments in the `jax.vmap`.
      seed: seed of all keys.
      tolerance: tolerance between results of equal programs that are compiled differently: relative, or absolute below
        1.

    Raises:
      EnvError: the environment violates the interface; the message describes the first violation.
      SpecError: a value does not fit its specification.
    """
    chex.clear_trace_counter()
    reset, step = (jax.jit(chex.assert_max_traces(fn, n=1)) for fn in (env.reset, env.step))
    instance = jax.tree.map(jnp.asarray, instance)
    checker = _Checker(env, reset, step, instance, jax.random.key(seed), steps, copies, tolerance)
    checker.specifications()
    checker.types()
    checker.episode()
    checker.vmap_equals_loop()
    checker.final_observation()
    if wider is not None:
        checker.padding(jax.tree.map(jnp.asarray, wider))


@dataclasses.dataclass(frozen=True)
class _Checker:
    env: Environment[Any, Any, Any]
    reset: Any  # compiled, once
    step: Any  # compiled, once
    instance: Any
    key: jax.Array  # [] typed key
    steps: int
    copies: int
    tolerance: float

    def specifications(self) -> None:
        """Checks that specifications depend on shapes only: they are the same under a trace."""
        outside = self.env.observation_spec(self.instance), self.env.action_spec(self.instance)

        def specified(instance: Any) -> jax.Array:
            traced = self.env.observation_spec(instance), self.env.action_spec(instance)
            _require(traced == outside, "its specifications differ inside of jax.jit")
            _, timestep = self.env.reset(self.key, instance)
            specs.validate(traced[0], timestep.observation, "observation (traced)")
            return timestep.reward

        jax.eval_shape(specified, self.instance)
        specs.validate(outside[1], specs.sample(outside[1], self.key), "a sampled action")

    def types(self) -> None:
        """Checks that states and timesteps have the same arrays after a reset and after a step."""
        state, first = jax.eval_shape(self.env.reset, self.key, self.instance)
        action = specs.sample(self.env.action_spec(self.instance), self.key)
        after, timestep = jax.eval_shape(self.env.step, self.key, state, action, self.instance)
        for name, *both in (("state", state, after), ("timestep", first, timestep)):
            weak = name == "state"  # a weak type there compiles step twice
            reset, step = ({jax.tree_util.keystr(at): _type(x, weak) for at, x in _leaves(one)} for one in both)
            for path in [*reset, *step]:
                types = reset.get(path, "missing"), step.get(path, "missing")
                _require(types[0] == types[1], f"{name}{path} is {types[0]} after reset, {types[1]} after step")

    def episode(self) -> None:
        """Runs an episode twice, and checks that it is as specified, finite, reproducible, and compiled once."""
        first, repeated = self._run(), self._run()
        _require(_close(first, repeated, 0), "the same key gives two different episodes")
        for timestep in first:
            self._check(timestep)
        for timestep in self._run(legal=True):
            self._check(timestep)

    def vmap_equals_loop(self) -> None:
        """Checks that `jax.vmap` of reset and step gives the same results as a loop."""
        keys = jax.random.split(self.key, self.copies)
        spec = self.env.action_spec(self.instance)
        actions = jax.vmap(lambda key: specs.sample(spec, key))(keys)

        def run(reset: Any, step: Any, key: jax.Array, action: Any) -> tuple[TimeStep[Any], TimeStep[Any]]:
            state, first = reset(key, self.instance)
            return first, step(key, state, action, self.instance)[1]

        mapped = jax.jit(jax.vmap(functools.partial(run, self.env.reset, self.env.step)))(keys, actions)
        loop = [
            run(self.reset, self.step, keys[i], jax.tree.map(lambda x, i=i: x[i], actions)) for i in range(self.copies)
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *loop)
        _require(_close(mapped, stacked, self.tolerance), "jax.vmap of it is not a loop over it")

    def final_observation(self) -> None:
        """Checks that `AutoReset` around the environment keeps the last observation of an episode."""
        wrapped: AutoReset[Any, Any, Any] = AutoReset(_Compiled(self.env, self.reset, self.step))
        state, _ = wrapped.reset(self.key, self.instance)
        for number in range(self.steps):
            key = jax.random.fold_in(self.key, number)
            action = specs.sample(self.env.action_spec(self.instance), key)
            expected = self.step(jax.random.split(key)[0], state, action, self.instance)[1]
            state, timestep = wrapped.step(key, state, action, self.instance)
            _require(_close(timestep.info[FINAL], expected.observation, 0), "AutoReset loses its final observation")
            _require(_close(timestep.reward, expected.reward, 0), "AutoReset changes its rewards")

    def padding(self, wider: Any) -> None:
        """Checks that equal actions earn equal rewards with more padding, whatever the actions for the padding."""
        small, large = self.env.action_spec(self.instance), self.env.action_spec(wider)
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(one)] for one in (self.instance, wider)]
        _require(shapes[0] != shapes[1], "the wider instance has arrays of the same shapes: it must have larger ones")
        state, _ = self.reset(self.key, self.instance)
        wide_state, _ = jax.jit(self.env.reset)(self.key, wider)
        wide_step = jax.jit(self.env.step)
        for number in range(self.steps):
            key = jax.random.fold_in(self.key, number)
            action = specs.sample(small, key)
            wide_action = jax.tree.map(_embed, action, specs.sample(large, key))
            state, narrow = self.step(key, state, action, self.instance)
            wide_state, wide = wide_step(key, wide_state, wide_action, wider)
            same = _close(narrow.reward, wide.reward, self.tolerance) and bool(narrow.done == wide.done)
            _require(same, f"padding changes the reward from {narrow.reward} to {wide.reward}")
            if narrow.done:
                break

    def _run(self, *, legal: bool = False) -> list[TimeStep[Any]]:
        """Runs an episode with random actions, only legal ones if `legal`, and returns its timesteps."""
        spec = self.env.action_spec(self.instance)
        state, timestep = self.reset(self.key, self.instance)
        timesteps = [timestep]
        for number in range(self.steps):
            key = jax.random.fold_in(self.key, number)
            action = sample_action(key, self.env, timestep, self.instance) if legal else specs.sample(spec, key)
            state, timestep = self.step(key, state, action, self.instance)
            timesteps.append(timestep)
            if timestep.done:
                break
        return timesteps

    def _check(self, timestep: TimeStep[Any]) -> None:
        validate_timestep(self.env, timestep, self.instance)
        masks = jax.tree.leaves(getattr(timestep.observation, "action_mask", None))
        leaves_choice = all(np.any(leaf, -1).all() for leaf in masks)
        _require(bool(timestep.done) or leaves_choice, "action_mask leaves no choice")


class _Compiled:
    """An environment whose `reset` and `step` are compiled already."""

    def __init__(self, env: Environment[Any, Any, Any], reset: Any, step: Any) -> None:
        self.reset, self.step = reset, step
        self.observation_spec, self.action_spec = env.observation_spec, env.action_spec


_leaves = jax.tree_util.tree_leaves_with_path


def _type(leaf: jax.ShapeDtypeStruct, weak: bool) -> str:
    """Describes an array: "float32 of shape (3,)"; "a weak int32" is a Python number, if `weak` distinguishes them."""
    shape = f" of shape {leaf.shape}" if leaf.shape else ""
    return ("a weak " if weak and leaf.weak_type else "") + str(leaf.dtype) + shape


def _embed(small: jax.Array, large: jax.Array) -> jax.Array:
    """Replaces the leading part of `large` by `small`."""
    return large.at[tuple(slice(0, size) for size in small.shape)].set(small)


def _close(a: Any, b: Any, tolerance: float) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True) for x, y in pairs)


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise EnvError(f"the environment violates the interface: {fault}")
