"""How long one call of compiled programs takes, side by side."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

_MIN_ROUNDS = 5
_SECONDS = 2.0  # for all rounds beyond that


def step_seconds(
    executables: Sequence[jax.stages.Compiled], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[float, ...]:
    """The median of one call of each, taken in turns, so that a change of the machine's load meets all alike.

    Args:
      executables: of one signature.
      args, kwargs: to call them with; they are left intact, also where the executables donate them.
    """
    times: list[list[float]] = [[] for _ in executables]
    for executable in executables:  # the first call sets things up
        _one(executable, args, kwargs)
    began = time.perf_counter()
    while len(times[0]) < _MIN_ROUNDS or time.perf_counter() - began < _SECONDS:
        for executable, spent in zip(executables, times, strict=True):
            spent.append(_one(executable, args, kwargs))
    return tuple(statistics.median(spent) for spent in times)


def _one(executable: jax.stages.Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    if executable.donate_argnums:
        args, kwargs = jax.block_until_ready(jax.tree.map(jnp.copy, (args, kwargs)))
    began = time.perf_counter()
    jax.block_until_ready(executable(*args, **kwargs))
    return time.perf_counter() - began
