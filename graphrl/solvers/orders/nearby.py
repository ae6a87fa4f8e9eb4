"""Random orders of one device near a given one."""

import numpy as np

from graphrl.graphs.topology import least_first
from graphrl.solvers.flow import Flow

REACHES = (1.0, 4.0, 16.0, 64.0)  # standard deviations, in places, of how far ops are moved
STRETCHES = (0.1, 0.3, 1.0)  # parts of the order within which they are


def nearby(flow: Flow, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An order `[n]` near another: in a random stretch of it each op's place gets a normal deviate added, and then the
    ready op of least place runs next.
    """
    n = len(order)
    places = np.empty(n)
    places[order] = np.arange(n)
    length = max(1, int(n * rng.choice(STRETCHES)))
    begin = int(rng.integers(n - length + 1))
    places[order[begin : begin + length]] += rng.choice(REACHES) * rng.standard_normal(length)
    return np.array(least_first(places, flow.waiting()), np.int64)
