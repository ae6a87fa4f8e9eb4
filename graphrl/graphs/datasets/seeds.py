"""Random numbers for the graph generators: each family, size and seed has one independent stream."""

import numpy as np

from graphrl.errors import ProblemError


def generator(family: str, seed: int, *sizes: int) -> np.random.Generator:
    """Creates the random generator for one graph; equal arguments give equal streams, on every machine.

    Args:
      family: name of the family of graphs; its bytes are part of the seed.
      seed: at least 0.
      sizes: further numbers that distinguish streams, at least 0 each.

    Raises:
      ProblemError: the seed is not an integer of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ProblemError(f"seed is {seed!r}: must be an integer of at least 0")
    return np.random.default_rng([*family.encode(), *sizes, int(seed)])


def check_count(what: str, count: int, least: int) -> None:
    """Checks a number of ops (or devices); `what` names it in the error.

    Raises:
      ProblemError: `count` is not an integer of at least `least`.
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
        raise ProblemError(f"{what} is {count!r}: must be an integer of at least {least}")


def log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    """Draws a number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))
