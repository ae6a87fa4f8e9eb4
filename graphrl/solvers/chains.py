"""Chains of a search that run side by side: named tuples of arrays, of which some are named tuples of arrays again."""

from typing import Any, TypeVar, cast

import numpy as np

EXCHANGES = 10  # times in all that the worst of several chains goes on from where the best stands

T = TypeVar("T", bound=tuple[Any, ...])


def copied(parts: T) -> T:
    """A named tuple with copies of its arrays."""
    make = type(parts)._make  # type: ignore[attr-defined]
    return cast(
        T, make(copied(x) if isinstance(x, tuple) else x.copy() if isinstance(x, np.ndarray) else x for x in parts)
    )


def copy_into(target: T, source: T) -> None:
    """Overwrites its own arrays, not those of tuples in it, with those of one of the same shapes."""
    for of_target, of_source in zip(target, source, strict=True):
        if isinstance(of_target, np.ndarray):
            of_target[:] = of_source
