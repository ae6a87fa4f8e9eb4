"""Shared parts of the adapters: flat environments, trees of named parts, bounds of values, and optional libraries."""

import dataclasses
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs.base import Environment, TimeStep
from graphrl.envs.specs import ArraySpec
from graphrl.errors import GraphrlError


def import_library(module: str, package: str) -> ModuleType:
    """Imports a module of the library that an adapter targets.

    Raises:
      GraphrlError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise GraphrlError(f"{error.name} is not installed: this adapter needs it (pip install {package})") from None


def as_dictionaries(value: Any) -> Any:
    """Converts named tuples to dictionaries without fields that are None; other values are unchanged."""
    parts = fields(value)
    if parts is None:
        return value
    return {name: as_dictionaries(part) for name, part in parts.items() if part is not None}


def fields(value: Any) -> dict[str, Any] | None:
    """Returns the parts of a named tuple or a dictionary by name; None for other values."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    return value if isinstance(value, dict) else None


def map_spec(
    spec: Any, leaf: Callable[[str, ArraySpec], Any], node: Callable[[dict[str, Any]], Any], name: str = ""
) -> Any:
    """Applies `leaf(name, spec)` to every array of a specification, and `node` to every dictionary of results."""
    parts = fields(as_dictionaries(spec))
    if parts is None:
        return leaf(name, spec)
    return node({key: map_spec(part, leaf, node, key) for key, part in parts.items()})


def bounds(spec: ArraySpec) -> tuple[float, float]:
    """Returns the smallest and the largest value of an element, infinite if unbounded."""
    if spec.dtype == np.bool_:
        return 0, 1
    return (-np.inf if spec.minimum is None else spec.minimum), (np.inf if spec.maximum is None else spec.maximum)


def choices(spec: ArraySpec) -> np.ndarray | None:
    """Returns how many values each element of an index array can take, `[*shape]` int32; None for other arrays."""
    if not np.issubdtype(spec.dtype, np.integer) or spec.minimum != 0 or spec.maximum is None:
        return None
    return np.full(spec.shape, spec.num_values, np.int32)


class Kinds(NamedTuple):
    """Classes with which jumanji and stoa describe one array; both take the same arguments."""

    index: Any
    indices: Any
    unbounded: Any
    bounded: Any

    def describe(self, name: str, spec: ArraySpec) -> Any:
        """Describes an array with the most specific class that fits its specification."""
        values = choices(spec)
        if values is not None and spec.shape:
            return self.indices(values, spec.dtype, name)
        if values is not None:
            return self.index(spec.num_values, spec.dtype, name)
        if spec.minimum is None and spec.maximum is None and spec.dtype != np.bool_:
            return self.unbounded(spec.shape, spec.dtype, name)
        low, high = (bool(x) if spec.dtype == np.bool_ else x for x in bounds(spec))
        return self.bounded(spec.shape, spec.dtype, low, high, name)


@dataclasses.dataclass(frozen=True)
class Flattened:
    """An environment with one vector as its observation, and one index or a vector of indices as its action.

    For libraries that have no trees of arrays. The vector has all arrays of the observation in their order, and at its
    end the mask of actions, 1 for each option that is allowed: those of the first choice, of the second, and so on. An
    action has the choices of all arrays in the same order.
    """

    env: Environment[Any, Any, Any]

    def reset(self, key: jax.Array, instance: Any) -> tuple[Any, TimeStep[jax.Array]]:
        """See `Environment`."""
        state, timestep = self.env.reset(key, instance)
        return state, self._flat(timestep, instance)

    def step(self, key: jax.Array, state: Any, action: jax.Array, instance: Any) -> tuple[Any, TimeStep[jax.Array]]:
        """See `Environment`."""
        leaves, structure = jax.tree.flatten(self.env.action_spec(instance))
        ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
        parts = jnp.split(jnp.ravel(action), ends)
        chosen = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
        state, timestep = self.env.step(key, state, jax.tree.unflatten(structure, chosen), instance)
        return state, self._flat(timestep, instance)

    def observation_spec(self, instance: Any) -> ArraySpec:
        """See `Environment`."""
        low, high = self.bounds(instance)
        return ArraySpec(low.shape, np.dtype(np.float32), float(low.min()), float(high.max()))

    def action_spec(self, instance: Any) -> ArraySpec:
        """See `Environment`. The choices need not have equally many options, see `options`."""
        options = self.options(instance)
        return ArraySpec(options.shape, np.dtype(np.int32), 0, int(options.max()) - 1)

    def options(self, instance: Any) -> np.ndarray:
        """Returns the number of options of each choice: `[m]` int32, `[]` if an action is a single choice.

        Raises:
          GraphrlError: an action has an array that holds no choices.
        """
        specs = jax.tree.leaves(self.env.action_spec(instance))
        counts = [choices(spec) for spec in specs]
        if any(count is None for count in counts):
            raise GraphrlError(f"{type(self.env).__name__} has actions that are no choices: flat=True does not take it")
        arrays = [np.asarray(count) for count in counts]
        return arrays[0] if len(arrays) == 1 and not arrays[0].shape else np.concatenate([x.ravel() for x in arrays])

    def bounds(self, instance: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the smallest and the largest value of each element of an observation: `[k]` float32 each."""
        spec, options = self.env.observation_spec(instance), int(self.options(instance).sum())
        each = [(*bounds(leaf), int(np.prod(leaf.shape))) for leaf in jax.tree.leaves(_without_mask(spec))]
        each.append((0, 1, options))
        sizes = [size for *_, size in each]
        low, high = (np.repeat([part[i] for part in each], sizes).astype(np.float32) for i in (0, 1))
        return low, high

    def _flat(self, timestep: TimeStep[Any], instance: Any) -> TimeStep[jax.Array]:
        mask = getattr(timestep.observation, "action_mask", None)
        options = int(self.options(instance).sum())
        masks = [jnp.ones(options, bool)] if mask is None else jax.tree.leaves(mask)
        leaves = [*jax.tree.leaves(_without_mask(timestep.observation)), *masks]
        vector = jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])
        return dataclasses.replace(timestep, observation=vector)


def _without_mask(observation: Any) -> Any:
    has_mask = hasattr(observation, "action_mask")
    return observation._replace(action_mask=None) if has_mask else observation
