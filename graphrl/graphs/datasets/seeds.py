"""Random numbers of the generators of graphs: each family, size and seed has one independent stream."""

import numpy as np

from graphrl.errors import ProblemError


def generator(family: str, seed: int, *sizes: int) -> np.random.Generator:
    """The generator that one graph is drawn from: a pure function of its arguments, on every machine.

    Args:
      family: name of the family of graphs; its bytes are part of the seed.
      seed: at least 0.
      sizes: whatever else the caller wants to tell streams apart by, at least 0 each.

    Raises:
      ProblemError: the seed is no integer of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ProblemError(f"seed is {seed!r}: must be an integer of at least 0")
    return np.random.default_rng([*family.encode(), *sizes, int(seed)])


def check_count(what: str, count: int, least: int) -> None:
    """Refuses a number of ops (or devices) that a family cannot have.

    Raises:
      ProblemError: `count` is no integer of at least `least`.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise ProblemError(f"{what} is {count!r}: must be an integer of at least {least}")
