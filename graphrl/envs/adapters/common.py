"""Shared parts of the adapters: trees of named parts, bounds of values, and optional libraries."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

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
